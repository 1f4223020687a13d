# The types of progress.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Progress:
    cdef public bint reliable
    cdef public bint started
    cdef public int64_t begin
    cdef public int64_t expected
    cdef public int64_t high
    cdef public int64_t acked
    cdef public int64_t acked_ns
    cdef public int64_t acked_frame
    cdef public int64_t msn
    cdef public int64_t cut_psn
    cdef public int64_t cut_ns
    cdef public int64_t cut_frame
    cdef public bint cut_again
    cdef public bint by_cut
    cdef public bint gapped
    cdef public object held
    cdef public int64_t holds

    cpdef set_up(self, bint reliable)
    cpdef start(self, int64_t psn)
    cpdef hold(self, tuple packet, int64_t count)


@cython.locals(progress=Progress)
cpdef Progress unstarted(bint reliable)
