# The types of reasons.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.ledger cimport Ledger, Sink
from rocekit.packets.rows cimport Rows
from rocekit.track.transfers cimport Event, Transfer

cdef int64_t _NEAR_IDS
cdef int64_t _ID_MASK
cdef int64_t _SLOT
cdef int64_t _COLUMNS
cdef int64_t _SENT
cdef int64_t _SENT_NS
cdef int64_t _TOLD
cdef int64_t _TOLD_NS
cdef int64_t _ID_BITS
cdef int64_t _MSN_BITS
cdef int64_t _MSN_MASK
cdef int64_t BUSY_NS
cdef int64_t BUSY_PACKETS

@cython.locals(slot=int64_t, word=int64_t)
cpdef bint is_shared(int64_t[::1] words, int64_t step, int64_t ip_id, int64_t p)

@cython.locals(
    src=int64_t, since_ns=int64_t, time_ns=int64_t, k=Py_ssize_t, first=Py_ssize_t, before=Py_ssize_t, place=Py_ssize_t
)
cpdef int64_t _busy_since_ns(Rows r, Py_ssize_t i)


cdef class Reasons(Ledger):
    cdef public int64_t last_tx_ns
    cdef public int64_t last_rx_ns
    cdef public int64_t ack_ns
    cdef public int64_t reaction_ns
    cdef public int64_t run_ns
    cdef public int64_t run_psn
    cdef public str run_cause
    cdef public int64_t run_due_ns
    cdef public int64_t run_high
    cdef public int64_t shortest_timeout_ns
    cdef public int64_t ids_followed
    cdef public int64_t ids_broke
    cdef public int64_t _last_id
    cdef public list refusals
    cdef public list obeyed
    cdef public dict _told_first
    cdef public int64_t[::1] _ring
    cdef public int64_t[::1] _answers

    cpdef _set_up(self, Connection connection, int64_t side, Sink sink, bint reliable)

    @cython.locals(sent=int64_t)
    cpdef int64_t _sent_psn(self, int64_t slot)

    @cython.locals(sent=int64_t)
    cpdef int64_t _sent_id(self, int64_t slot)

    @cython.locals(time_ns=int64_t)
    cpdef int64_t _sent_ns(self, int64_t slot)

    @cython.locals(told=int64_t)
    cpdef int64_t _told_upto(self, int64_t slot)

    @cython.locals(told=int64_t)
    cpdef int64_t _told_msn(self, int64_t slot)

    @cython.locals(time_ns=int64_t)
    cpdef int64_t _told_ns(self, int64_t slot)

    cpdef bint _is_shared_id(self, int64_t ip_id, int64_t p)
    cpdef _answer_came(self, int64_t p, int64_t ip_id)
    cpdef bint _is_the_answer(self, int64_t p, int64_t ip_id)

    @cython.locals(at=int64_t, ip_id=int64_t, step=int64_t)
    cpdef _remember(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(at=int64_t, slot=int64_t)
    cpdef _told(self, int64_t upto, int64_t time_ns, int64_t msn)

    cpdef _told_again(self, int64_t slot)

    @cython.locals(q=int64_t, slot=int64_t, answered_ns=int64_t, latest_ns=int64_t, transfer=Transfer)
    cpdef int64_t _passed_over_ns(self, int64_t p, int64_t lately_ns)

    @cython.locals(slot=Py_ssize_t, latest_ns=int64_t, told_ns=int64_t)
    cpdef int64_t _latest_answer_ns(self, int64_t p, int64_t until_ns)

    @cython.locals(slot=int64_t)
    cpdef int64_t _last_sent_ns(self, int64_t p)
