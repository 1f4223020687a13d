# The types of causes.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.events cimport Event
from rocekit.track.ledger cimport Ledger
from rocekit.track.passes cimport Passes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.transfers cimport Transfer

cdef int64_t BUSY_NS
cdef int64_t BUSY_PACKETS

@cython.locals(
    src=int64_t, since_ns=int64_t, time_ns=int64_t, k=Py_ssize_t, first=Py_ssize_t, before=Py_ssize_t, place=Py_ssize_t
)
cpdef int64_t busy_since_ns(Rows r, Py_ssize_t i)


cdef class Causes:
    cdef public Ledger ledger
    cdef public Progress progress
    cdef public Recent recent
    cdef public Passes passes
    cdef public int64_t reaction_ns
    cdef public int64_t slowest_ns
    cdef public int64_t run_psn
    cdef public str run_cause
    cdef public int64_t run_due_ns
    cdef public int64_t run_high
    cdef public int64_t shortest_timeout_ns
    cdef public list refusals
    cdef public list obeyed

    cpdef clear(self)

    @cython.locals(q=int64_t, answered_ns=int64_t, latest_ns=int64_t, transfer=Transfer)
    cpdef int64_t skipped_ns(self, int64_t p, int64_t lately_ns)
