# The types of kept.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.track.connections cimport Connection
from rocekit.track.transfers cimport Transfer

cdef int64_t READ_KIND

cdef str ACKED
cdef str SENT
cdef str UNACKNOWLEDGED


cpdef bint is_over(Transfer transfer)
cdef int64_t OFTEN


@cython.final
cdef class Kept:
    cdef public dict _left_out
    cdef public Py_ssize_t _slowest
    cdef public list _slow
    cdef public list _slow_unanswered
    cdef public list _kept
    cdef public dict _standing
    cdef public list _under_way

    cpdef add(self, Transfer transfer)

    @cython.locals(last=Transfer)
    cpdef _take_out(self, Transfer transfer)

    @cython.locals(transfer=Transfer, n=int64_t)
    cpdef settle(self, object transfers)

    @cython.locals(transfer=Transfer)
    cpdef give_up(self, object transfers)

    @cython.locals(
        slow=list, unanswered=bint, standing=Transfer, connection=Connection, last_ns=int64_t, kind=int64_t, key=int64_t, duration_ns=int64_t,
        least_ns=int64_t, number=int64_t
    )
    cpdef _drop(self, Transfer transfer)

    @cython.locals(slow=list, standing=Transfer)
    cpdef bint leaves_out(
        self, Connection connection, int64_t side, int64_t kind, str status, int64_t size, int64_t duration_ns
    )

    @cython.locals(transfer=Transfer, connection=Connection, counted=int64_t)
    cpdef _count_rest(self)

    @cython.locals(transfer=Transfer, connection=Connection)
    cpdef list finish(self)

    @cython.locals(transfer=Transfer)
    cpdef forget(self)


@cython.locals(before=int64_t, transfer=Transfer)
cpdef list in_order(list transfers)
