# The types of early_answers.py where it is compiled; see setup.py.
cimport cython

from rocekit.findings.stories.story cimport GoBack, Story
from rocekit.track.events cimport Event
from rocekit.track.transfers cimport Transfer


@cython.locals(event=Event)
cpdef bint is_answered_early(Transfer transfer)


@cython.locals(story=Story, kept=list)
cpdef list without_early_answers(list stories)


@cython.locals(run=GoBack, transfer=Transfer)
cpdef bint _is_of_early_answers(Story story)
