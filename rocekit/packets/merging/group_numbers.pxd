# The types of group_numbers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef uint64_t _FACTOR
cdef uint64_t _WORD
cdef Py_ssize_t _AHEAD


@cython.final
cdef class GroupNumbers:
    cdef public Py_ssize_t count
    cdef int32_t _touched
    cdef Py_ssize_t _room
    cdef Py_ssize_t _bits
    cdef Py_ssize_t _shift
    cdef Py_ssize_t _last
    cdef uint64_t[::1] _known
    cdef const uint64_t[::1] _values
    cdef int32_t[::1] _of
    cdef int64_t[::1] _starts
    cdef int32_t[::1] _table

    @cython.locals(
        row=Py_ssize_t, i=Py_ssize_t, many=Py_ssize_t, at=Py_ssize_t, most=Py_ssize_t,
        number=Py_ssize_t, value=uint64_t
    )
    cdef Py_ssize_t _look_up(self, Py_ssize_t begin, Py_ssize_t end) noexcept

    cdef void _make_room(self, Py_ssize_t room)

    cdef void _places(self)

    @cython.locals(number=Py_ssize_t, at=Py_ssize_t)
    cdef void _insert(self) noexcept


@cython.locals(i=Py_ssize_t, number=Py_ssize_t)
cpdef tally(const int32_t[::1] of, Py_ssize_t begin, int32_t[::1] count, int32_t[::1] first)
