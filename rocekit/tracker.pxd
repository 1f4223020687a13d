# The types of tracker.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.connections cimport Connection
from rocekit.ledger cimport Sink
from rocekit.pairing cimport Flow, Lobby
from rocekit.rows cimport Rows
from rocekit.runs cimport Runs
from rocekit.shortlist cimport Shortlist
from rocekit.tracking cimport Requests
from rocekit.transfers cimport Transfer

cdef tuple _KINDS
cdef int64_t _IGNORED
cdef int64_t _REQUEST
cdef int64_t _RESPONSE
cdef int64_t _DATAGRAM
cdef int64_t _CNP
cdef int64_t _QPN_BITS
cdef int64_t _ADDRESS_BITS
cdef int64_t _ECN_CE

cpdef int64_t _flow_key(Rows r, Py_ssize_t i)


cdef class Tracker(Sink):
    cdef public list connections
    cdef public list transfers
    cdef public object left_out
    cdef public Shortlist _shortlist
    cdef public int64_t _began
    cdef public object cm
    cdef public list malformed
    cdef public list bad_icrc
    cdef public int64_t stray_cnps
    cdef public bint icrc_ignored
    cdef public bint _valid
    cdef public object _suspects
    cdef public set _distrusted
    cdef public object _told
    cdef public object _on_end
    cdef public object _on_change
    cdef public object _on_connection
    cdef public object _on_cm
    cdef public dict _flows
    cdef public list _by_number
    cdef public Runs _runs
    cdef public dict _lobbies
    cdef public object _datagrams
    cdef public list _addresses
    cdef public object _mads
    cdef public tuple _tail

    cpdef int64_t next_id(self)
    cpdef began(self, Transfer transfer)
    cpdef ended(self, Transfer transfer)
    cpdef settled(self, list transfers)
    cpdef changed(self, Transfer transfer)

    @cython.locals(kind=int64_t, flow=Flow, partner=Flow, connection=Connection)
    cpdef _take(self, Rows r, Py_ssize_t i)

    @cython.locals(time_ns=int64_t)
    cpdef _count(self, Connection connection, Rows r, Py_ssize_t i)

    @cython.locals(side=int64_t, requests=Requests)
    cpdef _dispatch(self, Flow flow, Connection connection, Rows r, Py_ssize_t i, int64_t kind)

    @cython.locals(rows=Rows, runs=Runs, i=Py_ssize_t)
    cpdef feed(self, object packets, object mads=*)

    @cython.locals(number=int64_t, flow=Flow)
    cpdef Flow _flow(self, Rows r, Py_ssize_t i)

    @cython.locals(number=int64_t, requests=Requests, connection=Connection, room=int64_t)
    cpdef _expect(self, Flow flow)

    @cython.locals(partner=Flow, first=Flow, second=Flow)
    cpdef _settle(self, Flow flow)

    cpdef int64_t _last(self, Flow flow)

    @cython.locals(last=int64_t, runs=Runs, connection=Connection, r=Rows, requests=Requests, count=int64_t)
    cpdef _go_on(self, Flow flow)

    cpdef Lobby _lobby(self, Flow flow)

    @cython.locals(lobby=Lobby, partner=Flow, length=int64_t)
    cpdef _wait(self, Flow flow, Rows r, Py_ssize_t i, int64_t kind)

    @cython.locals(flow=Flow, r=Rows, i=Py_ssize_t)
    cpdef _replay(self, list waited)
