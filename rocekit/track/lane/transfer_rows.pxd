# The types of transfer_rows.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.transfers cimport Transfer

cdef int64_t NEXT
cdef int64_t ID
cdef int64_t FIRST_PSN
cdef int64_t PACKETS
cdef int64_t FIRST_NS
cdef int64_t FIRST_FRAME
cdef int64_t LAST_NS
cdef int64_t LAST_FRAME
cdef int64_t BYTES
cdef int64_t WHAT
cdef int64_t VA
cdef int64_t KEY
cdef int64_t ANNOUNCED
cdef int64_t ACK_NS
cdef int64_t ACK_FRAME
cdef int64_t EXTRA
cdef int64_t WIDTH
cdef int64_t OPCODE_MASK
cdef int64_t IS_ENDED
cdef int64_t IS_A_READ
cdef int64_t IS_ACKED
cdef int64_t HAS_IMMEDIATE
cdef int64_t HAS_INVALIDATE
cdef int64_t IS_MADE


@cython.final
cdef class TransferRows:
    cdef public int64_t[::1] words
    cdef public int64_t _free
    cdef public int64_t _end
    cdef public int64_t _room
    cdef public dict objects

    @cython.locals(at=int64_t)
    cpdef int64_t new(self) except -1 nogil

    cdef _grow(self)

    @cython.locals(at=int64_t)
    cpdef int64_t begin(self, int64_t id, int64_t psn, Rows r, Py_ssize_t i, bint with_reth) except -1 nogil

    cpdef void complete(self, int64_t at, int64_t time_ns, int64_t frame) noexcept nogil

    @cython.locals(following=int64_t)
    cpdef int64_t free(self, int64_t at)

    cpdef bint is_over(self, int64_t at, bint reliable)

    @cython.locals(last_ns=int64_t)
    cpdef int64_t duration_ns(self, int64_t at)

    cpdef note_extra(self, int64_t at, int64_t flag, object value)
    cpdef int64_t last_psn(self, int64_t at) noexcept nogil

    @cython.locals(w=int64_t[::1])
    cpdef fill(self, int64_t at, Transfer transfer, int64_t opcode)

    cpdef keep(self, int64_t at, Transfer transfer)

    @cython.locals(w=int64_t[::1], what=int64_t, transfer=Transfer, extra=int64_t)
    cpdef Transfer object_of(self, int64_t at, object connection, int64_t side, bint reliable)


cpdef bint is_plain(Transfer transfer)
