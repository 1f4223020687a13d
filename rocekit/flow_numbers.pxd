# The types of flow_numbers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef uint64_t _MIXER
cdef uint64_t _WORD
cdef uint64_t _SHIFT


cdef class FlowNumbers:
    cdef public Py_ssize_t count
    cdef public Py_ssize_t _size
    cdef public int64_t[::1] _keys
    cdef public int64_t[::1] _numbers

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, last=Py_ssize_t, key=int64_t)
    cpdef Py_ssize_t _look_up(self, const int64_t[::1] keys, int64_t[::1] found, Py_ssize_t start)

    cdef Py_ssize_t _place(self, uint64_t key, Py_ssize_t last)

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, last=Py_ssize_t)
    cpdef _insert(self, int64_t[::1] keys, int64_t[::1] numbers)
