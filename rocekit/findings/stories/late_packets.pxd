# The types of late_packets.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.story cimport GoBack, Story
from rocekit.track.events cimport Event
from rocekit.track.transfers cimport Transfer


@cython.locals(story=Story, loss=Story, run=GoBack, kept=list)
cpdef list join_late_packets(object evidence, list stories)


@cython.locals(story=Story)
cpdef bint _may_reorder(list stories)


cpdef tuple _direction(Story story)


@cython.locals(ips=list, side=int64_t)
cpdef tuple _way(Story story)


@cython.locals(run=GoBack)
cpdef bint _is_proven(Story story)


cpdef bint _is_late(Story story)


cpdef bint _is_single(object evidence, Story story, GoBack run)


@cython.locals(seen=GoBack, run=GoBack, since_ns=int64_t, later=bint, transfer=Transfer, event=Event)
cpdef bint _came_twice(object evidence, Story story)


@cython.locals(run=GoBack, opener=Event, transfer=Transfer)
cpdef bint _is_late_packet(object evidence, Story story)


@cython.locals(story=Story, count=int64_t)
cpdef find_reordering(list stories)


@cython.locals(story=Story)
cpdef _doubt_responses(list stories, object late)


@cython.locals(story=Story, repeats=list, run=GoBack)
cpdef set _takes_disorder(list stories)


@cython.locals(transfer=Transfer)
cpdef bint _is_acked(Story story)


@cython.locals(came_ns=int64_t, psn=int64_t, until_ns=int64_t)
cpdef bint _waits(Story story, list waits_for)
