# The types of responses.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.assembly cimport Assembly
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event, happened
from rocekit.track.ledger cimport Ledger
from rocekit.track.outcomes cimport Outcomes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.transfers cimport Transfer
from rocekit.track.repeats cimport Repeats, Troubles, troubles_of

cdef int64_t ACK
cdef int64_t RNR_NAK
cdef int64_t NAK_SEQUENCE_ERROR
cdef int64_t _SYNDROMES
cdef int64_t _IDS
cdef int64_t _NAKS_KNOWN
cdef tuple OPERATION
cdef tuple SYNDROME_KIND
cdef tuple SYNDROME_VALUE
cdef tuple STARTS
cdef tuple ENDS


@cython.final
cdef class Responses:
    cdef public Connection connection
    cdef public Ledger ledger
    cdef public Progress progress
    cdef public Recent recent
    cdef public Outcomes outcomes
    cdef public Assembly assembly
    cdef public Event again
    cdef public Event answered
    cdef public Event refused
    cdef public Event behind
    cdef public int64_t last_psn
    cdef public int64_t last_msn
    cdef public int64_t last_id
    cdef public set naks

    cpdef set_up(
        self, Ledger ledger, Progress progress, Recent recent, Outcomes outcomes, Assembly assembly
    )

    @cython.locals(copied=bint)
    cpdef void note_ack(self, int64_t p, int64_t msn, int64_t ip_id, int64_t frame) noexcept nogil
    cdef _note_answer(self, int64_t p)

    @cython.locals(nak=int64_t)
    cpdef bint _is_copied_nak(self, int64_t p, int64_t syndrome, int64_t ip_id)

    @cython.locals(nak=Event, transfer=Transfer)
    cdef _note_answer_to_refused(self, int64_t p)

    @cython.locals(troubles=Troubles)
    cdef _note_spare(self, int64_t p)

    @cython.locals(
        time_ns=int64_t, frame=int64_t, syndrome=int64_t, kind=int64_t, transfer=Transfer, opening=Event,
        troubles=Troubles
    )
    cpdef take(self, Rows r, Py_ssize_t i, int64_t p, str operation)

    @cython.locals(event=Event, transfer=Transfer, value=int64_t)
    cpdef _refused(self, int64_t p, int64_t syndrome, int64_t kind, int64_t time_ns, int64_t frame)

    @cython.locals(kind=int64_t)
    cpdef count_refusal(self, Rows r, Py_ssize_t i, str operation)

    @cython.locals(recent=Recent)
    cpdef tuple _turnaround(self)

    @cython.locals(p=int64_t, sent_ns=int64_t, troubles=Troubles, shortest_ns=int64_t, timed=int64_t)
    cpdef _judge(self, Event nak)

    @cython.locals(progress=Progress)
    cpdef _take_cut(self, int64_t p, int64_t time_ns, int64_t frame)

    cpdef sent_again(self, int64_t p, bint seen)

    @cython.locals(progress=Progress, p=int64_t, transfer=Transfer, by_cut=bint)
    cpdef _resolve_cut(self)

    cpdef _acknowledge(self, int64_t upto, int64_t time_ns, int64_t frame)

    @cython.locals(last=Event, event=Event, before=int64_t, time_ns=int64_t, frame=int64_t)
    cpdef _response_again(self, Transfer transfer, Rows r, Py_ssize_t i, int64_t p, bint first_sight=*)

    @cython.locals(opcode=int64_t, transfer=Transfer, time_ns=int64_t, frame=int64_t, expected=int64_t)
    cpdef _read_response(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(again=int64_t, event=Event)
    cpdef bint _is_late(self, Transfer transfer, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(copy=Event, time_ns=int64_t, frame=int64_t)
    cpdef _response_twice(self, Transfer transfer, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(ip_id=int64_t)
    cpdef bint _response_duplicate(self, Rows r, Py_ssize_t i, int64_t p)
