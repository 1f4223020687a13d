# The types of runs.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows

cdef int64_t MASK
cdef int64_t ECN_CE
cdef int64_t _PSN
cdef int64_t _OPCODE
cdef int64_t _PAYLOAD
cdef int64_t _ROOM
cdef int64_t _COUNT
cdef int64_t _FIRST
cdef int64_t _LAST
cdef int64_t _WIDTH
cdef int64_t _NOTHING
cdef tuple _MIDDLE


@cython.final
cdef class Chains:
    cdef public int64_t[::1] _state
    cdef public int64_t _flows
    cdef public int64_t[::1] after
    cdef public list open
    cdef public Rows rows

    @cython.locals(r=Rows, at=int64_t, flow=int64_t, i=Py_ssize_t)
    cpdef Py_ssize_t takes(self, Py_ssize_t start, Py_ssize_t end)

    cpdef int64_t last(self, int64_t flow)
    cpdef int64_t first(self, int64_t flow)
    cpdef int64_t count(self, int64_t flow)
    cpdef clear(self, int64_t flow)
    cpdef request(self, int64_t flow, int64_t opcode)
    cpdef int64_t opcode(self, int64_t flow)

    @cython.locals(at=int64_t)
    cpdef expect(self, int64_t flow, int64_t psn, int64_t payload, int64_t room)
