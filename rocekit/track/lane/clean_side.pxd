# The types of clean_side.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.rows cimport Rows
from rocekit.track.connections cimport Connection
from rocekit.track.lane.transfer_rows cimport is_plain
from rocekit.track.ledger cimport Ledger
from rocekit.track.outcomes cimport Outcomes
from rocekit.track.progress cimport Progress
from rocekit.track.recent cimport Recent
from rocekit.track.repeats cimport Troubles
from rocekit.track.requests cimport Requests
from rocekit.track.transfers cimport Transfer

cdef str UNACKNOWLEDGED


@cython.final
cdef class CleanSide:
    # What each packet needs comes first, in one line of a cache or two.
    cdef public Requests requests
    cdef public Progress progress
    cdef public Recent recent
    cdef public CleanSide other
    cdef public bint on
    cdef public bint reliable
    cdef public bint counts_acks
    cdef public bint objects_open
    cdef public int64_t building
    cdef public int64_t reading
    cdef public int64_t mtu
    cdef public int64_t packets
    cdef public int64_t at
    cdef public int64_t open
    cdef public int64_t first
    cdef public int64_t last
    cdef public int64_t count
    cdef public int64_t before
    cdef public int64_t largest
    cdef public int64_t transfers
    cdef public Connection connection
    cdef public int64_t number
    cdef public object lane

    cpdef leave(self)
    cpdef void measure(self, int64_t payload) noexcept nogil
    cpdef clear(self)

    @cython.locals(requests=Requests, transfer=Transfer)
    cpdef bint reads_on(self, Rows r, Py_ssize_t i, int64_t p)


@cython.locals(progress=Progress, ledger=Ledger, outcomes=Outcomes, troubles=Troubles, building=Transfer, window=list,
    unacked=list,
)
cpdef bint is_clean(Requests requests)
