# The types of silences.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint8_t

cdef int64_t _LEAST_NS
cdef int64_t _CLASS_BITS
cdef int64_t _ECN_BITS
cdef int64_t _NONE
cdef int64_t _NUMBER
cdef int64_t _FIRST
cdef int64_t _LAST
cdef int64_t _NEXT
cdef int64_t _WIDTH


cdef class Silences:
    cdef public list _addresses
    cdef public object _spells
    cdef public int64_t[::1] _heads
    cdef public int64_t[::1] _rows
    cdef public int64_t _end

    @cython.locals(i=Py_ssize_t, number=int64_t, time=int64_t, at=int64_t)
    cpdef _loop(
        self, const uint8_t[::1] keep, const int64_t[::1] src, const uint8_t[::1] tclass,
        const int64_t[::1] time_ns
    )

    @cython.locals(at=int64_t)
    cpdef _begin(self, int64_t host, int64_t number, int64_t time)

    cpdef _note(self, int64_t number, int64_t start_ns, int64_t end_ns)
