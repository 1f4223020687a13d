# The types of causes.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.events cimport Event
from rocekit.track.ledger cimport Ledger
from rocekit.track.passes cimport Pass, Passes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.transfers cimport Transfer

cdef int64_t NEVER_NS
cdef int64_t RING
cdef int64_t IMPLIED_NS
cdef int64_t TICKS_NS
cdef int64_t BUSY_NS
cdef int64_t BUSY_PACKETS
cdef int64_t LIKELIER
cdef int64_t CLEARLY
cdef int64_t HELD_UP_NS
cdef int64_t MANY
cdef int64_t _LONGEST_NS
cdef int64_t REFUSALS
cdef tuple RNR_WAITS_NS

@cython.locals(
    src=int64_t, since_ns=int64_t, time_ns=int64_t, k=Py_ssize_t, first=Py_ssize_t, before=Py_ssize_t, place=Py_ssize_t
)
cpdef int64_t busy_since_ns(Rows r, Py_ssize_t i)


cpdef int64_t _early_ns(int64_t wait_ns)


@cython.final
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
    cdef public object refusals
    cdef public object obeyed

    cpdef clear(self)

    cpdef refuse(self, Event refusal)
    cpdef _withdraw(self, Event refusal)

    @cython.locals(refusal=Event)
    cpdef Event standing(self, int64_t p)

    @cython.locals(refusal=Event)
    cpdef came(self, int64_t p)

    @cython.locals(nak=Event)
    cpdef bint obeys_now(self, int64_t p, int64_t time_ns)

    @cython.locals(
        time_ns=int64_t, busy_ns=int64_t, refusal_off_ns=int64_t, passed_ns=int64_t, passed_off_ns=int64_t,
        timer_off_ns=int64_t, off_ns=int64_t, quiet_ns=int64_t, since_ns=int64_t, likelier=int64_t,
        code_known=bint, quick=bint, ended=bint, early=bint, sent_since=bint, obeyed=Event, refusal=Event,
        ignored=list, nearest=list,
    )
    cpdef tuple cause(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(q=int64_t, transfer=Transfer)
    cpdef bint _was_just_answered(self, int64_t p)

    @cython.locals(time_ns=int64_t, pace_ns=int64_t, timeout_ns=int64_t, e=Event)
    cpdef list _ignored(self, int64_t p, Py_ssize_t i, Rows r)

    @cython.locals(ended=Pass)
    cpdef int64_t _sent_ns(self, int64_t p)

    @cython.locals(timeout_ns=int64_t)
    cpdef bint _is_quick(self, int64_t quiet_ns)

    @cython.locals(e=Event)
    cpdef list _refused_as(self, int64_t p)

    @cython.locals(wait_ns=int64_t, due_ns=int64_t, off_ns=int64_t, too_soon_ns=int64_t, is_due=bint)
    cpdef tuple _distance(self, Event refusal, int64_t p, bint quick, int64_t busy_ns, int64_t time_ns)

    @cython.locals(refusal=Event, only=tuple, found=tuple)
    cpdef list _nearest_refusals(self, int64_t p, bint quick, int64_t busy_ns, int64_t time_ns)

    @cython.locals(due_ns=int64_t)
    cpdef _goes_back(self, int64_t p, str cause, Event obeyed, int64_t busy_ns, int64_t time_ns, bint learn)

    cpdef int64_t _off_ns(self, int64_t told_ns, int64_t busy_ns, int64_t time_ns)
    cpdef int64_t wait_ns(self, Event refusal)
    cpdef int64_t _asked_ns(self, Event refusal)
    cpdef int64_t _timeout_ns(self)

    @cython.locals(
        timeout_ns=int64_t, transfer=Transfer, sent_ns=int64_t, again=bint, earliest_ns=int64_t, latest_ns=int64_t,
        off_ns=int64_t, told_ns=int64_t, q=int64_t,
    )
    cpdef int64_t _timer_off_ns(self, int64_t p, int64_t busy_ns, int64_t time_ns)

    @cython.locals(q=int64_t, least=int64_t, answered_ns=int64_t, latest_ns=int64_t, transfer=Transfer)
    cpdef int64_t skipped_ns(self, int64_t p, int64_t lately_ns)
