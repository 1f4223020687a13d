# The types of events.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class Event:
    cdef public str kind
    cdef public int64_t time_ns
    cdef public int64_t frame
    cdef public int64_t psn
    cdef public int64_t last_psn
    cdef public int64_t count
    cdef public int64_t bytes
    cdef public int64_t last_ns
    cdef public int64_t last_frame
    cdef public object cause
    cdef public object syndrome
    cdef public int64_t waited_ns
    cdef public int64_t first_sight
    cdef public bint after_ack
    cdef public int64_t run
    cdef public bint opens
    cdef public int64_t sent_psn
    cdef public object answer_psn
    cdef public int64_t answer_frame
    cdef public int64_t reached_psn
    cdef public bint mid_message
    cdef public int64_t side
    cdef public object doubt
    cdef public int64_t doubt_waited_ns
    cdef public object of_pass
    cdef public str copy
    cdef public bint ignored
    cdef public int64_t response_seen
    cdef public int64_t response_next
    cdef public int64_t resent
    cdef public int64_t copied
    cdef public int64_t ip_id
    cdef public int64_t same_answers
    cdef public int64_t answer_ns
    cdef public int64_t turnaround_ns
    cdef public int64_t waits


@cython.locals(event=Event)
cpdef Event happened(str kind, int64_t time_ns, int64_t frame, int64_t psn, int64_t last_psn, int64_t count)
