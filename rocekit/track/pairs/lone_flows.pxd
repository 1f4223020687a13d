# The types of lone_flows.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.bulk cimport Chains
from rocekit.track.connections cimport Connection, connected
from rocekit.track.lobby cimport Lobby, is_due
from rocekit.track.pairing cimport Pairing
from rocekit.track.pairs.waiting cimport Flow, hosts_key

cdef tuple ENDS
cdef tuple TRANSPORT
cdef Flow LONE
cdef int64_t REQUEST
cdef int64_t OFTEN
cdef int64_t _BATCH
cdef int64_t _ROW
cdef int64_t _ORDER
cdef int64_t _NEXT
cdef int64_t _LAST
cdef int64_t _COUNT
cdef int64_t _WIDTH
cdef int64_t _LEAST
cdef int64_t _NONE
cdef int64_t _FOREVER_NS
cdef int64_t _BATCHES


@cython.final
cdef class LoneTable:
    cdef public int64_t count
    cdef public int64_t end
    cdef public int64_t[::1] _words
    cdef public int64_t _room
    cdef public list _batches
    cdef public int64_t[::1] _left
    cdef public Py_ssize_t _batch
    cdef public Rows _latest

    @cython.locals(at=int64_t, batch=Py_ssize_t)
    cpdef int64_t add(self, Rows r, Py_ssize_t i, int64_t order, int64_t first)

    cdef _begin(self, Rows r)
    cdef _grow(self)
    cpdef Rows rows(self, int64_t at)
    @cython.locals(found=int64_t)
    cpdef int64_t row(self, int64_t at)
    @cython.locals(found=int64_t)
    cpdef int64_t order(self, int64_t at)
    @cython.locals(found=int64_t)
    cpdef int64_t after(self, int64_t at)
    @cython.locals(found=int64_t)
    cpdef int64_t together(self, int64_t first)
    @cython.locals(r=Rows)
    cpdef int64_t time_ns(self, int64_t at)
    cpdef lead(self, int64_t at, int64_t first, int64_t gone)
    @cython.locals(batch=int64_t)
    cpdef take_out(self, int64_t at)


cdef class LoneFlows(Pairing):
    cdef public LoneTable _lone

    @cython.locals(
        number=int64_t, lone=LoneTable, chains=Chains, opcode=int64_t, key=int64_t, first=int64_t, before=Rows,
        order=int64_t
    )
    cpdef bint _stays_lone(self, Rows r, Py_ssize_t i)

    @cython.locals(
        at=int64_t, after=int64_t, r=Rows, i=Py_ssize_t, order=int64_t, flow=Flow, lobby=Lobby
    )
    cpdef _know(self, int64_t key)

    cpdef _know_any(self, int64_t key)

    @cython.locals(at=int64_t)
    cpdef list _lone_times(self)

    @cython.locals(first=int64_t)
    cpdef _let_all_go(self, int64_t key, int64_t since_ns)

    @cython.locals(lobby=Lobby, flows=list, flow=Flow)
    cpdef _end_waiting(self, object found)

    @cython.locals(waited=list, connection=Connection)
    cpdef _end_flow(self, Flow flow)

    @cython.locals(lone=LoneTable, at=int64_t, r=Rows, i=Py_ssize_t)
    cpdef _know_all(self)

    @cython.locals(
        lone=LoneTable, addresses=list, at=int64_t, after=int64_t, r=Rows, i=Py_ssize_t, connection=Connection,
        gone=int64_t
    )
    cpdef int64_t _end_lone(self, int64_t first, int64_t since_ns=*)
