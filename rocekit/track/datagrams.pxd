# The types of datagrams.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event, happened
from rocekit.track.ledger cimport Sink
from rocekit.track.transfers cimport Transfer

cdef int64_t REMEMBERED
cdef int64_t _QPN_BITS
cdef int64_t _NO_QPN
cdef tuple _HAS_IMMEDIATE


@cython.final
cdef class Datagrams:
    cdef public Sink _sink
    cdef public object _connect
    cdef public dict _ends
    cdef public bint _scoped
    cdef public dict _one_way
    cdef public set _both_ways
    cdef public dict _seen
    cdef public object _order

    @cython.locals(sender=object)
    cpdef tuple _plain_key(self, Rows r, Py_ssize_t i)

    @cython.locals(plain=tuple)
    cpdef tuple _key(self, Rows r, Py_ssize_t i)

    cpdef Connection _connected(self, Rows r, Py_ssize_t i)

    @cython.locals(connection=Connection, side=int64_t)
    cpdef _begin_scopes(self)

    @cython.locals(plain=tuple, known=tuple, connection=Connection, side=int64_t)
    cpdef tuple _meet(self, Rows r, Py_ssize_t i, tuple key)

    cpdef bint knows(self, Rows r, Py_ssize_t i)

    @cython.locals(
        key=tuple,
        known=tuple,
        copy=Event,
        connection=Connection,
        side=int64_t,
        time_ns=int64_t,
        frame=int64_t,
        psn=int64_t,
        length=int64_t,
        ip_id=int64_t,
        before=Transfer,
        before_id=int64_t,
        transfer=Transfer,
        identity=tuple,
    )
    cpdef Connection take(self, Rows r, Py_ssize_t i)
