# The types of record_loops.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint8_t

cdef int64_t _RECORD
cdef int64_t _ENHANCED
cdef int64_t _ENHANCED_LEAST
cdef int64_t _AHEAD

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define prefetch(at) __builtin_prefetch(at)
    #else
    #define prefetch(at)
    #endif
    """
    void prefetch(const uint8_t *at) noexcept nogil

cdef int64_t _word(int64_t first, int64_t second, int64_t third, int64_t fourth, bint big_endian) noexcept nogil

cdef int64_t _word_at(const uint8_t[::1] buffer, int64_t place, bint big_endian) noexcept nogil

@cython.locals(last=int64_t, place=int64_t, after=int64_t, ahead=int64_t, caplen=int64_t, count=Py_ssize_t)
cpdef tuple walk_pcap(
    const uint8_t[::1] buffer, int64_t start, int64_t end, bint big_endian, int64_t largest, int64_t[::1] out,
    Py_ssize_t room
)

@cython.locals(last=int64_t, place=int64_t, after=int64_t, total=int64_t, least=int64_t)
cpdef tuple walk_enhanced(
    const uint8_t[::1] buffer, int64_t start, int64_t end, bint big_endian, int64_t[::1] out, Py_ssize_t count,
    Py_ssize_t room
)

@cython.locals(place=int64_t, big_endian=bint)
cpdef Py_ssize_t walk_ring(
    const uint8_t[::1] buffer, int64_t start, Py_ssize_t packets, int64_t[::1] out, Py_ssize_t count
)
