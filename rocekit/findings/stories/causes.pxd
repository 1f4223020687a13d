# The types of causes.py where it is compiled; see setup.py.
cimport cython

from rocekit.findings.stories.story cimport GoBack, Story
from rocekit.track.events cimport Event
from rocekit.track.progress cimport Progress
from rocekit.track.transfers cimport Transfer


@cython.locals(repeats=list, first=GoBack, again=GoBack, arrived=bint, nak=Event)
cpdef bint name_cause(object evidence, Story story)


@cython.locals(requests=Progress, transfer=Transfer)
cpdef bint _is_unacknowledged(Story story)
