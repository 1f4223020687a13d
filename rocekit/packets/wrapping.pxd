# The types of wrapping.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Wrapping:
    cdef public int64_t scope
    cdef public tuple _parts
    cdef public object _read
    cdef public int64_t _number

    cpdef tuple _known(self)


@cython.locals(wrapping=Wrapping)
cpdef Wrapping unread(int64_t scope, object read, int64_t number)


cdef class MadeWrappings:
    cdef public list _made
    cdef public const int64_t[::1] _scope_of

    @cython.locals(found=Wrapping)
    cpdef Wrapping at(self, Py_ssize_t number)
