# The types of rows.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from rocekit.packets.wrapping cimport MadeWrappings, Wrapping


cdef class Rows:
    cdef public object _packets
    cdef public object _around
    cdef public const int64_t[::1] _encapsulation
    cdef public object _wrappings
    cdef public MadeWrappings _table
    cdef public object _payloads
    cdef public const int64_t[::1] _first
    cdef public const int64_t[::1] _last
    cdef public dict _others
    cdef public Py_ssize_t count
    cdef public const int64_t[::1] before_src
    cdef public const int64_t[::1] before_ns
    cdef public const int64_t[::1] frame
    cdef public const int64_t[::1] time_ns
    cdef public const int64_t[::1] src
    cdef public const int64_t[::1] dst
    cdef public const int64_t[::1] dest_qpn
    cdef public const int64_t[::1] flow
    cdef public const int64_t[::1] opcode
    cdef public const int64_t[::1] psn
    cdef public const int64_t[::1] payload_length
    cdef public const int64_t[::1] ip_id
    cdef public const int64_t[::1] ecn
    cdef public const int64_t[::1] syndrome
    cdef public const int64_t[::1] msn
    cdef public const int64_t[::1] dma_length
    cdef public const uint64_t[::1] remote_va
    cdef public const int64_t[::1] rkey
    cdef public const int64_t[::1] udp_sport
    cdef public const int64_t[::1] around_src
    cdef public const int64_t[::1] around_ns
    cdef public list place

    @cython.locals(values=list)
    cpdef list lesser(self, str name)

    cpdef Py_ssize_t place_of(self, Py_ssize_t i)

    cpdef Wrapping around(self, Py_ssize_t i)
