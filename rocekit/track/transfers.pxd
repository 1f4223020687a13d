# The types of transfers.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint64_t
from rocekit.track.events cimport Event

cdef int64_t _NEVER_NS


@cython.final
cdef class Transfer:
    cdef public int64_t id
    cdef public object connection
    cdef public int32_t side
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
    cdef public bint with_immediate
    cdef public bint with_invalidate
    cdef public uint64_t va
    cdef public int64_t key
    cdef public int64_t announced
    cdef public int64_t ack_ns
    cdef public int64_t ack_frame
    cdef public bint acked_by_cut
    cdef public int64_t request_end_ns
    cdef public int32_t retransmitted_packets
    cdef public int32_t naks
    cdef public int32_t rnr_naks
    cdef public int32_t timeouts
    cdef public bint started
    cdef public bint ended
    cdef public bint maybe_several
    cdef public object missing
    cdef public object responses_missing
    cdef public int64_t response_next
    cdef public list events
    cdef public int32_t duplicates
    cdef public int64_t place
    cdef public object particulars

    cpdef set_up(
        self, int64_t id, object connection, int64_t side, str operation, int64_t psn, int64_t time_ns, int64_t frame
    )
    cpdef note(self, object event)
    cpdef bint lacks(self, int64_t p)


@cython.locals(transfer=Transfer)
cpdef Transfer begun(
    int64_t id, object connection, int64_t side, str operation, int64_t psn, int64_t time_ns, int64_t frame
)


@cython.final
cdef class EventSurvey:
    cdef public list copies
    cdef public bint ignored
    cdef public list fatal

    @cython.locals(event=Event, has_copies=bint)
    cpdef take(self, Transfer transfer)


@cython.locals(transfer=Transfer, row=Py_ssize_t, end_ns=int64_t)
cpdef ranks_of(list transfers, int64_t[:, ::1] found)


@cython.locals(transfer=Transfer)
cpdef bint has_events(list transfers)


@cython.locals(transfer=Transfer, found=list)
cpdef list with_gaps(list transfers)
