# The types of recent.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.rest.numbers cimport NumberReader, NumberWriter

cdef int64_t FOLLOWED
cdef int64_t ID_MASK
cdef int64_t NEAR_IDS
cdef int64_t _SLOT
cdef int64_t _WORDS
cdef int64_t _ID_BITS
cdef int64_t _MSN_BITS
cdef int64_t _MSN_MASK
cdef int64_t _ID_UNIT
cdef int64_t _MSN_UNIT
cdef int64_t _NOTHING_SENT
cdef int64_t _FEW
cdef int64_t _FEW_COVERED

@cython.final
cdef class AllSlots:
    cdef int64_t[128] words  # RING slots of two words


@cython.final
cdef class RecentResponses:
    cdef public int64_t followed
    cdef public int64_t broke
    cdef public int64_t _newest
    cdef int64_t[64] _ring  # RING words

    @cython.locals(step=int64_t)
    cpdef void came(self, int64_t p, int64_t ip_id) noexcept nogil

    @cython.locals(counts=bint)
    cpdef bint is_late(self, int64_t ip_id)

    @cython.locals(word=int64_t)
    cpdef int64_t id_of(self, int64_t p) noexcept nogil

    @cython.locals(slot=int64_t, word=int64_t)
    cpdef bint was(self, int64_t p, int64_t ip_id)


@cython.final
cdef class Recent:
    # What each packet needs comes first, in one line of a cache.
    cdef public int64_t last_tx_ns
    cdef public int64_t _last_id
    cdef public int64_t _mask
    cdef AllSlots _ring
    cdef public int64_t ids_followed
    cdef int64_t[16] _few  # _FEW slots
    cdef public int64_t ids_broke
    cdef public int64_t last_rx_ns
    cdef public int64_t back_ns
    cdef public int64_t once_from
    cdef public int64_t turnaround_ns
    cdef public int64_t timed
    cdef public int64_t overtaken
    cdef public int64_t _covered
    cdef AllSlots _covered_ring
    cdef int64_t[8] _few_covered  # _FEW_COVERED slots
    cdef public dict _first_said
    cdef public RecentResponses _responses

    @cython.locals(before=int64_t, at=int64_t, word=int64_t)
    cpdef pack(self, NumberWriter out)

    cdef int64_t _pack_slot(self, NumberWriter out, int64_t word, int64_t before, int64_t time_ns)

    @cython.locals(before=int64_t, at=int64_t, word=int64_t)
    cpdef unpack(self, NumberReader data)

    @cython.locals(ring=AllSlots, slot=int64_t, word=int64_t, to=int64_t)
    cpdef _grow(self)

    @cython.locals(word=int64_t)
    cpdef int64_t _sent_word(self, int64_t at) noexcept nogil

    @cython.locals(at=int64_t)
    cpdef int64_t _sent_at(self, int64_t p) noexcept nogil

    @cython.locals(word=int64_t)
    cpdef int64_t _covered_word(self, int64_t at) noexcept nogil

    @cython.locals(at=int64_t)
    cpdef int64_t _covered_at(self, int64_t p) noexcept nogil

    cpdef int64_t _covered_anew(self, int64_t p) noexcept nogil

    @cython.locals(ring=AllSlots, n=int64_t, word=int64_t, to=int64_t)
    cpdef _cover_all(self)

    cpdef void sent(self, Rows r, Py_ssize_t i, int64_t p) noexcept nogil

    @cython.locals(at=int64_t, step=int64_t)
    cpdef void sent_as(self, int64_t ip_id, int64_t time_ns, int64_t p) noexcept nogil

    @cython.locals(at=int64_t)
    cpdef int64_t sent_psn(self, int64_t p) noexcept nogil

    @cython.locals(at=int64_t)
    cpdef int64_t sent_id(self, int64_t p) noexcept nogil

    @cython.locals(at=int64_t)
    cpdef int64_t sent_ns(self, int64_t p) noexcept nogil

    @cython.locals(sent_ns=int64_t)
    cdef int64_t _sent_time_ns(self, int64_t at) noexcept nogil

    cdef void _put_sent(self, int64_t at, int64_t word, int64_t time_ns) noexcept nogil

    cpdef int64_t last_sent_ns(self, int64_t p)

    @cython.locals(at=int64_t, end=int64_t, word=int64_t)
    cpdef bint is_shared_id(self, int64_t ip_id, int64_t p)

    cpdef bint counts_ids(self)
    cpdef bint is_newest(self, int64_t ip_id)

    cpdef bint seems_newest(self, int64_t ip_id)

    cpdef bint comes_after(self, int64_t ip_id, int64_t before)

    @cython.locals(newest=int64_t, slot=int64_t, ip_id=int64_t, at=int64_t, word=int64_t)
    cpdef int64_t newest_id(self)

    @cython.locals(at=int64_t, end=int64_t, ip_id=int64_t, word=int64_t)
    cpdef bint was_overtaken(self, Rows r, Py_ssize_t i)

    cpdef bint is_late(self, Rows r, Py_ssize_t i, int64_t p, bint seen)

    @cython.locals(at=int64_t, slot=int64_t)
    cpdef void covered(self, int64_t upto, int64_t time_ns, int64_t msn) noexcept nogil

    cdef void _put_covered(self, int64_t at, int64_t word, int64_t time_ns) noexcept nogil

    cpdef _said_again(self, int64_t slot)

    cpdef void answered(self, int64_t p, int64_t time_ns) noexcept nogil
    cdef void _took(self, int64_t took_ns) noexcept nogil

    @cython.locals(q=int64_t)
    cpdef drew(self, int64_t p, int64_t high, int64_t time_ns)

    @cython.locals(at=int64_t)
    cpdef int64_t covered_upto(self, int64_t p) noexcept nogil

    @cython.locals(found=int64_t, at=Py_ssize_t, upto=int64_t, q=int64_t)
    cpdef int64_t covered_before(self, int64_t p, int64_t least)

    @cython.locals(at=int64_t)
    cpdef int64_t covered_msn(self, int64_t p)

    @cython.locals(at=int64_t)
    cpdef int64_t covered_ns(self, int64_t p)

    @cython.locals(ring=AllSlots, time_ns=int64_t)
    cpdef int64_t _covered_time_ns(self, int64_t at)

    @cython.locals(
        slot=int64_t, latest_ns=int64_t, covered_ns=int64_t, at=int64_t, upto=int64_t, said=int64_t,
        first_ns=int64_t
    )
    cpdef int64_t latest_response_ns(self, int64_t p, int64_t until_ns)

    cpdef void responded(self, int64_t p, int64_t ip_id) noexcept nogil
    cpdef bint is_late_response(self, int64_t ip_id)
    cpdef int64_t response_id(self, int64_t p)

    cpdef bint is_the_response(self, int64_t p, int64_t ip_id)
