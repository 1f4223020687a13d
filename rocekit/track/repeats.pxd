# The types of repeats.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.causes cimport Causes
from rocekit.track.events cimport Event, happened
from rocekit.track.ledger cimport Ledger
from rocekit.track.passes cimport Pass, Passes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.transfers cimport Transfer

cdef int64_t _ID_BITS
cdef int64_t _COPIES_KNOWN
cdef int64_t NEVER_NS
cdef int64_t RING
cdef int64_t DUPLICATE_NS
cdef int64_t AT_ONCE_NS
cdef int64_t LATE_NS


@cython.locals(event=Event)
cpdef bint _has_response(Transfer transfer, int64_t p)


@cython.final
cdef class Repeats:
    cdef public Ledger ledger
    cdef public Progress progress
    cdef public Recent recent
    cdef public Causes causes
    cdef public Event run
    cdef public Event tentative
    cdef public Event unanswered
    cdef public int64_t runs
    cdef public Event copy
    cdef public int64_t copy_high
    cdef public int64_t filled
    cdef public int64_t before_id
    cdef public Passes passes
    cdef set _sent_before

    cpdef clear(self)

    @cython.locals(run=Event, high=int64_t, after=int64_t)
    cpdef over(self, int64_t p)

    @cython.locals(run=Event, high=int64_t, current=Pass, after=int64_t)
    cpdef int64_t repeat_ends(self)

    @cython.locals(transfer=Transfer)
    cpdef int64_t after(self, int64_t p)

    cpdef int64_t reached(self)

    @cython.locals(event=Event)
    cpdef Event note(self, str kind, Rows r, Py_ssize_t i, int64_t p)

    cpdef copied(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(ip_id=int64_t, recent=Recent)
    cpdef bint _is_copied(self, Rows r, Py_ssize_t i, int64_t p)

    cpdef bint _came_before(self, int64_t ip_id, int64_t p)

    @cython.locals(ip_id=int64_t)
    cpdef _remember(self, int64_t p)

    @cython.locals(ip_id=int64_t, recent=Recent)
    cpdef bint _is_resent(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(ip_id=int64_t)
    cpdef bint is_duplicate(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(run=Event, recent=Recent, transfer=Transfer)
    cpdef bint _is_at_once(self, int64_t p, int64_t time_ns)

    @cython.locals(copy=Event)
    cpdef bint _follows_copy(self, int64_t p)

    @cython.locals(transfer=Transfer)
    cpdef bint _was_answered(self, int64_t p)

    @cython.locals(time_ns=int64_t, run=Event, late=Event, copy=Event, asks_part=bint)
    cpdef take(self, Rows r, Py_ssize_t i, int64_t p, bint seen, Transfer transfer)

    @cython.locals(q=int64_t, since_ns=int64_t)
    cpdef bint _is_long_missing(self, int64_t p, int64_t time_ns)

    @cython.locals(soon=bint)
    cpdef bint _goes_on(self, Event run, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(e=Event, due_ns=int64_t)
    cpdef bint _obeys(self, int64_t p, int64_t time_ns, int64_t reaction_ns)

    cpdef Event _in_doubt(self, Event run, str doubt)

    @cython.locals(before=Event, transfer=Transfer, seen=int64_t, acked=int64_t, ended=Pass, waited_ns=int64_t, run=Event)
    cpdef Event _new_run(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(transfer=Transfer)
    cpdef _reclassify(self, Event late, Event run)

    @cython.locals(time_ns=int64_t, frame=int64_t, begun=bint, after=int64_t, event=Event)
    cpdef _add_repeat(self, Event run, Rows r, Py_ssize_t i, int64_t p, bint seen, Transfer transfer)

    @cython.locals(time_ns=int64_t, frame=int64_t, event=Event)
    cpdef Event _repeat(self, Event run, Rows r, Py_ssize_t i, int64_t p, bint seen)

    cpdef answer(self, Event opening, int64_t p, int64_t frame)


@cython.final
cdef class Troubles:
    cdef public object read_steps
    cdef public Passes passes
    cdef public Causes causes
    cdef public Repeats repeats

    cpdef begin_anew(self)
    cpdef bint are_over(self)


@cython.locals(troubles=Troubles)
cpdef Troubles troubles_of(Ledger ledger, Progress progress, Recent recent)
