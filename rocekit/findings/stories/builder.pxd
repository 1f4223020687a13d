# The types of builder.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.story cimport GoBack, Story, gone_back
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event
from rocekit.track.transfers cimport Transfer

cdef Py_ssize_t _RECENT
cdef Py_ssize_t _RECENT_HOLES


@cython.locals(
    found=dict, key=tuple, marks=list, transfer=Transfer, event=Event, connection=Connection
)
cpdef dict marks_of(object evidence)


@cython.locals(event=Event, time_ns=int64_t, frame=int64_t)
cpdef bint _are_in_order(list marks)


@cython.locals(event=Event)
cpdef tuple _when(tuple mark)


cpdef bint _is_next_after_hole(Story story, int64_t psn)


@cython.locals(waited_ns=int64_t, unseen=bint, other=Story, earlier=GoBack)
cpdef bint _is_copy_in_wait(Story story, GoBack run, list before)


@cython.final
cdef class StoryBuilder:
    cdef public Connection connection
    cdef public int64_t side
    cdef public list marks
    cdef public list stories
    cdef public list holes
    cdef public list response_holes
    cdef public list late_responses
    cdef public int64_t quiet
    cdef public dict going_back

    @cython.locals(event=Event, transfer=Transfer, run=GoBack)
    cpdef dict _runs(self)

    @cython.locals(event=Event, transfer=Transfer, run=GoBack, kind=str)
    cpdef list build(self)

    @cython.locals(latest=int64_t, story=Story, run=GoBack)
    cpdef _find_passed(self)

    @cython.locals(at=Py_ssize_t, last=Py_ssize_t, hole=Event)
    cpdef Event _hole(self, int64_t psn)

    @cython.locals(story=Story)
    cpdef Story _new(self, int64_t psn)

    cpdef Story _last(self)

    @cython.locals(story=Story, at=Py_ssize_t, end=Py_ssize_t)
    cpdef _add_late(self, Event event, Transfer transfer)

    cpdef _add_nak(self, Event event, Transfer transfer)

    @cython.locals(story=Story, late=Story, same=bint)
    cpdef _put_nak(self, Event event, Transfer transfer)

    cpdef _add_repeat(self, GoBack run)

    @cython.locals(story=Story, copy=Story, at=Py_ssize_t, end=Py_ssize_t)
    cpdef _put_repeat(self, GoBack run)

    @cython.locals(story=Story, at=Py_ssize_t, end=Py_ssize_t, found=Py_ssize_t)
    cpdef Story _resume_nak(self, GoBack run)

    @cython.locals(story=Story, at=Py_ssize_t, end=Py_ssize_t, asked=Event, earlier=GoBack, resumed=bint, waits=bint)
    cpdef Story _resume_rnr_wait(self, GoBack run)

    cpdef Py_ssize_t _first_recent(self)

    @cython.locals(story=Story)
    cpdef Story _made_last(self, Py_ssize_t at)

    @cython.locals(transfer=Transfer)
    cpdef bint _is_acked(self, Story story, int64_t time_ns)

    @cython.locals(last=GoBack, at_once=bint, cut=bint)
    cpdef bint _belongs(self, Story story, GoBack run)

    @cython.locals(story=Story, at=Py_ssize_t, end=Py_ssize_t, run=GoBack)
    cpdef Story _was_only_late(self, int64_t psn)

    @cython.locals(hole=Event)
    cpdef bint _only_fills_hole(self, Story story, GoBack run)


cpdef bint _is_cut_go_back(GoBack last, GoBack run)
