# The types of numbers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef uint64_t _ALL
cdef uint64_t _HIGHEST
cdef int64_t _BITS
cdef uint64_t _MORE
cdef uint64_t _LOW


@cython.final
cdef class NumberWriter:
    cdef bytearray _data
    cdef int64_t _before_ns

    @cython.locals(left=uint64_t)
    cpdef put(self, int64_t value)

    @cython.locals(apart=uint64_t)
    cpdef put_ns(self, int64_t time_ns)

    cpdef bytes written(self)


@cython.final
cdef class NumberReader:
    cdef bytes _data
    cdef Py_ssize_t _at
    cdef int64_t _before_ns

    @cython.locals(left=uint64_t, bits=uint64_t, byte=uint64_t, shift=int64_t)
    cpdef int64_t take(self)

    cpdef uint64_t take_unsigned(self)

    @cython.locals(time_ns=uint64_t)
    cpdef int64_t take_ns(self)
