# The types of connections.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from rocekit.track.progress cimport Progress


cdef int64_t _LEAST_MTU
cdef int64_t _NEVER_NS
cdef uint64_t _MIX
cdef uint64_t _WORD


cdef object _with(object noted, object one)


@cython.final
cdef class Incidents:
    cdef public int64_t cut_responses
    cdef public int64_t bad_icrc_count
    cdef public int64_t copied_ack_count
    cdef public int64_t missed_copies
    cdef public object missed
    cdef public object unfilled
    cdef public object jumps
    cdef public object stray_events
    cdef public object bad_icrc
    cdef public object copied_acks
    cdef public object short_waits
    cdef public tuple overtaken
    cdef public tuple recoveries
    cdef public object closed_frame
    cdef public object resent_per_loss
    cdef public object application
    cdef public tuple read_steps


@cython.final
cdef class Connection:
    cdef public int64_t id
    cdef public str transport
    cdef public list ips
    cdef public list qpns
    cdef public object paired_by
    cdef public object path_mtu
    cdef public int64_t packets
    cdef public int64_t bytes
    cdef public int64_t transfers
    cdef public int64_t retransmitted_packets
    cdef public int64_t naks
    cdef public int64_t rnr_naks
    cdef public int64_t cnps
    cdef public int64_t ce_marked
    cdef public int64_t duplicates
    cdef public int64_t _first_ns
    cdef public int64_t _last_ns
    cdef public tuple progress
    cdef public object negotiated
    cdef public int64_t largest_payload
    cdef public int64_t duplicate_acks
    cdef public tuple around
    cdef public Incidents incidents
    cdef public bint paired_surely
    cdef public bint mtu_observed
    cdef public bint _mtu_is_observed

    cpdef used(self, int64_t time_ns)
    cpdef observe_mtu(self, int64_t payload)
    cpdef set_up(self, int64_t id, str transport, list ips, list qpns, object paired_by)
    cpdef Incidents met(self)
    cpdef is_in(self, object first, object second)
    cpdef has_around(self, int64_t side, object around)
    cpdef has_progress(self, int64_t side, Progress progress)

    @cython.locals(met=Incidents)
    cpdef note_missed(self, object event)

    @cython.locals(met=Incidents)
    cpdef note_unfilled(self, object event)

    @cython.locals(met=Incidents)
    cpdef note_jump(self, object event)

    @cython.locals(met=Incidents)
    cpdef note_stray(self, object event)

    @cython.locals(met=Incidents)
    cpdef note_copied_ack(self, object frame)

    @cython.locals(met=Incidents)
    cpdef note_bad_icrc(self, object frame)

    cpdef note_end(self, int64_t side, int64_t overtaken, object recovery)
    cpdef int64_t psns_of_read(self, int64_t length)


@cython.locals(connection=Connection)
cpdef Connection connected(int64_t id, str transport, list ips, list qpns, object paired_by)


@cython.locals(connection=Connection, ips=list, qpns=list, row=Py_ssize_t)
cpdef ends_of(list connections, dict numbers, int64_t[:, ::1] found)


@cython.locals(connection=Connection, a=Progress, b=Progress, here=bint, there=bint, of_a=bint, of_b=bint)
cpdef tuple requesting_sides(list connections, object first)


@cython.locals(connection=Connection, again=int64_t)
cpdef bint came_again(object connections, int64_t least, int64_t often)


@cython.locals(
    connection=Connection, ips=list, qpns=list, around=tuple, row=Py_ssize_t, here=uint64_t, there=uint64_t,
    mixed=uint64_t,
)
cpdef mixed_ends(list connections, uint64_t[::1] ends, uint64_t[:, ::1] found)


@cython.locals(connection=Connection, incidents=Incidents, row=Py_ssize_t, troubles=int64_t)
cpdef weights_of(list connections, int64_t[:, ::1] found)


@cython.locals(
    connection=Connection,
    incidents=Incidents,
    naks=int64_t,
    retransmitted=int64_t,
    copies=int64_t,
    bad_icrcs=int64_t,
    gaps=int64_t,
    unfilled=int64_t,
    strays=int64_t,
    unreliable=int64_t,
    is_unreliable=bint,
)
cpdef totals_of(list connections)
