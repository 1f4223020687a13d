# The types of bulk.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int32_t, int64_t

from rocekit.packets.rows cimport Rows

cdef int64_t MASK
cdef int64_t ECN_CE
cdef int64_t _PSN
cdef int64_t _OPCODE
cdef int64_t _PAYLOAD
cdef int64_t _ROOM
cdef int64_t _COUNT
cdef int64_t _FIRST
cdef int64_t _LAST
cdef int64_t _LOBBY
cdef int64_t _WIDTH
cdef int64_t _MOST
cdef int64_t _CHAINED
cdef int64_t _DUE_NS
cdef int64_t _LOBBY_WIDTH
cdef int64_t _BETWEEN_BITS
cdef int64_t _NOTHING
cdef tuple _MIDDLE


cdef int64_t _TIME
cdef int64_t _FRAME
cdef int64_t _WHICH
cdef int64_t _PACKET_WIDTH
cdef int64_t _BLOCK
cdef int64_t _LAST_OF_BLOCK
cdef int64_t _NEXT_BLOCK
cdef int64_t _ID_BITS
cdef int64_t _ID_MASK
cdef int64_t _ROW_BITS
cdef int64_t _ROW_MASK
cdef int64_t _BATCHES
cdef int64_t _ROOM_FOR
cdef int64_t _PER_PACKET
cdef int64_t _LEAST_ROOM


@cython.final
cdef class ChainedPackets:
    cdef public int64_t[::1] words
    cdef public int64_t room
    cdef public int64_t end
    cdef public list batches
    cdef public list bases

    cpdef int64_t begin(self, Rows r, int64_t base)

    @cython.locals(at=int64_t)
    cpdef int64_t add(self, Rows r, Py_ssize_t i, int64_t batch, int64_t before)

    @cython.locals(following=int64_t)
    cpdef int64_t after(self, int64_t packet)
    @cython.locals(found=int64_t)
    cpdef int64_t time_ns(self, int64_t packet)
    @cython.locals(found=int64_t)
    cpdef int64_t frame(self, int64_t packet)
    cpdef int64_t ip_id(self, int64_t packet)
    cpdef int64_t row(self, int64_t packet)
    cpdef Rows rows(self, int64_t packet)
    @cython.locals(base=int64_t)
    cpdef int64_t order(self, int64_t packet)


@cython.final
cdef class Chain:
    cdef public ChainedPackets packets
    cdef public int64_t first
    cdef public int64_t last
    cdef public int64_t count

    cpdef int64_t begins(self)
    cpdef int64_t ends(self)
    cpdef int64_t last_ns(self)

    @cython.locals(packets=ChainedPackets, packet=int64_t, after=int64_t, count=int64_t)
    cpdef Chain cut(self, int64_t order)


@cython.locals(chain=Chain)
cdef Chain chained(ChainedPackets packets, int64_t first, int64_t last, int64_t count)


@cython.final
cdef class Chains:
    cdef public int32_t[::1] _state
    cdef public int64_t _flows
    cdef public int64_t[::1] _lobbies
    cdef public int64_t lobbies
    cdef public int64_t held
    cdef public int64_t waiters
    cdef public int64_t chaining
    cdef public int64_t row
    cdef public ChainedPackets _packets
    cdef public int64_t _batch
    cdef public int64_t _before
    cdef public int64_t _between
    cdef public list open
    cdef public Rows rows

    @cython.locals(packets=ChainedPackets)
    cpdef bint has_room(self, Rows r)

    @cython.locals(r=Rows, packets=ChainedPackets, at=int64_t, flow=int64_t, i=Py_ssize_t, lobby=int64_t, packet=int64_t)
    cpdef Py_ssize_t takes(self, Py_ssize_t start, Py_ssize_t end)

    cpdef int64_t last(self, int64_t flow)
    cpdef int64_t first(self, int64_t flow)
    cpdef int64_t count(self, int64_t flow)
    cpdef clear(self, int64_t flow)
    cpdef request(self, int64_t flow, int64_t opcode)
    cpdef int64_t opcode(self, int64_t flow)

    @cython.locals(at=int64_t)
    cpdef expect(self, int64_t flow, int64_t psn, int64_t payload, int64_t room)

    cpdef int64_t order_of(self, Rows r, Py_ssize_t i)
    cpdef int64_t lobby(self)
    cpdef limit(self, int64_t lobby, int64_t most, int64_t due_ns)
    cpdef int64_t chained(self, int64_t lobby)
    cpdef await_more(self, int64_t flow, int64_t psn, int64_t payload, int64_t room, int64_t lobby)

    @cython.locals(at=int64_t, last=int64_t, count=int64_t, lobby=int64_t)
    cpdef Chain take(self, int64_t flow)
