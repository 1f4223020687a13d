# The types of story.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event
from rocekit.track.transfers cimport Transfer


cdef int64_t _NEVER_NS


@cython.final
cdef class GoBack:
    cdef public str cause
    cdef public Event opener
    cdef public list more
    cdef public Transfer first_transfer
    cdef public list more_transfers
    cdef public int64_t time_ns
    cdef public int64_t frame
    cdef public int64_t first_psn
    cdef public int64_t last_psn
    cdef public int64_t packets
    cdef public int64_t bytes
    cdef public int64_t first_sight
    cdef public int64_t resent
    cdef public bint is_late

    cpdef begin(self, Event opener)
    cpdef be_late(self)
    cpdef add(self, Event event, Transfer transfer)


@cython.locals(run=GoBack)
cpdef GoBack gone_back(Event opener)


@cython.final
cdef class Story:
    cdef public Connection connection
    cdef public int64_t side
    cdef public int64_t psn
    cdef public list naks
    cdef public list rnrs
    cdef public list go_backs
    cdef public Event hole
    cdef public list late
    cdef public list transfers
    cdef public str rule
    cdef public bint certain
    cdef public bint naks_lacking
    cdef public bint gappy
    cdef public bint begun
    cdef public bint early
    cdef public bint or_overtaken
    cdef public bint by_file
    cdef public int64_t lost
    cdef public list bad_frames
    cdef public bint gave_up
    cdef public bint passed
    cdef public Event unseen
    cdef public object received
    cdef public object paused
    cdef public int64_t added_ns
    cdef public int64_t cost_ns
    cdef public list places
    cdef public bint of_response
    cdef public list copies

    @cython.locals(event=Event, run=GoBack, first_ns=int64_t)
    cpdef int64_t first_ns(self)

    @cython.locals(event=Event, run=GoBack, seen=Event, events=list)
    cpdef list first_frames(self, Py_ssize_t most)

    @cython.locals(run=GoBack)
    cpdef list runs(self)

    @cython.locals(run=GoBack, total=int64_t)
    cpdef int64_t packets_again(self)

    @cython.locals(run=GoBack, total=int64_t)
    cpdef int64_t bytes_again(self)

    @cython.locals(run=GoBack, sent=int64_t)
    cpdef int64_t times_sent(self)

    @cython.locals(start=int64_t, repeats=list, first=GoBack, last=GoBack)
    cpdef tuple stalled(self)

    cpdef add_nak(self, Event event)
    cpdef add_rnr(self, Event event)
    cpdef add_late(self, Event event)
    cpdef add_go_back(self, GoBack run)
    cpdef add_transfer(self, Transfer transfer)

    @cython.locals(transfer=Transfer)
    cpdef add_transfers(self, object transfers)

    cpdef add_transfers_of(self, GoBack run)

    @cython.locals(transfer=Transfer)
    cpdef Transfer held_by(self)


@cython.locals(event=Event, time_ns=int64_t)
cpdef list _first_events(list events, Py_ssize_t most)


@cython.locals(run=GoBack, time_ns=int64_t)
cpdef list _first_runs(list runs, Py_ssize_t most)


@cython.locals(run=GoBack, before=GoBack)
cpdef list intervals_of(list runs)


@cython.locals(run=GoBack, before=GoBack, longest_ns=int64_t)
cpdef int64_t longest_wait_ns(list runs)


@cython.locals(
    story=Story, worst=Story, run=GoBack, packets=int64_t, size=int64_t, times=int64_t, added_ns=int64_t
)
cpdef object costs_of(object stories)


@cython.locals(found=dict, before=Story, own=list, story=Story, of_rule=dict)
cpdef dict by_rule(object stories)


@cython.locals(
    guessed=int64_t, of_nak=int64_t, overtaken=int64_t, most_sent=int64_t, alone=bint, story=Story, sent=int64_t
)
cpdef object told_by(object stories)


@cython.locals(story=Story, run=GoBack, lowest=int64_t)
cpdef int64_t first_repeated(object stories)


@cython.locals(found=dict, story=Story, transfer=Transfer)
cpdef list affected(object stories)


@cython.locals(
    story=Story, run=GoBack, event=Event, count=int64_t, most_ns=int64_t, first=bint, came=bint,
    came_ns=int64_t, late_ns=int64_t
)
cpdef tuple late_of(object stories)
