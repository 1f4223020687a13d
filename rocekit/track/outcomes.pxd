# The types of outcomes.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.ledger cimport Ledger
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.transfers cimport Transfer


@cython.final
cdef class Outcomes:
    cdef public Ledger ledger
    cdef public Progress progress
    cdef public Recent recent
    cdef public list unacked
    cdef public Py_ssize_t first
    cdef public dict awaiting

    cpdef set_up(self, Ledger ledger, Progress progress, Recent recent)

    cpdef Transfer begin(self, Rows r, Py_ssize_t i, int64_t p, str operation)

    @cython.locals(transfer=Transfer, first=Py_ssize_t, end=Py_ssize_t)
    cpdef settle(self)

    cpdef bint is_open(self)
    cpdef _start_at(self, Py_ssize_t first)

    cpdef acknowledge(self, Transfer transfer, int64_t time_ns, int64_t frame)
    cpdef drop(self, Transfer transfer)

    @cython.locals(at=Py_ssize_t, last=Py_ssize_t)
    cpdef drop_unacked(self, Transfer transfer)

    @cython.locals(first=int64_t, transfer=Transfer, end=Py_ssize_t, given_up=list, others=list)
    cpdef _give_up(self, int64_t p)

    cpdef _end_unanswered(self, Transfer transfer)

    @cython.locals(transfer=Transfer)
    cpdef finish(self)
