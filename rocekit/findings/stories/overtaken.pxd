# The types of overtaken.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.story cimport Story
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event
from rocekit.track.passes cimport Pass
from rocekit.track.transfers cimport Transfer


@cython.locals(ways=set, story=Story, transfer=Transfer, nak=Event)
cpdef object spread_answered(object stories)


@cython.locals(late=frozenset, story=Story, ips=list, side=int64_t)
cpdef object doubt_by_file(object evidence, object stories)


@cython.locals(event=Event, same_file=bint)
cpdef bint is_in_file_order(Story story)


cdef class Overtaken:
    cdef object _evidence
    cdef frozenset _seen
    cdef dict _doubles

    @cython.locals(transfer=Transfer, nak=Event, of_pass=Pass, more=int, doubled=int64_t, of=int64_t)
    cpdef object note(self, Story story)

    cpdef bint is_seen(self, Story story)

    @cython.locals(transfer=Transfer, doubled=int64_t, count=int64_t)
    cpdef tuple _doubled(self, Story story)


@cython.locals(event=Event, answers=int64_t, sent=int64_t, without_id=int64_t)
cpdef int _more_answers(Transfer transfer, int64_t psn, int64_t since_ns)


@cython.locals(event=Event, again=bint)
cpdef bint _is_doubled(Transfer transfer)


cpdef bint _may_lack_copies(Connection connection)
