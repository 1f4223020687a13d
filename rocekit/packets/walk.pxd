# The types of walk.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef int64_t _MOST
cdef uint64_t _MIXER
cdef uint64_t _WORD
cdef uint64_t _SHIFT
cdef int64_t _ETHERNET
cdef int64_t _IPV4
cdef int64_t _IPV6
cdef int64_t _GRH
cdef int64_t _ROUTING
cdef int64_t _VLAN
cdef int64_t _GRE
cdef int64_t _BELOW_MPLS
cdef int64_t _CONTROL_WORD
cdef int64_t _CHECKSUM
cdef int64_t _KEY
cdef int64_t _LEAST_VSID
cdef int64_t _SID_PREFIX
cdef int64_t _SEGMENT_ROUTING

cdef uint64_t _mixed(uint64_t value, uint64_t more) noexcept nogil


@cython.final
cdef class Walk:
    cdef public int64_t kind
    cdef public int64_t at
    cdef public int64_t vlan
    cdef public int64_t priority
    cdef public uint64_t chain
    cdef public uint64_t scope
    cdef const uint8_t[::1] _buffer
    cdef int64_t _size
    cdef int64_t _limit
    cdef int64_t _depth
    cdef uint64_t _before
    cdef const uint8_t[::1] _next
    cdef const int64_t[::1] _first
    cdef const int64_t[::1] _grows
    cdef const int64_t[::1] _length
    cdef const int64_t[::1] _grows_at
    cdef const int64_t[::1] _next_at
    cdef const int64_t[::1] _next_bytes
    cdef const int64_t[::1] _also_at
    cdef const int64_t[::1] _also_mask
    cdef const int64_t[::1] _value_at
    cdef const int64_t[::1] _value_shift
    cdef const int64_t[::1] _value_mask
    cdef const int64_t[::1] _apart
    cdef const int64_t[::1] _mirror
    cdef const int64_t[::1] _named
    cdef const int64_t[::1] _links
    cdef int64_t _known_links
    cdef int64_t[::1] _kinds
    cdef int64_t[::1] _places

    cpdef void clear(self) noexcept nogil
    cpdef void begin(self, int64_t begin, int64_t limit, int64_t linktype) noexcept nogil
    cdef void _enter(self, int64_t kind, int64_t at) noexcept nogil
    cpdef bint network(self) noexcept nogil

    @cython.locals(kind=int64_t, at=int64_t, grows=int64_t, behind=int64_t, width=int64_t, number=int64_t, following=int64_t, source=uint64_t, destination=uint64_t)
    cpdef void past(self) noexcept nogil

    @cython.locals(value=uint64_t)
    cdef void tag(self, int64_t word) noexcept nogil

    @cython.locals(value=uint64_t)
    cdef void _note(self, int64_t kind, int64_t at, int64_t following) noexcept nogil

    @cython.locals(flags=int64_t, key=int64_t)
    cdef int64_t _key(self, int64_t at, int64_t following) noexcept nogil

    @cython.locals(source=uint64_t, destination=uint64_t, segment=bint)
    cdef void _ipv6(self, int64_t kind, int64_t at) noexcept nogil

    cdef void _between(self, int64_t kind, uint64_t source, uint64_t destination, bint segment) noexcept nogil

    @cython.locals(first=int64_t)
    cdef int64_t _below_mpls(self, int64_t at) noexcept nogil

    @cython.locals(kind=int64_t, first=int64_t, grows=int64_t)
    cdef bint _is_ethernet(self, int64_t at) noexcept nogil

    # Without a sign: half of a number of 64 bits, which is shifted up.
    @cython.locals(word=uint64_t)
    cdef uint64_t _word(self, int64_t at) noexcept nogil
    cdef uint64_t _long(self, int64_t at) noexcept nogil
    cdef int64_t _byte(self, int64_t at) noexcept nogil
