# The types of passes.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.events cimport Event
from rocekit.track.progress cimport Progress


@cython.final
cdef class Pass:
    cdef public int64_t number
    cdef public int64_t first
    cdef public int64_t began_ns
    cdef public int64_t last
    cdef public int64_t ended_ns
    cdef public object gaps
    cdef public object jump
    cdef public object naks

    @cython.locals(first=int64_t, last=int64_t)
    cpdef bint lacks(self, int64_t p)


@cython.locals(made=Pass)
cpdef Pass _pass_of(int64_t number, int64_t first, int64_t began_ns)


@cython.final
cdef class Passes:
    cdef public Progress progress
    cdef public Pass current
    cdef public Pass before
    cdef public int64_t went_back
    cdef public int64_t selective
    cdef public int64_t missed

    @cython.locals(ended=Pass)
    cpdef Pass begin(self, int64_t p, int64_t time_ns, int64_t last, int64_t last_ns, int64_t acked)

    cpdef vote(self, int64_t acked)
    cpdef skip(self, int64_t first, int64_t last)
    @cython.locals(first=int64_t, last=int64_t)
    cpdef acknowledged(self, int64_t upto)

    cpdef fill(self, int64_t p)
    cpdef bint is_selective(self)

    @cython.locals(of_pass=Pass, event=Event)
    cpdef note(self, Event nak)

    @cython.locals(current=Pass, before=Pass, late=bint, stale=bint, surely_ns=int64_t, fresh_ns=int64_t)
    cpdef tuple judge(
        self, int64_t p, int64_t time_ns, int64_t reached, int64_t sent_ns, int64_t turnaround_ns, int64_t timed
    )
