# The types of sums.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

cdef int64_t _UNKNOWN
cdef int64_t _MANY
cdef int64_t _AHEAD
cdef int64_t _SRC
cdef int64_t _DST
cdef int64_t _QPN
cdef int64_t _PACKETS
cdef int64_t _PAYLOAD
cdef int64_t _FIRST_NS
cdef int64_t _LAST_NS
cdef int64_t _FIRST_PSN
cdef int64_t _FIRST_FRAME
cdef int64_t _SHAPE
cdef int64_t _SIZE
cdef int64_t _SIZE_FRAME
cdef int64_t _KINDS
cdef int64_t _WIDTH
cdef int64_t _FRAME_BITS
cdef int64_t _DSCP_BITS
cdef int64_t _ECN_BITS
cdef int64_t _KEY
cdef int64_t _COUNT
cdef int64_t _FIRST
cdef int64_t _FRAME
cdef int64_t _NEXT
cdef int64_t _SLOT


@cython.final
cdef class FlowSums:
    cdef public dict shapes
    cdef public dict sizes
    cdef public dict _extremes
    cdef public int64_t _flows
    cdef public int64_t _slots
    cdef public int64_t _room
    cdef public int64_t _fed
    cdef public int64_t _touched
    cdef public int64_t[::1] _rows
    cdef public int64_t[::1] _chains
    cdef const int64_t[::1] _requests
    cdef const int64_t[::1] _full

    @cython.locals(
        i=Py_ssize_t, at=int64_t, number=int64_t, code=int64_t, reference=int64_t, tag=int64_t, shape=int64_t,
        capture=int64_t, port=int64_t, fetched=Py_ssize_t
    )
    cpdef _loop(
        self, const uint8_t[::1] keep, const int64_t[::1] flow, const int64_t[::1] src,
        const int64_t[::1] dst, const int64_t[::1] qpn, const int64_t[::1] opcode,
        const uint8_t[::1] tclass, const int32_t[::1] payload, const int64_t[::1] time_ns,
        const int64_t[::1] frame, const int32_t[::1] file, const int64_t[::1] psn, const uint16_t[::1] sport,
        const int32_t[::1] vlan, const uint8_t[::1] priority, const uint8_t[::1] version
    )

    @cython.locals(i=Py_ssize_t, at=int64_t, slot=int64_t, touched=int64_t)
    cdef int64_t _fetch(self, const int64_t[::1] flow, Py_ssize_t start, Py_ssize_t end) noexcept nogil

    @cython.locals(slot=int64_t, head=int64_t, before=int64_t)
    cdef int64_t _count(self, int64_t at, int64_t key, int64_t reference) except -1 nogil

    cpdef _make_room(self)

    @cython.locals(slot=int64_t)
    cdef int64_t _new_count(self, int64_t key, int64_t reference, int64_t following) noexcept nogil

    cpdef _note_shape(self, int64_t number, int64_t shape)
    cpdef _note_size(self, int64_t number, int64_t size, int64_t reference)
