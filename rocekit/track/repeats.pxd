# The types of goback.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.causes cimport Reasons
from rocekit.track.ledger cimport Sink
from rocekit.packets.rows cimport Rows
from rocekit.track.transfers cimport Event, Transfer

cdef int64_t RING
cdef int64_t FOLLOWED
cdef int64_t ID_MASK
cdef int64_t NEAR_IDS
cdef int64_t _SLOT


cdef class GoBack(Reasons):
    cdef public Event run
    cdef public Event tentative
    cdef public Event unanswered
    cdef public int64_t runs

    cpdef _set_up(self, Connection connection, int64_t side, Sink sink, bint reliable)

    @cython.locals(slot=int64_t, ip_id=int64_t)
    cpdef bint _is_duplicate(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(slot=int64_t, ip_id=int64_t, lead=int64_t)
    cpdef bint _was_overtaken(self, Rows r, Py_ssize_t i)

    cpdef bint _counts_ids(self)

    @cython.locals(slot=int64_t)
    cpdef bint _is_late(self, Rows r, Py_ssize_t i, int64_t p, bint seen)

    cpdef _repeated(self, Rows r, Py_ssize_t i, int64_t p, bint seen, Transfer transfer)

    cpdef _add_repeat(self, Event run, Rows r, Py_ssize_t i, int64_t p, bint seen)
