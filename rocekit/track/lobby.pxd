# The types of pairing.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.bulk cimport Chain, ChainedPackets, Chains
from rocekit.track.connections cimport Connection
from rocekit.packets.rows cimport Rows
from rocekit.track.pairs.source_ports cimport QpnsOfHosts, fit
from rocekit.track.pairs.waiting cimport (
    Flow, count_of, faces, facing, file_in, is_in_any, merged, place_of, take_out
)
from rocekit.track.progress cimport Progress

cdef int64_t HALF
cdef int64_t MASK
cdef int64_t NEAR
cdef int64_t CROWD
cdef int64_t VOTES
cdef int64_t ALIKE
cdef int64_t _LONG
cdef int64_t ACK
cdef tuple OPERATION
cdef tuple SYNDROME_KIND
cdef int64_t _LOOKS
cdef int64_t _SOURCE_BITS
cdef int64_t _NEAR_BITS
cdef int64_t _NEAR_MASK
cdef tuple ENDS
cdef int64_t LOBBY_PACKETS
cdef int64_t FLOW_PACKETS
cdef int64_t MOST_PACKETS
cdef int64_t LOBBY_NS


cdef class Lobby:
    cdef public dict flows
    cdef public Py_ssize_t count
    cdef public Chains _chains
    cdef public int64_t _number
    cdef public int64_t _last
    cdef public list _queue
    cdef public Py_ssize_t _head
    cdef public Py_ssize_t _waiting
    cdef public bint _asked
    cdef public Py_ssize_t _wide
    cdef public dict _buckets
    cdef public dict _tracked
    cdef public dict _ports
    cdef public int64_t _looks
    cdef public set _met
    cdef public dict _scopes
    cdef public tuple _plain
    cdef public str decided_by
    cdef public bint surely
    cdef public list _new
    cdef public QpnsOfHosts _qpns
    cdef public set _narrowed
    cdef public dict _by_ports

    cpdef set_up(self, Chains chains, int64_t looks, set limits_met)
    cpdef add(self, Flow flow)
    cpdef take_in(self, Flow flow)
    cpdef remove(self, Flow flow)

    @cython.locals(first=int64_t, last=int64_t, number=int64_t, base=int64_t)
    cpdef _file(self, Flow flow)

    @cython.locals(first=int64_t, last=int64_t, number=int64_t, base=int64_t)
    cpdef _forget(self, Flow flow)

    @cython.locals(found=list, beside=int64_t, bucket=dict, once=dict, most=Py_ssize_t)
    cdef list _near(self, object place, int64_t number)

    @cython.locals(f=Flow, count=int64_t, groups=list, places=list, alike=list, near=list)
    cpdef list requesters(self, Flow responder, int64_t psn)

    @cython.locals(own=int64_t, port=int64_t, f=Flow, derived=list, equal=list)
    cpdef list _by_source_port(self, list alike, Flow responder, int64_t count)

    @cython.locals(psn=int64_t, nak=bint, near=int64_t, nearby=int64_t, fitting=list, flow=Flow)
    cpdef Flow partner(self, Flow responder, Rows r, Py_ssize_t i)

    cpdef bint may_pair(self, Flow flow, Flow responder)
    cpdef bint _share(self, Flow flow, Flow responder)

    @cython.locals(most=int64_t, votes=int64_t, best=list, flow=Flow, rivals=list)
    cpdef Flow elect(self, Flow responder)

    cpdef requested(self, Flow flow, int64_t psn, int64_t span, int64_t time_ns)

    cpdef bint is_last(self, int64_t order)
    cpdef hold(self, Flow flow, Rows r, Py_ssize_t i, int64_t order)

    @cython.locals(chain=Chain, packets=ChainedPackets, ends=int64_t)
    cpdef keep(self, Flow flow)

    @cython.locals(flow=Flow)
    cpdef keep_all(self)

    @cython.locals(count=int64_t)
    cpdef keep_up(self, Flow flow)

    @cython.locals(room=int64_t)
    cpdef go_on(self, Flow flow, Rows r, Py_ssize_t i)

    @cython.locals(mine=list)
    cpdef list take(self, Flow flow, Flow other=*)

    @cython.locals(mine=list)
    cpdef list _take(self, Flow flow)

    cpdef int64_t _most(self)

    @cython.locals(queue=list, head=Py_ssize_t, flow=Flow, turn=Py_ssize_t)
    cpdef int64_t _since_ns(self)

    cpdef _limit(self)

    @cython.locals(found=list, turn=Py_ssize_t, flow=Flow)
    cpdef list waiting(self)

    @cython.locals(flow=Flow)
    cpdef _find_by_psn(self)

    cpdef let_go(self, Flow flow)

    @cython.locals(waiting=int64_t)
    cpdef bint overdue(self, int64_t time_ns)


cpdef bint is_due(int64_t flows, int64_t waited_ns)


@cython.locals(lobby=Lobby)
cpdef Lobby lobby_of(Chains chains, int64_t looks, set limits_met)
