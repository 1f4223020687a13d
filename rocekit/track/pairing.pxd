# The types of pairing.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.bulk cimport Chain, Chains
from rocekit.track.connections cimport Connection, connected
from rocekit.track.lobby cimport Lobby, lobby_of
from rocekit.track.pairs.waiting cimport Flow, fetched, hosts_key, note_rivals, span_of, way_key
from rocekit.packets.rows cimport Rows
from rocekit.track.requests cimport Requests
from rocekit.track.rest.side_table cimport SideTable

cdef tuple KINDS
cdef tuple TRANSPORT
cdef int64_t REQUEST
cdef int64_t RESPONSE
cdef int64_t CNP
cdef int64_t PROBATION
cdef int64_t HALF
cdef int64_t MASK

cdef Flow LONE
cdef int64_t AWAITED
cdef int64_t UNNUMBERED
cdef int64_t OFTEN


cdef class Pairing(SideTable):
    cdef public list connections
    cdef public int64_t stray_cnps
    cdef public set limits_met
    cdef public int64_t _looks
    cdef public object _known
    cdef public object _on_connection
    cdef public dict _flows
    cdef public dict _scopes
    cdef public dict _awaited
    cdef public object _numbers
    cdef public list _by_number
    cdef public dict _lobbies
    cdef public Chains _chains
    cdef public list _addresses
    cdef public int64_t _touched
    cdef public bint _may_be_lone

    cpdef _know(self, int64_t key)
    cpdef _part(self, Flow flow)

    @cython.locals(number=int64_t, flow=Flow)
    cpdef Flow _flow(self, Rows r, Py_ssize_t i)

    @cython.locals(flow=Flow)
    cpdef Flow _expected(self, Rows r, Py_ssize_t i, object around)

    @cython.locals(lobby=Lobby, key=int64_t)
    cpdef Lobby _lobby(self, Flow flow)

    @cython.locals(lobby=Lobby, alone=Flow)
    cpdef Lobby _lobby_at(self, int64_t key, object found)

    @cython.locals(lobby=Lobby, partner=Flow, length=int64_t)
    cpdef _wait(self, Flow flow, Rows r, Py_ssize_t i, int64_t kind, int64_t order)

    @cython.locals(connection=Connection, first=Flow)
    cpdef _pair_by_psn(self, Lobby lobby, Flow requester, Flow responder)

    @cython.locals(connection=Connection)
    cpdef Connection _connect(self, Flow asking, Flow other, object paired_by)

    @cython.locals(order=int64_t, r=Rows, i=Py_ssize_t, chain=Chain)
    cpdef bint _is_first_response(self, Lobby lobby, Flow requester, Flow responder)

    cpdef _add(self, Connection connection)

    @cython.locals(flow=Flow, key=int64_t, lobby=Lobby)
    cpdef Flow _new_flow(self, Rows r, Py_ssize_t i, object around)

    @cython.locals(flow=Flow, r=Rows, i=Py_ssize_t, chain=Chain, n=Py_ssize_t)
    cpdef _replay(self, list waited)

    @cython.locals(connection=Connection, waited=list)
    cpdef _let_go(self, Lobby lobby, Flow flow, bint resting=*)

    @cython.locals(connection=Connection)
    cpdef Connection _connect_alone(self, Flow flow)

    @cython.locals(lobby=Lobby, flow=Flow)
    cpdef _empty(self, Lobby lobby, bint resting=*)

    cpdef _pair_rest(self, Lobby lobby)

    @cython.locals(undecided=dict, later=list, tied=set, responder=Flow, requester=Flow, taken=Flow)
    cpdef _pair_waiting(self, object lobby, object waiting)
