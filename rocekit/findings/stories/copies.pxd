# The types of copies.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.story cimport GoBack, Story
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event
from rocekit.track.passes cimport Pass
from rocekit.track.transfers cimport Transfer


cpdef list lost_copies(Story story)


@cython.locals(nak=Event, found=bint)
cpdef bint was_overtaken(Story story)


@cython.locals(nak=Event)
cpdef bint refused_too_soon(Story story)


@cython.locals(nak=Event, transfer=Transfer)
cpdef bint is_acknowledged_before(Story story)


@cython.locals(first=GoBack)
cpdef bint arrived(Story story)


@cython.locals(transfer=Transfer, event=Event, psn=int64_t, since_ns=int64_t)
cpdef bint _came_between(Story story, GoBack run)


cpdef bint may_be_late(Story story)


@cython.locals(nak=Event)
cpdef bint is_answered(Story story)


@cython.locals(nak=Event)
cpdef bint is_second(Story story)


@cython.locals(nak=Event)
cpdef bint is_first_behind(Story story)


@cython.locals(found=dict, nak=Event, run=GoBack, of_pass=Pass, where=str)
cpdef list _requests(Story story)


@cython.locals(psn=int64_t, packets=int64_t, first=int64_t, last=int64_t)
cpdef object _copy(Story story, str where, Pass of_pass, int64_t until_ns)


@cython.locals(first=int64_t, last=int64_t)
cpdef bint _is_missed(Story story, Pass of_pass)


cpdef bint misses_packets(Connection connection)


@cython.locals(transfer=Transfer)
cpdef bint _is_of_read(Story story)


@cython.locals(of_pass=Pass)
cpdef str _side_of(Story story, GoBack run)


@cython.locals(repeats=list, run=GoBack)
cpdef GoBack _first_repeat(Story story)


@cython.locals(run=GoBack)
cpdef bint is_captured(Story story)
