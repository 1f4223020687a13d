# The types of shortlist.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.transfers cimport Transfer


cdef class Shortlist:
    cdef public object left_out
    cdef public Py_ssize_t _slowest
    cdef public list _slow
    cdef public dict _kept
    cdef public dict _standing

    cpdef add(self, Transfer transfer)

    @cython.locals(transfer=Transfer)
    cpdef settle(self, object transfers)

    @cython.locals(standing=Transfer, several=bint)
    cpdef _drop(self, Transfer transfer)

    cpdef forget(self)
