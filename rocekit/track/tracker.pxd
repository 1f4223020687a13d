# The types of tracker.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.datagrams cimport Datagrams
from rocekit.track.lobby cimport Lobby
from rocekit.track.pairs.lone_flows cimport LoneFlows, LoneTable
from rocekit.track.pairs.waiting cimport Flow, hosts_key
from rocekit.packets.rows cimport Rows
from rocekit.track.bulk cimport Chain, Chains
from rocekit.track.lane.clean_lane cimport CleanLane
from rocekit.track.lane.clean_side cimport CleanSide
from rocekit.track.kept cimport Kept
from rocekit.track.requests cimport Requests
from rocekit.track.transfers cimport Transfer

cdef tuple KINDS
cdef int64_t REQUEST
cdef int64_t RESPONSE
cdef int64_t DATAGRAM
cdef int64_t CNP
cdef int64_t _SHORT
cdef int64_t OFTEN


cdef class Tracker(LoneFlows):
    cdef public list transfers
    cdef public object left_out
    cdef public Kept _kept
    cdef public object cm
    cdef public list malformed
    cdef public list bad_icrc
    cdef public bint icrc_ignored
    cdef public bint _valid
    cdef public object _suspects
    cdef public set _distrusted
    cdef public object _on_end
    cdef public object _on_change
    cdef public object _on_cm
    cdef public Datagrams _datagrams
    cdef public object _mads
    cdef public object _parse_mad
    cdef public object _waiting
    cdef public CleanLane _lane
    cdef public tuple _tail

    cpdef int64_t next_id(self)
    @cython.locals(connection=Connection)
    cpdef began(self, Transfer transfer)
    cpdef made(self, Transfer transfer)
    cpdef bint leaves_out(
        self, Connection connection, int64_t side, int64_t kind, str status, int64_t size, int64_t duration_ns
    )
    cpdef ended(self, Transfer transfer)
    cpdef settled(self, list transfers)
    cpdef bint forgets(self)
    cpdef given_up(self, list transfers)
    cpdef changed(self, Transfer transfer)

    @cython.locals(kind=int64_t, flow=Flow, connection=Connection)
    cpdef _take(self, Rows r, Py_ssize_t i)

    @cython.locals(
        rows=Rows, chains=Chains, lane=CleanLane, i=Py_ssize_t, count=Py_ssize_t, end=Py_ssize_t, waiting=Py_ssize_t
    )
    cpdef feed(self, object packets, object mads=*)

    cpdef _management(self, Rows r, Py_ssize_t i)

    @cython.locals(clean=CleanSide)
    cdef _count_before(self, Flow flow)

    @cython.locals(side=int64_t)
    cpdef _dispatch(self, Flow flow, Connection connection, Rows r, Py_ssize_t i, int64_t kind)

    @cython.locals(requests=Requests)
    cpdef bint _replay_chain(self, Flow flow, Connection connection, Chain chain)

    @cython.locals(
        connection=Connection, partner=Flow, mine=CleanSide, other=CleanSide, asks=Flow, requests=Requests
    )
    cpdef _enter(self, Flow flow, int64_t kind, int64_t opcode)

    @cython.locals(side=CleanSide)
    cpdef CleanSide _clean_side(self, Flow flow)

    @cython.locals(flow=Flow)
    cpdef _settle_all(self)

    @cython.locals(connection=Connection, transfer=Transfer, flow=Flow, lobbies=list)
    cpdef finish(self)
    cpdef _part(self, Flow flow)
