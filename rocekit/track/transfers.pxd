# The types of transfers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t


cdef class Transfer:
    cdef public int64_t id
    cdef public object connection
    cdef public int64_t side
    cdef public str operation
    cdef public int64_t first_psn
    cdef public int64_t last_psn
    cdef public int64_t first_ns
    cdef public int64_t last_ns
    cdef public int64_t first_frame
    cdef public int64_t last_frame
    cdef public int64_t bytes
    cdef public int64_t packets
    cdef public str status
    cdef public object immediate
    cdef public object invalidate_rkey
    cdef public bint with_immediate
    cdef public bint with_invalidate
    cdef public object remote_va
    cdef public object rkey
    cdef public object length
    cdef public object swap_add
    cdef public object compare
    cdef public object original
    cdef public object acked_ns
    cdef public object acked_frame
    cdef public bint acked_by_cut
    cdef public int64_t request_end_ns
    cdef public int64_t retransmitted_packets
    cdef public int64_t naks
    cdef public int64_t rnr_naks
    cdef public int64_t timeouts
    cdef public bint started
    cdef public bint ended
    cdef public bint maybe_several
    cdef public object missing
    cdef public object responses_missing
    cdef public int64_t response_next
    cdef public list events
    cdef public int64_t duplicates
    cdef public object wr
    cdef public object wc
    cdef public object recv_wr
    cdef public object recv_wc

    cpdef note(self, object event)
    cpdef bint lacks(self, int64_t p)


@cython.locals(transfer=Transfer)
cpdef Transfer begun(
    int64_t id, object connection, int64_t side, str operation, int64_t psn, int64_t time_ns, int64_t frame
)
