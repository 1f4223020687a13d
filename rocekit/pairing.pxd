# The types of pairing.py where it is compiled; see setup.py.
from libc.stdint cimport int64_t

from rocekit.connections cimport Connection


cdef class Flow:
    cdef public int64_t src
    cdef public int64_t dst
    cdef public int64_t qpn
    cdef public str transport
    cdef public int64_t sport
    cdef public int64_t low
    cdef public int64_t high
    cdef public int64_t answers
    cdef public dict votes
    cdef public Connection connection
    cdef public int64_t side
    cdef public int64_t first_request_ns
