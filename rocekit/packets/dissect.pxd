# The types of dissect.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rocekit.packets.dissecting.plain_frames cimport PlainFrames
from rocekit.packets.walk cimport Walk

cdef int64_t _IPV4
cdef int64_t _IPV6
cdef int64_t _ROCE_V1
cdef int64_t _TAG
cdef int64_t _OUTER_TAG
cdef int64_t _OLD_TAG
cdef int64_t _ETHERNET
cdef int64_t _SLL
cdef int64_t _SLL2
cdef int64_t _IPV4_KIND
cdef int64_t _IPV6_KIND
cdef int64_t _IPV4_BYTES
cdef int64_t _IPV6_BYTES
cdef int64_t _UDP
cdef int64_t _UDP_BYTES
cdef int64_t _PORT
cdef int64_t _HOP_BY_HOP
cdef int64_t _ROUTING
cdef int64_t _FRAGMENT
cdef int64_t _OPTIONS
cdef int64_t _MOST_EXTENSIONS
cdef int64_t _GRH_BYTES
cdef int64_t _GRH_NEXT_BTH
cdef int64_t _MAPPED
cdef int64_t _CUT
cdef int64_t _SHORT
cdef int64_t _IP_LENGTH
cdef int64_t _UDP_LENGTH
cdef int64_t _PAD
cdef int64_t _UNKNOWN_OPCODE
cdef int64_t _PAYLOAD
cdef int64_t _CHECKSUM
cdef int64_t _VERSION
cdef int64_t _GRH_VERSION
cdef int64_t _BTH_BYTES
cdef int64_t _QPN_MASK
cdef int64_t _PSN_MASK
cdef int64_t _ICRC_BYTES
cdef int64_t _NO_OPCODE
cdef int64_t _WORDS
cdef int64_t _ROWS
cdef Py_ssize_t _KINDS_OF_HEADERS
cdef int64_t _HAS_GRH

cdef int64_t _join(int64_t first, int64_t second, int64_t third, int64_t fourth) noexcept nogil
cdef uint64_t _long(uint64_t high, uint64_t low) noexcept nogil
cdef bint _is_tag(int64_t ethertype) noexcept nogil
cdef bint _is_extension(int64_t following) noexcept nogil

@cython.locals(total=int64_t)
cdef bint _is_checksum_right(
    int64_t first, int64_t second, int64_t third, int64_t source, int64_t destination, int64_t options
) noexcept nogil


@cython.final
cdef class Dissector(PlainFrames):
    cdef public int64_t wrapped
    cdef public int64_t later_fragments
    cdef public int64_t malformed_count
    cdef public int64_t fragment_count
    cdef int64_t _start
    cdef int64_t _limit
    cdef int64_t _wire
    cdef Walk _walk
    cdef bint _wraps
    cdef const int64_t[::1] _places
    cdef const int64_t[::1] _lengths
    cdef const int64_t[::1] _bits

    cdef void _loop(self, Py_ssize_t frames)

    @cython.locals(i=Py_ssize_t, begin=int64_t, ethertype=int64_t, count=int64_t, link=int64_t, walking=bint)
    cdef void _every(self, Py_ssize_t frames) noexcept nogil

    @cython.locals(kind=int64_t)
    cdef int64_t _inside(self, bint walking) noexcept nogil

    cdef inline int64_t _read(self, int64_t at) noexcept nogil
    cdef inline int64_t _byte(self, int64_t at) noexcept nogil

    @cython.locals(place=int64_t, version=int64_t, ethertype=int64_t, tag=int64_t)
    cdef int64_t _link(self, int64_t begin, int64_t linktype) noexcept nogil

    @cython.locals(start=int64_t, first=int64_t, second=int64_t, third=int64_t, length=int64_t, at=int64_t, ports=int64_t, n=Py_ssize_t, wrong=bint, source=int64_t, destination=int64_t, options=int64_t, fragment=bint, malformed=int64_t)
    cdef void _ipv4(self) noexcept nogil

    @cython.locals(total=int64_t, place=int64_t, word=int64_t)
    cdef int64_t _sum_of_options(self, int64_t length) noexcept nogil

    @cython.locals(start=int64_t, at=int64_t, first=int64_t, second=int64_t, following=int64_t, fragment=bint, later=bint, headers=int64_t, extension=int64_t, there=bint, ports=int64_t)
    cdef void _ipv6(self) noexcept nogil

    @cython.locals(start=int64_t, first=int64_t, second=int64_t, bth=int64_t, n=Py_ssize_t, end=int64_t)
    cdef void _grh(self) noexcept nogil

    @cython.locals(at=int64_t, n=Py_ssize_t)
    cdef void _ipv6_columns(self, int64_t first, int64_t second) noexcept nogil

    @cython.locals(n=Py_ssize_t, limit=int64_t, wire=int64_t, bth=int64_t, udp_end=int64_t, end=int64_t, truncated=bint)
    cdef void _over_udp(self, int64_t at, int64_t sport, int64_t ip_end, bint fragment, int64_t malformed) noexcept nogil

    @cython.locals(n=Py_ssize_t, base=Py_ssize_t, opcode=int64_t, row=int64_t, need=int64_t, readable=int64_t, has=int64_t, word=int64_t, words=int64_t, room=int64_t, payload=int64_t, w=Py_ssize_t)
    cdef void _transport(self, int64_t bth, int64_t end, int64_t limit, bint truncated) noexcept nogil

    @cython.locals(n=Py_ssize_t, has=int64_t, place=int64_t)
    cdef int64_t _cut(self, int64_t row, int64_t readable) noexcept nogil

    cdef void _mark(self, int64_t code) noexcept nogil
