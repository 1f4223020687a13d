# The types of assembly.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.repeats cimport GoBack
from rocekit.track.ledger cimport Sink
from rocekit.packets.rows cimport Rows
from rocekit.track.transfers cimport Event, Transfer

cdef int64_t HALF
cdef int64_t MASK
cdef tuple OPERATION
cdef tuple STARTS
cdef tuple ENDS


cdef class Assembly(GoBack):
    cdef public bint started
    cdef public int64_t begin
    cdef public int64_t ack_frame
    cdef public int64_t ack_msn
    cdef public list held
    cdef public dict ahead
    cdef public int64_t hole_ns

    cpdef _set_up(self, Connection connection, int64_t side, Sink sink, bint reliable)

    cpdef _settle(self)

    cpdef start(self, int64_t psn)
    cpdef _hold(self, Rows r, Py_ssize_t i)

    @cython.locals(near=int64_t, lowest=int64_t, first=int64_t, r=Rows, i=Py_ssize_t, held=list)
    cpdef _release(self, object psn)

    @cython.locals(r=Rows, i=Py_ssize_t, lowest=int64_t, p=int64_t)
    cpdef int64_t _lowest(self, list held, int64_t near)

    @cython.locals(expected=int64_t, p=int64_t)
    cpdef request(self, Rows r, Py_ssize_t i)

    @cython.locals(length=int64_t)
    cpdef int64_t _span(self, Rows r, Py_ssize_t i)

    @cython.locals(transfer=Transfer, seen=bint)
    cpdef bint _out_of_order(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(opcode=int64_t, operation=str, transfer=Transfer, span=int64_t)
    cpdef _assemble(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(transfer=Transfer, mtu=int64_t, length=int64_t)
    cpdef int64_t room(self, int64_t opcode)

    @cython.locals(transfer=Transfer, p=int64_t, _=int64_t, latest=Py_ssize_t, time_ns=int64_t)
    cpdef go_on(self, Rows r, Py_ssize_t i, int64_t[::1] after, int64_t count)

    @cython.locals(mtu=object)
    cpdef bint _past_end(self, Transfer transfer, int64_t p)

    cpdef _finish(self, Transfer transfer)
