# The types of causes.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.overtaken cimport Overtaken
from rocekit.findings.stories.story cimport GoBack, Story
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event
from rocekit.track.progress cimport Progress
from rocekit.track.transfers cimport Transfer

cdef str NAK_MISSED


@cython.locals(story=Story, still_open=list, connection=Connection, side=int64_t, wrong=bint, overtaken=Overtaken)
cpdef list name_causes(object evidence, list stories)


@cython.locals(repeats=list, first=GoBack, again=GoBack, nak=Event)
cpdef bint _name_cause(object evidence, Story story, Overtaken overtaken)


@cython.locals(requests=Progress, transfer=Transfer)
cpdef bint _is_unacknowledged(Story story)
