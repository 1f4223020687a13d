# The types of stalls.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.findings.stories.story cimport Story


@cython.locals(story=Story, own=list, start_ns=int64_t, end_ns=int64_t, covered_ns=int64_t)
cpdef share_stalls(object stories)
