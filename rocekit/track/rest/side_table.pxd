# The types of side_table.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.connections cimport Connection
from rocekit.track.ledger cimport Sink
from rocekit.track.pairs.waiting cimport Flow
from rocekit.track.progress cimport Progress
from rocekit.track.requests cimport Requests, requests_of
from rocekit.track.rest.sides cimport PackedSide, woken

cdef tuple KINDS
cdef tuple OPERATION
cdef int64_t REQUEST
cdef int64_t RESPONSE


cdef class SideTable(Sink):
    cdef public list _sides
    cdef public Requests _spare

    cpdef Requests _awake(self, Connection connection, int64_t side)

    cpdef Requests _side(self, Connection connection, int64_t side)

    @cython.locals(requests=Requests)
    cpdef Requests _requests(self, Connection connection, int64_t side)

    @cython.locals(r=Rows, i=Py_ssize_t, connection=Connection, side=int64_t, opcode=int64_t)
    cdef bint _keeps_alone(self, Flow flow, tuple waiting)

    @cython.locals(requests=Requests, side=int64_t, rested=bint)
    cpdef _end(self, Connection connection)

    @cython.locals(requests=Requests, progress=Progress)
    cdef _end_alone(self, Connection connection, int64_t side, Rows r, Py_ssize_t i)
