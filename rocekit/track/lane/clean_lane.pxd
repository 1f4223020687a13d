# The types of clean_lane.py where it is compiled; see setup.py. What works without the interpreter's lock has
# no objects of its own, and gives a value even where nobody needs one: -1 says that it raised an error.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.connections cimport Connection
from rocekit.track.ledger cimport Ledger, Sink
from rocekit.track.outcomes cimport Outcomes
from rocekit.track.recent cimport Recent
from rocekit.track.repeats cimport Troubles
from rocekit.track.requests cimport Requests
from rocekit.track.lane.clean_side cimport CleanSide, is_clean
from rocekit.track.lane.fetching cimport fetch, fetch_counts
from rocekit.track.lane.leaving_rows cimport LeavingRows
from rocekit.track.lane.transfer_rows cimport TransferRows
from rocekit.track.transfers cimport Transfer

cdef int64_t ANNOUNCED
cdef int64_t BYTES
cdef int64_t EXTRA
cdef int64_t FIRST_PSN
cdef int64_t HAS_IMMEDIATE
cdef int64_t HAS_INVALIDATE
cdef int64_t IS_A_READ
cdef int64_t IS_ACKED
cdef int64_t IS_ENDED
cdef int64_t LAST_FRAME
cdef int64_t LAST_NS
cdef int64_t NEXT
cdef int64_t OPCODE_MASK
cdef int64_t PACKETS
cdef int64_t WHAT
cdef int64_t BEGINS_MESSAGE
cdef int64_t ENDS_MESSAGE
cdef int64_t HAS_IETH
cdef int64_t HAS_IMMDT
cdef int64_t HAS_RETH
cdef int64_t IS_ACK
cdef int64_t IS_DATA
cdef int64_t IS_OF
cdef int64_t IS_READ
cdef int64_t _SAYS_ACK
cdef int64_t _SHORT
cdef int64_t MANY
cdef int64_t NONE
cdef int64_t ECN_CE
cdef int64_t HALF
cdef int64_t MASK
cdef int64_t RESYNC
cdef int64_t WINDOW


cdef extern from "Python.h":
    void* PyList_GET_ITEM(list sides, Py_ssize_t flow) noexcept nogil  # counts no reference


@cython.final
cdef class CleanLane:
    cdef public Sink _sink
    cdef public bint wanted
    cdef public bint reports
    cdef public bint shows
    cdef public TransferRows rows
    cdef public LeavingRows _leaving
    cdef public list _sides
    cdef public list _touched
    cdef public Rows _batch
    cdef public Py_ssize_t _fetched
    cdef public int64_t[::1] _meanings
    cdef public int64_t[::1] _kinds

    cpdef begin(self, Rows r, int64_t flows)

    @cython.locals(few=Py_ssize_t, i=Py_ssize_t)
    cpdef Py_ssize_t takes(self, Rows r, Py_ssize_t start, Py_ssize_t end)

    @cython.locals(i=Py_ssize_t)
    cdef Py_ssize_t _stretch(self, Rows r, Py_ssize_t start, Py_ssize_t end) except -1 nogil

    @cython.locals(what=int64_t)
    cdef bint _take(self, CleanSide side, Rows r, Py_ssize_t i) except -1 nogil

    @cython.locals(payload=int64_t, p=int64_t, at=int64_t, announced=int64_t, psns=int64_t, has_room=bint)
    cdef bint _request(self, CleanSide side, TransferRows rows, Rows r, Py_ssize_t i, int64_t what) except -1 nogil

    @cython.locals(at=int64_t)
    cdef int64_t _open(self, CleanSide side, Rows r, Py_ssize_t i, int64_t what) except -1 nogil

    cdef void _append(self, CleanSide side, int64_t at) noexcept nogil

    cdef bint _close(
        self, CleanSide side, TransferRows rows, int64_t at, Rows r, Py_ssize_t i, int64_t what
    ) except -1 nogil

    @cython.locals(time_ns=int64_t, frame=int64_t, p=int64_t)
    cdef bint _ack(self, CleanSide side, Rows r, Py_ssize_t i) except -1 nogil

    @cython.locals(time_ns=int64_t, frame=int64_t, p=int64_t, at=int64_t, ends=bint)
    cdef bint _data(self, CleanSide side, TransferRows rows, Rows r, Py_ssize_t i, int64_t what) except -1 nogil

    cdef bint _complete(self, CleanSide side, int64_t at, int64_t time_ns, int64_t frame) except -1 nogil

    @cython.locals(at=int64_t)
    cdef bint _cover(self, CleanSide side, TransferRows rows, int64_t p, int64_t time_ns, int64_t frame) except -1 nogil

    cpdef send_on(self, int64_t flow, CleanSide side)
    cpdef forget_flows(self)
    cpdef bint knows(self, int64_t opcode)

    @cython.locals(ledger=Ledger, outcomes=Outcomes, building=Transfer, at=int64_t, troubles=Troubles)
    cpdef enter(self, CleanSide side, Requests requests)

    @cython.locals(transfer=Transfer)
    cpdef leave(self, CleanSide side)

    cpdef list hand_over(self, CleanSide side)
    cpdef end(self, CleanSide side)

    @cython.locals(connection=Connection, other=CleanSide, at=int64_t)
    cpdef flush(self, CleanSide side)

    @cython.locals(side=CleanSide, seen=CleanSide, n=Py_ssize_t, fetched=Py_ssize_t)
    cpdef over(self)


cdef inline bint _take_of(CleanLane lane, list sides, Rows r, Py_ssize_t i) except -1 nogil:
    return lane._take(<CleanSide>PyList_GET_ITEM(sides, r.flow[i]), r, i)
