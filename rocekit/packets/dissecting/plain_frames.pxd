# The types of plain_frames.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef int64_t _LINK
cdef int64_t _LINK_BYTES
cdef int64_t _ETHERTYPE
cdef int64_t _FIRST_BYTE
cdef int64_t _IP_BYTES
cdef int64_t _UDP
cdef int64_t _UDP_BYTES
cdef int64_t _PORT
cdef int64_t _MAPPED
cdef int64_t _BTH_AT
cdef int64_t _LEAST
cdef int64_t _QPN_MASK
cdef int64_t _PSN_MASK
cdef int64_t _ICRC_BYTES
cdef int64_t _WORDS
cdef int64_t _HAS_AETH
cdef int64_t _HAS_RETH
cdef int64_t _HAS_KEY

cdef extern from *:
    """
    static CYTHON_INLINE int64_t big_half(const uint8_t *at) {
        return (int64_t)at[0] << 8 | at[1];
    }
    static CYTHON_INLINE int64_t big_word(const uint8_t *at) {
        return (int64_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
    }
    """
    int64_t big_half(const uint8_t *at) noexcept nogil
    int64_t big_word(const uint8_t *at) noexcept nogil


cdef class PlainFrames:
    cdef public dict columns
    cdef public int64_t count
    cdef public int64_t truncated_count
    cdef const uint8_t[::1] _buffer
    cdef int64_t _size
    cdef const int64_t[::1] _offset
    cdef const int64_t[::1] _caplen
    cdef const int64_t[::1] _wirelen
    cdef const int64_t[::1] _linktype
    cdef const int64_t[::1] _need
    cdef const int64_t[::1] _has_of
    cdef const int64_t[::1] _known
    cdef const int64_t[::1] _payloadless
    cdef const int64_t[::1] _syndrome_at
    cdef const int64_t[::1] _va_at
    cdef const int64_t[::1] _rkey_at
    cdef const int64_t[::1] _length_at
    cdef public int64_t[::1] layer
    cdef public int64_t[::1] ethertype
    cdef public int64_t[::1] index
    cdef public int64_t[::1] start
    cdef public int64_t[::1] bth
    cdef public int64_t[::1] end
    cdef public int64_t[::1] limit
    cdef public uint8_t[::1] truncated
    cdef public uint8_t[::1] ip_version
    cdef public uint8_t[::1] roce_version
    cdef public uint8_t[::1] tclass
    cdef public uint8_t[::1] hop_limit
    cdef public int32_t[::1] flow_label
    cdef public uint16_t[::1] ip_id
    cdef public uint16_t[::1] udp_sport
    cdef public int32_t[::1] vlan
    cdef public uint8_t[::1] priority
    cdef public uint64_t[::1] source_high
    cdef public uint64_t[::1] source_low
    cdef public uint64_t[::1] destination_high
    cdef public uint64_t[::1] destination_low
    cdef public uint8_t[::1] fragment
    cdef public uint8_t[::1] malformed
    cdef public uint8_t[::1] checkable
    cdef public int64_t[::1] opcode
    cdef public uint16_t[::1] has
    cdef public int32_t[::1] payload_length
    cdef public int64_t[::1] payload_at
    cdef public int64_t[::1] dest_qpn
    cdef public int64_t[::1] psn
    cdef public int64_t[::1] syndrome
    cdef public uint64_t[::1] remote_va
    cdef public int64_t[::1] rkey
    cdef public int64_t[::1] dma_length
    cdef public int64_t[::1] wrapped_row
    cdef public uint64_t[::1] chain
    cdef public uint64_t[::1] scope
    cdef public uint32_t[::1] words

    cpdef begin(self, Py_ssize_t frames)

    @cython.final
    cdef inline int64_t _word(self, int64_t at) noexcept nogil

    @cython.final
    cdef inline int64_t _half(self, int64_t at) noexcept nogil

    cdef Py_ssize_t _take_plain(self, Py_ssize_t i, Py_ssize_t frames) noexcept nogil

    @cython.final
    @cython.locals(
        begin=int64_t, limit=int64_t, ip=int64_t, first=int64_t, second=int64_t, third=int64_t,
        source=int64_t, destination=int64_t, total=int64_t, udp=int64_t, bth=int64_t, end=int64_t,
        head=int64_t, opcode=int64_t, need=int64_t, room=int64_t, payload=int64_t, n=Py_ssize_t,
        truncated=bint, has=int64_t, base=Py_ssize_t, word=int64_t
    )
    cdef inline bint _take(self, Py_ssize_t i) noexcept nogil

    @cython.locals(at=Py_ssize_t, high=uint64_t)
    cdef void _fields(self, Py_ssize_t n, int64_t row, int64_t has, Py_ssize_t base) noexcept nogil
