# The types of transfer_loops.py where it is compiled; see setup.py.
cimport cython

from rocekit.track.transfers cimport EventSurvey, Transfer


@cython.locals(survey=EventSurvey, transfer=Transfer)
cpdef EventSurvey survey_events(object transfers)


@cython.locals(before=Transfer, own=list, transfer=Transfer)
cpdef object by_requester(object transfers)


@cython.locals(found=set, before=Transfer, transfer=Transfer)
cpdef set responded(object transfers)
