# The types of ledger.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.connections cimport Connection
from rocekit.track.events cimport Event
from rocekit.track.progress cimport Progress
from rocekit.track.transfers cimport Transfer, begun

cdef int64_t _NEAR
cdef tuple _HAS_RETH


cpdef bint _is_before(Event event, Event other)


cdef class Sink:
    cdef public int64_t numbered

    cpdef int64_t next_id(self)
    cpdef began(self, Transfer transfer)
    cpdef made(self, Transfer transfer)
    cpdef bint leaves_out(
        self, Connection connection, int64_t side, int64_t kind, str status, int64_t size, int64_t duration_ns
    )
    cpdef changed(self, Transfer transfer)
    cpdef ended(self, Transfer transfer)
    cpdef settled(self, list transfers)
    cpdef bint forgets(self)
    cpdef tuple shortest(self, tuple hosts, int64_t turnaround_ns, int64_t timed)
    cpdef given_up(self, list transfers)


@cython.final
cdef class Ledger:
    cdef public Connection connection
    cdef public int64_t side
    cdef public Sink sink
    cdef public Progress progress
    cdef public list window
    cdef public Transfer building
    cdef public Transfer open_read
    cdef public list pending
    cdef public bint asks
    cdef public object troubles
    cdef public int64_t _numbers

    cpdef set_up(self, Connection connection, int64_t side, Sink sink, Progress progress)

    @cython.locals(at=Py_ssize_t, transfer=Transfer)
    cpdef Transfer find(self, int64_t p)

    @cython.locals(at=Py_ssize_t, near=Py_ssize_t, low=Py_ssize_t, high=Py_ssize_t, transfer=Transfer)
    cpdef Py_ssize_t _before(self, int64_t p)

    @cython.locals(at=Py_ssize_t)
    cpdef bint has_answered_between(self, int64_t first, int64_t end)
    cpdef bint is_full(self)
    cpdef list drop_oldest(self)

    @cython.locals(transfer=Transfer)
    cpdef Transfer open(self, Rows r, Py_ssize_t i, int64_t p, str operation)

    cpdef add(self, Transfer transfer)
    cpdef touch(self, Transfer transfer, Rows r, Py_ssize_t i)
    cpdef touch_at(self, Transfer transfer, int64_t time_ns, int64_t frame)

    cpdef extend(self, Transfer transfer, int64_t time_ns, int64_t frame)

    cpdef Event attribute(self, Event event)

    @cython.locals(last=Event)
    cpdef Event give(self, Transfer transfer, Event event)

    @cython.locals(last=Event)
    cpdef Event go_on(
        self, Transfer transfer, int64_t run, int64_t p, int64_t time_ns, int64_t frame, int64_t size,
        int64_t first_sight
    )

    cpdef _sent_again(self, Transfer transfer, int64_t time_ns, int64_t frame)

    @cython.locals(heap=list, at=Py_ssize_t, parent=Py_ssize_t, above=Event)
    cpdef _wait(self, int64_t number, Event event)

    @cython.locals(first=Event, last=Event, end=Py_ssize_t, at=Py_ssize_t, child=Py_ssize_t, below=Event)
    cpdef Event _take_first(self, list heap)

    @cython.locals(
        end=int64_t, heap=list, first=Event, due=list, event=Event, transfer=Transfer, last=Transfer, number=int64_t
    )
    cpdef give_pending(self)

    @cython.locals(event=Event)
    cpdef give_up_pending(self)

    @cython.locals(event=Event)
    cpdef _forget_pending(self)
    cpdef stray(self, Event event)
    cpdef clear(self)


@cython.locals(time_ns=int64_t, frame=int64_t, opcode=int64_t, transfer=Transfer)
cpdef Transfer opened(
    Sink sink, Connection connection, int64_t side, Rows r, Py_ssize_t i, int64_t p, str operation
)
