# The types of assembly.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event, happened
from rocekit.track.ledger cimport Ledger
from rocekit.track.outcomes cimport Outcomes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.transfers cimport Transfer

cdef int64_t AHEAD_RC
cdef int64_t AHEAD_UC
cdef int64_t AHEAD_UC_NS
cdef int64_t _STALE
cdef int64_t HALF
cdef int64_t MASK
cdef tuple OPERATION
cdef tuple STARTS
cdef tuple ENDS
cdef tuple _IMMEDIATE
cdef tuple _INVALIDATE
cdef int64_t OFTEN


@cython.final
cdef class Assembly:
    cdef public Connection connection
    cdef public Ledger ledger
    cdef public Progress progress
    cdef public Recent recent
    cdef public Outcomes outcomes
    cdef public dict ahead
    cdef public list _order
    cdef public Py_ssize_t _first
    cdef public list _asking
    cdef public int64_t hole_ns

    cpdef set_up(self, Ledger ledger, Progress progress, Recent recent, Outcomes outcomes)

    @cython.locals(high=int64_t, time_ns=int64_t, frame=int64_t, span=int64_t)
    cpdef beyond(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(last=int64_t)
    cpdef put_ahead(self, Rows r, Py_ssize_t i, int64_t p)
    cpdef clear(self)
    cpdef int64_t _lowest(self)
    cpdef int64_t highest(self)
    cpdef int64_t ahead_before(self, int64_t p)
    cpdef list _asked_before(self, int64_t p)

    @cython.locals(opcode=int64_t, operation=str, transfer=Transfer, open_read=Transfer, span=int64_t, mtu=int64_t)
    cpdef assemble(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(transfer=Transfer, mtu=int64_t, length=int64_t)
    cpdef int64_t room(self, int64_t opcode)

    @cython.locals(mtu=int64_t, length=int64_t)
    cpdef bint _past_end(self, Transfer transfer, int64_t p)

    @cython.locals(is_whole=bint)
    cpdef _finish(self, Transfer transfer)

    @cython.locals(rows=Rows, i=Py_ssize_t)
    cpdef drain(self)

    @cython.locals(to=int64_t, first=int64_t, last=int64_t, given_up=int64_t)
    cpdef skip(self, int64_t upto)


    @cython.locals(open_read=Transfer, asked=int64_t, q=int64_t, batch=Rows, rows=Rows, k=Py_ssize_t, row=Py_ssize_t)
    cpdef bint size_by_part(self, Rows r, Py_ssize_t i, int64_t p)


@cython.locals(opcode=int64_t)
cpdef ends(Connection connection, Transfer transfer, Rows r, Py_ssize_t i)
