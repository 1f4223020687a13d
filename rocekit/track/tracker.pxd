# The types of tracker.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.lobby cimport Flow, Lobby
from rocekit.track.pairing cimport Pairing, flow_key
from rocekit.packets.rows cimport Rows
from rocekit.track.bulk cimport Chains
from rocekit.track.kept cimport Kept
from rocekit.track.requests cimport Requests
from rocekit.track.transfers cimport Transfer

cdef tuple KINDS
cdef int64_t REQUEST
cdef int64_t RESPONSE
cdef int64_t DATAGRAM
cdef int64_t CNP
cdef Py_ssize_t _GROUP


cdef class Tracker(Pairing):
    cdef public list transfers
    cdef public object left_out
    cdef public Kept _kept
    cdef public int64_t _began
    cdef public object cm
    cdef public list malformed
    cdef public list bad_icrc
    cdef public bint icrc_ignored
    cdef public bint _valid
    cdef public object _suspects
    cdef public set _distrusted
    cdef public object _on_end
    cdef public object _on_change
    cdef public object _on_cm
    cdef public object _datagrams
    cdef public object _mads
    cdef public object _waiting
    cdef public tuple _tail

    cpdef int64_t next_id(self)
    cpdef began(self, Transfer transfer)
    cpdef ended(self, Transfer transfer)
    cpdef settled(self, list transfers)
    cpdef bint forgets(self)
    cpdef given_up(self, list transfers)
    cpdef changed(self, Transfer transfer)

    @cython.locals(kind=int64_t, flow=Flow, partner=Flow, connection=Connection)
    cpdef _take(self, Rows r, Py_ssize_t i)

    @cython.locals(rows=Rows, chains=Chains, i=Py_ssize_t, count=Py_ssize_t, end=Py_ssize_t)
    cpdef feed(self, object packets, object mads=*)

    @cython.locals(number=int64_t, requests=Requests, connection=Connection, room=int64_t)
    cpdef _expect(self, Flow flow)

    @cython.locals(partner=Flow)
    cpdef _settle(self, Flow flow)

    @cython.locals(flow=Flow, number=int64_t, numbers=list, group=list, start=Py_ssize_t)
    cpdef _settle_all(self)

    @cython.locals(flow=Flow, number=int64_t, touched=int64_t, connection=Connection, requests=Requests, partner=Flow)
    cpdef _fetch_flows(self, list numbers)

    cpdef _part(self, Flow flow)

    cpdef int64_t _last(self, Flow flow)

    @cython.locals(last=int64_t, chains=Chains, connection=Connection, r=Rows, requests=Requests, count=int64_t)
    cpdef _go_on(self, Flow flow)
