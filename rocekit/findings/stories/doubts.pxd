# The types of doubts.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.story cimport GoBack, Story
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event

cdef str NAK_MISSED


@cython.locals(story=Story, run=GoBack, lacking=set)
cpdef doubt_without_naks(object stories)


@cython.locals(story=Story, repeats=list, first=GoBack)
cpdef doubt_short_waits(object evidence, object stories)


@cython.locals(story=Story, lacks=dict, headless=dict, absent=dict, before=Connection, lacking=bint)
cpdef doubt_gaps(object evidence, object stories)


@cython.locals(story=Story, connection=Connection, sparse=dict, packets=int64_t, scattered=int64_t, missed=int64_t, everywhere=bint)
cpdef doubt_sparse(object evidence, object stories)


@cython.locals(event=Event, alone=int64_t, leaps=int64_t)
cpdef int64_t _scattered(Connection connection)


@cython.locals(story=Story, found=dict)
cpdef dict _absent(object stories)


cpdef object _missed(Connection connection)


cpdef bint is_gappy(Connection connection)


@cython.locals(run=GoBack)
cpdef bint _shows_new_packets(list runs)


@cython.locals(story=Story, naks_lacking=bint, early=bint, overtaken=bint, unknown=bint, gappy=bint, answered=bint, second=bint, by_file=bint, first_behind=bint, not_obeyed=bint, words=str)
cpdef str doubt_words(object stories)
