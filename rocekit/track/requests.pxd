# The types of requests.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.assembly cimport Assembly
from rocekit.track.bulk cimport Chain, ChainedPackets
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event, happened
from rocekit.track.ledger cimport Ledger, Sink
from rocekit.track.outcomes cimport Outcomes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.responses cimport Responses
from rocekit.track.transfers cimport Transfer
from rocekit.track.repeats cimport Repeats, Troubles, troubles_of

cdef int64_t HALF
cdef int64_t MASK
cdef int64_t RESYNC
cdef tuple OPERATION


@cython.final
cdef class Requests:
    cdef public Connection connection
    cdef public Progress progress
    cdef public Recent recent
    cdef public Ledger ledger
    cdef public Outcomes outcomes
    cdef public Assembly assembly
    cdef public Responses responses
    cdef public object clean
    cdef public bint in_lane

    cpdef make_parts(self)

    @cython.locals(recent=Recent, ledger=Ledger, outcomes=Outcomes, assembly=Assembly)
    cpdef set_up(self, Connection connection, int64_t side, Sink sink, Progress progress)

    cpdef start(self, int64_t psn)

    @cython.locals(ledger=Ledger, assembly=Assembly, transfer=Transfer)
    cpdef finalise(self)

    @cython.locals(troubles=Troubles, connection=Connection)
    cpdef _recovery(self)
    cpdef _hold(self, Rows r, Py_ssize_t i)

    @cython.locals(r=Rows, i=Py_ssize_t, lowest=int64_t, p=int64_t, chain=Chain)
    cpdef int64_t _lowest(self, object held, int64_t near)

    @cython.locals(near=int64_t, lowest=int64_t, first=int64_t, r=Rows, i=Py_ssize_t, held=list, chain=Chain)
    cpdef _release(self, object psn)

    @cython.locals(progress=Progress, r=Rows, i=Py_ssize_t)
    cpdef bint chained(self, Chain chain)

    @cython.locals(expected=int64_t, p=int64_t, progress=Progress)
    cpdef request(self, Rows r, Py_ssize_t i)

    @cython.locals(troubles=Troubles)
    cpdef _goes_on(self, int64_t p)

    @cython.locals(troubles=Troubles)
    cpdef _note_step(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(operation=str, expected=int64_t, p=int64_t, progress=Progress)
    cpdef respond(self, Rows r, Py_ssize_t i)

    cpdef int64_t room(self, int64_t opcode)

    @cython.locals(transfer=Transfer, seen=bint, troubles=Troubles, repeats=Repeats)
    cpdef bint _out_of_order(self, Rows r, Py_ssize_t i, int64_t p)

    @cython.locals(
        transfer=Transfer, p=int64_t, n=int64_t, packets=ChainedPackets, packet=int64_t, latest=int64_t, time_ns=int64_t
    )
    cpdef go_on(self, Chain chain, int64_t payload)

    @cython.locals(psn=int64_t, near=int64_t, p=int64_t, lowest=int64_t, refused=bint, first=Rows, row=Py_ssize_t)
    cpdef bint _started_by(self, Rows r, Py_ssize_t i, str operation)


@cython.locals(requests=Requests)
cpdef Requests requests_of(Connection connection, int64_t side, Sink sink, Progress progress)
