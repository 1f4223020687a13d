# The types of tracking.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.assembly cimport Assembly
from rocekit.track.ledger cimport Sink
from rocekit.packets.rows cimport Rows
from rocekit.track.transfers cimport Event, Transfer

cdef int64_t HALF
cdef int64_t MASK
cdef int64_t RESYNC
cdef int64_t OUTSTANDING
cdef int64_t ACK
cdef tuple OPERATION
cdef tuple SYNDROME_KIND
cdef tuple STARTS
cdef tuple ENDS


cdef class Requests(Assembly):
    cdef public list awaiting
    cdef public bint dead
    cdef public Event again

    cpdef _set_up(self, Connection connection, int64_t side, Sink sink, bint reliable)

    @cython.locals(operation=str, expected=int64_t, p=int64_t, time_ns=int64_t, frame=int64_t, syndrome=int64_t, kind=int64_t, transfer=Transfer)
    cpdef respond(self, Rows r, Py_ssize_t i)

    @cython.locals(psn=int64_t, near=int64_t, p=int64_t, lowest=int64_t, refused=bint, first=Rows, row=Py_ssize_t)
    cpdef bint _started_by(self, Rows r, Py_ssize_t i, str operation)

    cpdef _acknowledge(self, int64_t upto, int64_t time_ns, int64_t frame)

    @cython.locals(transfer=Transfer, closed=Py_ssize_t)
    cpdef _settle(self)

    @cython.locals(first=int64_t, transfer=Transfer)
    cpdef _give_up(self, int64_t p)

    cpdef _mark_acked(self, Transfer transfer, int64_t time_ns, int64_t frame)

    cpdef _drop_unacked(self, Transfer transfer)

    @cython.locals(last=Event, event=Event, time_ns=int64_t, frame=int64_t)
    cpdef _response_again(self, Transfer transfer, Rows r, Py_ssize_t i, int64_t p, bint first_sight=*)

    @cython.locals(opcode=int64_t, transfer=Transfer, time_ns=int64_t, frame=int64_t, expected=int64_t)
    cpdef _read_response(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(ip_id=int64_t)
    cpdef bint _response_duplicate(self, Rows r, Py_ssize_t i, int64_t p)
