# The types of leaving_rows.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.lane.clean_side cimport CleanSide
from rocekit.track.lane.transfer_rows cimport TransferRows
from rocekit.track.ledger cimport Sink
from rocekit.track.requests cimport Requests
from rocekit.track.transfers cimport Transfer

cdef int64_t BYTES
cdef int64_t IS_A_READ
cdef int64_t IS_ACKED
cdef int64_t IS_MADE
cdef int64_t NEXT
cdef int64_t NONE
cdef int64_t PACKETS
cdef int64_t READ_KIND
cdef int64_t WHAT
cdef int64_t WINDOW


@cython.final
cdef class LeavingRows:
    cdef public TransferRows _rows
    cdef public Sink _sink

    @cython.locals(is_made=int64_t, transfer=Transfer)
    cpdef report(self, CleanSide side, int64_t at, bint shows)

    @cython.locals(at=int64_t)
    cpdef list hand_over(self, CleanSide side)

    @cython.locals(at=int64_t, forgets=bint, transfer=Transfer)
    cpdef end(self, CleanSide side)

    @cython.locals(requests=Requests, what=int64_t, transfer=Transfer)
    cpdef int64_t make(self, CleanSide side, int64_t at, list unmade)

    @cython.locals(requests=Requests, objects=Py_ssize_t, at=int64_t, _=int64_t, window=list, settled=list)
    cpdef bint drop_oldest(self, CleanSide side)

    @cython.locals(
        rows=TransferRows, status=str, what=int64_t, duration_ns=int64_t, kind=int64_t,
        transfer=Transfer
    )
    cpdef int64_t settle(self, CleanSide side, int64_t at)
