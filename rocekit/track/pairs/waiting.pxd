# The types of waiting.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint16_t

from rocekit.packets.rows cimport Rows
from rocekit.track.bulk cimport Chain
from rocekit.track.connections cimport Connection
from rocekit.track.progress cimport Progress

cdef int64_t HALF
cdef int64_t MASK
cdef int64_t BEFORE
cdef int64_t _SOURCE_BITS
cdef int64_t _QPN_BITS
cdef int64_t _LEAST_MTU
cdef tuple OPERATION


cdef class Flow:
    # The small ones side by side: there are many flows.
    cdef public int32_t src
    cdef public int32_t dst
    cdef public int32_t qpn
    cdef public str transport
    cdef public int32_t responses
    cdef public int32_t waits
    cdef public int32_t turn
    cdef public int32_t chained
    cdef public int32_t first_bucket
    cdef public int32_t last_bucket
    cdef public int32_t number
    cdef public uint16_t sport
    cdef public int8_t side
    cdef public int64_t low
    cdef public int64_t high
    cdef public dict votes
    cdef public Connection connection
    cdef public int64_t first_request_ns
    cdef public list held
    cdef public int64_t held_ns
    cdef public object lobby
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


cpdef int64_t place_of(Flow flow)


cpdef bint faces(Flow flow, Flow responder)


@cython.locals(both=list)
cpdef list merged(list mine, list others)


@cython.locals(found=list, at=Py_ssize_t, last=int64_t, first=int64_t, chain=Chain, rest=Chain)
cdef list _cut(list mine, list others)


@cython.locals(group=dict, flow=Flow, found=list)
cpdef list facing(list groups, Flow responder)


@cython.locals(count=int64_t, group=dict)
cpdef int64_t count_of(list groups)


@cython.locals(group=dict)
cpdef bint is_in_any(Flow flow, list groups)


@cython.locals(filed=dict)
cpdef file_in(dict found, object key, Flow flow)


@cython.locals(filed=dict)
cpdef take_out(dict found, object key, Flow flow)


@cython.locals(responder=Flow, known=list)
cpdef note_rivals(dict undecided, list later)


cpdef object flow_key(Rows r, Py_ssize_t i)


@cython.locals(way=int64_t)
cpdef object way_key(int64_t src, int64_t dst, int64_t qpn, object scope=*)


cpdef int64_t hosts_key(int64_t src, int64_t dst)


@cython.locals(r=Rows, i=Py_ssize_t, touched=int64_t)
cpdef int64_t fetched(list waited)


cpdef int64_t span_of(Rows r, Py_ssize_t i) except -1
