# The types of source_ports.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.pairs.waiting cimport Flow

cdef int64_t _BITS
cdef int64_t _LEAST
cdef int64_t _LOW
cdef int64_t _FLOW_LABEL
cdef int64_t _GOLDEN_RATIO
cdef int64_t _WORD
cdef int64_t _ACCIDENT


@cython.locals(product=int64_t, label=int64_t)
cpdef int64_t of_both(int64_t own, int64_t other)


cpdef int64_t of_hash(int64_t own, int64_t other)


cpdef int64_t of_own(int64_t own, int64_t other)


@cython.locals(hashed=int64_t)
cpdef bint fit(int64_t a, int64_t a_port, int64_t b, int64_t b_port)


cdef class QpnsOfHosts:
    cdef public bint same
    cdef public dict _qpns

    @cython.locals(flow=Flow, at_dst=set, at_src=set, qpn=object)
    cpdef add(self, list more)
