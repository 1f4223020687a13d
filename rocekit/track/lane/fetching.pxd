# The types of fetching.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.lane.clean_side cimport CleanSide
from rocekit.track.recent cimport Recent

cdef int64_t ANNOUNCED
cdef int64_t _AHEAD
cdef int64_t _SLOTS
cdef int64_t _touched


@cython.locals(touched=int64_t, end=Py_ssize_t, i=Py_ssize_t, side=CleanSide, recent=Recent)
cpdef Py_ssize_t fetch(list sides, int64_t[::1] words, Rows r, Py_ssize_t start)


@cython.locals(touched=int64_t, end=Py_ssize_t, n=Py_ssize_t, side=CleanSide)
cpdef Py_ssize_t fetch_counts(list touched_sides, Py_ssize_t start)
