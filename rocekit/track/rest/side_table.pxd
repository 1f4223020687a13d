# The types of side_table.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.bulk cimport Chain
from rocekit.track.connections cimport Connection
from rocekit.track.assembly cimport ends
from rocekit.track.ledger cimport Sink, opened
from rocekit.track.pairs.waiting cimport Flow
from rocekit.track.progress cimport Progress, unstarted
from rocekit.track.requests cimport Requests, requests_of
from rocekit.track.rest.sides cimport PackedSide, woken
from rocekit.track.transfers cimport Transfer

cdef tuple KINDS
cdef tuple OPERATION
cdef tuple STARTS
cdef tuple ENDS
cdef frozenset _SENT_WHOLE
cdef int64_t ECN_CE
cdef int64_t REQUEST
cdef int64_t RESPONSE


cdef class SideTable(Sink):
    cdef public list _sides
    cdef public Requests _spare
    cdef public dict _turnarounds

    cpdef _count(self, Connection connection, Rows r, Py_ssize_t i)
    cpdef _dispatch(self, Flow flow, Connection connection, Rows r, Py_ssize_t i, int64_t kind)
    cpdef bint _replay_chain(self, Flow flow, Connection connection, Chain chain)

    @cython.locals(requests=Requests, r=Rows, i=Py_ssize_t)
    cpdef Requests _awake(self, Connection connection, int64_t side)

    cpdef Requests _side(self, Connection connection, int64_t side)

    @cython.locals(requests=Requests)
    cpdef Requests _requests(self, Connection connection, int64_t side)

    @cython.locals(r=Rows, i=Py_ssize_t, connection=Connection, side=int64_t, opcode=int64_t)
    cdef bint _keeps_alone(self, Flow flow, tuple waiting)

    @cython.locals(requests=Requests, side=int64_t, rested=bint)
    cpdef _end(self, Connection connection)

    @cython.locals(requests=Requests, progress=Progress, opcode=int64_t)
    cdef _end_alone(self, Connection connection, int64_t side, Rows r, Py_ssize_t i)

    @cython.locals(psn=int64_t, opcode=int64_t, transfer=Transfer)
    cdef _end_message(self, Connection connection, int64_t side, Rows r, Py_ssize_t i, Progress progress)
