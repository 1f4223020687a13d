# The types of flow_numbers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef int64_t _ADDRESS_BITS
cdef int64_t _QPN_BITS
cdef uint64_t _FIRST
cdef uint64_t _SECOND
cdef uint64_t _WORD
cdef uint64_t _SHIFT

cdef uint64_t MAPPED
cdef tuple _OCTETS
cdef list _hexes

@cython.locals(
    longest=Py_ssize_t, begins=Py_ssize_t, zeros=Py_ssize_t, ends=Py_ssize_t, n=Py_ssize_t, word=Py_ssize_t,
    parts=list, text=str
)
cpdef str ipv6_of(uint64_t high, uint64_t low)

cdef uint64_t _mixed(uint64_t key) noexcept nogil


@cython.final
cdef class PairNumbers:
    cdef public Py_ssize_t count
    cdef public uint64_t[::1] high
    cdef public uint64_t[::1] low
    cdef public Py_ssize_t _size
    cdef public int64_t[::1] _numbers

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, turn=Py_ssize_t, other=Py_ssize_t)
    cpdef Py_ssize_t _look_up(
        self, const uint64_t[::1] high, const uint64_t[::1] low, int64_t[::1] found, Py_ssize_t start
    )

    @cython.locals(at=Py_ssize_t, last=Py_ssize_t, number=int64_t)
    cdef Py_ssize_t _find(self, uint64_t high, uint64_t low) noexcept nogil

    @cython.locals(at=Py_ssize_t, last=Py_ssize_t, number=Py_ssize_t)
    cpdef _insert(self)


@cython.locals(number=Py_ssize_t, high=uint64_t, low=uint64_t, a=Py_ssize_t, b=Py_ssize_t, c=Py_ssize_t, d=Py_ssize_t)
cdef _add_texts(list texts, PairNumbers known)


@cython.locals(row=Py_ssize_t, key=object, number=object)
cpdef int64_t numbers_of_keys(const uint64_t[::1] keys, dict known, int64_t count, int64_t[::1] found)


@cython.final
cdef class FlowNumbers:
    cdef PairNumbers _scoped
    cdef public Py_ssize_t count
    cdef public Py_ssize_t _size
    cdef public uint64_t[::1] _keys
    cdef public int64_t[::1] _numbers

    @cython.locals(
        i=Py_ssize_t, at=Py_ssize_t, last=Py_ssize_t, here=uint64_t, there=uint64_t, number=uint64_t, key=uint64_t
    )
    cpdef Py_ssize_t _look_up(
        self, const int64_t[::1] src, const int64_t[::1] dst, const int64_t[::1] qpn, int64_t[::1] found,
        Py_ssize_t start
    )

    @cython.locals(i=Py_ssize_t, at=Py_ssize_t, last=Py_ssize_t)
    cpdef _insert(self, uint64_t[::1] keys, int64_t[::1] numbers)
