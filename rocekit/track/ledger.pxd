# The types of ledger.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.packets.rows cimport Rows
from rocekit.track.transfers cimport Event, Transfer, begun


cdef class Sink:
    cpdef int64_t next_id(self)
    cpdef began(self, Transfer transfer)
    cpdef changed(self, Transfer transfer)
    cpdef ended(self, Transfer transfer)
    cpdef settled(self, list transfers)
    cpdef bint forgets(self)
    cpdef given_up(self, list transfers)


cdef class Ledger:
    cdef public Connection connection
    cdef public int64_t side
    cdef public Sink sink
    cdef public bint reliable
    cdef public int64_t expected
    cdef public int64_t high
    cdef public int64_t acked
    cdef public Transfer open_read
    cdef public Transfer building
    cdef public list unacked
    cdef public list window
    cdef public list firsts
    cdef public list pending

    cpdef _set_up(self, Connection connection, int64_t side, Sink sink, bint reliable)

    @cython.locals(at=Py_ssize_t, transfer=Transfer)
    cpdef Transfer _find(self, int64_t p)

    @cython.locals(time_ns=int64_t, frame=int64_t, opcode=int64_t, transfer=Transfer)
    cpdef Transfer _open(self, Rows r, Py_ssize_t i, int64_t p, str operation)

    cpdef _give_up(self, int64_t p)

    @cython.locals(time_ns=int64_t, frame=int64_t)
    cpdef _touch(self, Transfer transfer, Rows r, Py_ssize_t i)

    cpdef _extend(self, Transfer transfer, int64_t time_ns, int64_t frame)

    cpdef Event _attribute(self, Event event)

    @cython.locals(last=Event)
    cpdef Event _give(self, Transfer transfer, Event event)
