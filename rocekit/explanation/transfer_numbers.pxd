# The types of transfer_numbers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t
from rocekit.track.connections cimport Connection
from rocekit.track.transfers cimport Transfer

cdef int64_t _OLDEST_NS
cdef int64_t _LOW


@cython.locals(i=Py_ssize_t, t=Transfer, connection=Connection)
cpdef fill_places(list transfers, int64_t[:, ::1] table)


@cython.locals(i=Py_ssize_t, t=Transfer, eventful=bint, particular=bint, lacks=bint, acked=bint, started=bint)
cpdef fill_figures(list transfers, int64_t[:, ::1] table, dict words)
