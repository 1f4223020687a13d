# The types of sides.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.assembly cimport Assembly
from rocekit.track.connections cimport Connection
from rocekit.track.kept cimport is_over
from rocekit.track.ledger cimport Ledger, Sink
from rocekit.track.outcomes cimport Outcomes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.requests cimport Requests, requests_of
from rocekit.track.responses cimport Responses
from rocekit.track.rest.numbers cimport NumberReader, NumberWriter
from rocekit.track.transfers cimport Transfer

cdef tuple _OPERATIONS
cdef dict _OPERATION_NUMBERS
cdef tuple _STATUSES
cdef dict _STATUS_NUMBERS
cdef int64_t _NEVER_NS
cdef int64_t _STATUS_BITS
cdef int64_t _OPERATION_BITS
cdef int64_t _IS_OBJECT
cdef int64_t _IS_UNACKED
cdef int64_t _IS_UNMADE
cdef int64_t _STARTED
cdef int64_t _ENDED
cdef int64_t _WITH_IMMEDIATE
cdef int64_t _WITH_INVALIDATE
cdef int64_t _BY_CUT
cdef int64_t _SEVERAL
cdef int64_t _HAS_KEY
cdef int64_t _HAS_LENGTH
cdef int64_t _HAS_ACK
cdef int64_t _HAS_NEXT
cdef int64_t _HAS_PARTICULARS


@cython.final
cdef class PackedSide:
    cdef public bytes data
    cdef public tuple objects
    cdef public int64_t unmade


cpdef object only_packet(Requests requests)


@cython.locals(progress=Progress, ledger=Ledger)
cpdef bint is_at_rest(Requests requests)


@cython.locals(
    recent=Recent, responses=Responses, ledger=Ledger, outcomes=Outcomes, out=NumberWriter, at=Py_ssize_t,
    end=Py_ssize_t, before=Transfer, transfer=Transfer, what=int64_t
)
cpdef PackedSide pack(Requests requests, list unmade)


cdef bint _is_plain(Transfer transfer, int64_t what)


cdef _pack_transfer(NumberWriter out, Transfer transfer, Transfer before, int64_t what)


@cython.locals(
    recent=Recent, responses=Responses, ledger=Ledger, outcomes=Outcomes, data=NumberReader, at=Py_ssize_t,
    _=int64_t, before=Transfer, transfer=Transfer, what=int64_t
)
cpdef unpack(PackedSide packed, Requests requests)


@cython.locals(transfer=Transfer, number=int64_t, psn=int64_t, span=int64_t, first_ns=int64_t)
cdef Transfer _unpack_transfer(
    NumberReader data, Connection connection, int64_t side, Transfer before, int64_t what
)


@cython.locals(requests=Requests)
cpdef Requests woken(PackedSide packed, Connection connection, int64_t side, Sink sink)
