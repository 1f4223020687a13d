# The types of places.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

cdef int64_t _WORD_BYTES


@cython.locals(
    first=Py_ssize_t, last=Py_ssize_t, shift=int64_t, mask=object, value=uint64_t, low=uint64_t, at=Py_ssize_t
)
cpdef object number_at(tuple place, bytes data)


@cython.locals(found=list, name=str, place=tuple)
cpdef list numbers_of(dict places, tuple names, bytes data)
