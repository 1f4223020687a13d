# The types of pairing.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.bulk cimport Chain, Chains
from rocekit.track.connections cimport Connection
from rocekit.packets.rows cimport Rows
from rocekit.track.progress cimport Progress

cdef int64_t HALF
cdef int64_t MASK
cdef int64_t NEAR
cdef int64_t BEFORE
cdef int64_t CROWD
cdef int64_t VOTES
cdef int64_t ALIKE
cdef int64_t _LONG
cdef int64_t ACK
cdef tuple OPERATION
cdef tuple SYNDROME_KIND
cdef int64_t _NEAR_BITS
cdef int64_t _NEAR_MASK
cdef tuple ENDS
cdef int64_t LOBBY_PACKETS
cdef int64_t FLOW_PACKETS
cdef int64_t MOST_PACKETS
cdef int64_t LOBBY_NS


cdef class Lobby


cdef class Flow:
    cdef public int64_t src
    cdef public int64_t dst
    cdef public int64_t qpn
    cdef public str transport
    cdef public int64_t sport
    cdef public int64_t low
    cdef public int64_t high
    cdef public int64_t responses
    cdef public dict votes
    cdef public Connection connection
    cdef public int64_t side
    cdef public int64_t first_request_ns
    cdef public list held
    cdef public int64_t held_ns
    cdef public int64_t waits
    cdef public Py_ssize_t turn
    cdef public int64_t chained
    cdef public Lobby lobby
    cdef public int64_t first_bucket
    cdef public int64_t last_bucket
    cdef public int64_t number
    cdef public Flow partner
    cdef public object around
    cdef public int64_t scope
    cdef public object clean

    cpdef hold(self, tuple packet)
    cpdef vote(self, Flow requester)

    @cython.locals(p=int64_t)
    cpdef requested(self, int64_t psn, int64_t span, int64_t time_ns)

    @cython.locals(connection=Connection, progress=Progress, r=Rows, i=Py_ssize_t, chain=Chain)
    cpdef _widen(self)

    @cython.locals(p=int64_t)
    cpdef bint could_have_requested(self, int64_t psn, bint nak)

    @cython.locals(p=int64_t)
    cpdef bint is_near(self, int64_t psn, int64_t near)


@cython.locals(flow=Flow)
cpdef Flow seen(int64_t src, int64_t dst, int64_t qpn, str transport, int64_t sport)


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
    cdef public dict _buckets
    cdef public dict _tracked
    cdef public dict _scopes
    cdef public tuple _plain
    cdef public str decided_by
    cdef public bint surely
    cdef public list _new
    cdef public object _qpns
    cdef public set _narrowed
    cdef public dict _by_ports

    cpdef add(self, Flow flow)
    cpdef remove(self, Flow flow)

    @cython.locals(first=int64_t, last=int64_t, number=int64_t)
    cpdef _file(self, Flow flow)

    @cython.locals(first=int64_t, last=int64_t, number=int64_t)
    cpdef _forget(self, Flow flow)

    @cython.locals(found=list, f=Flow)
    cpdef list requesters(self, Flow responder, int64_t psn)

    @cython.locals(psn=int64_t, nak=bint, near=int64_t, nearby=int64_t, fitting=list, flow=Flow)
    cpdef Flow partner(self, Flow responder, Rows r, Py_ssize_t i)

    cpdef requested(self, Flow flow, int64_t psn, int64_t span, int64_t time_ns)

    cpdef bint is_last(self, int64_t order)
    cpdef hold(self, Flow flow, Rows r, Py_ssize_t i)

    @cython.locals(chain=Chain)
    cpdef keep(self, Flow flow)

    @cython.locals(count=int64_t)
    cpdef keep_up(self, Flow flow)

    @cython.locals(room=int64_t)
    cpdef go_on(self, Flow flow, Rows r, Py_ssize_t i)

    @cython.locals(mine=list)
    cpdef list take(self, Flow flow, Flow other=*)

    @cython.locals(mine=list)
    cpdef list _take(self, Flow flow)

    cpdef int64_t _most(self)

    @cython.locals(queue=list, head=Py_ssize_t, flow=Flow)
    cpdef int64_t _since_ns(self)

    cpdef _limit(self)

    @cython.locals(waiting=int64_t)
    cpdef bint overdue(self, int64_t time_ns)


@cython.locals(merged=list)
cdef list _merged(list mine, list others)


@cython.locals(found=list, at=Py_ssize_t, last=int64_t, first=int64_t, chain=Chain, rest=Chain)
cdef list _cut(list mine, list others)
