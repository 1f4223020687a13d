# The types of cm_exchanges.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t

from rocekit.packets.wrapping cimport Wrapping
from rocekit.track.connections cimport Connection


cdef int64_t _SOON_NS
cdef double _SOON
cdef double _AT_ONCE


@cython.final
cdef class CmRecord:
    cdef public int64_t frame
    cdef public int64_t time_ns
    cdef public str message
    cdef public str src
    cdef public str dst
    cdef public object transaction_id  # 64 bits, without a sign
    cdef public object cm
    cdef public Exchange exchange
    cdef public bint repeated
    cdef public bint duplicated
    cdef public int64_t ip_id
    cdef public Wrapping around


@cython.final
cdef class Exchange:
    cdef public str src
    cdef public str dst
    cdef public CmRecord request
    cdef public list records
    cdef public CmRecord reply
    cdef public Connection connection


@cython.final
cdef class Exchanges:
    cdef public list records
    cdef public list exchanges
    cdef public dict _by_ids
    cdef public dict _seen

    @cython.locals(record=CmRecord, before=CmRecord, exchange=Exchange)
    cpdef CmRecord take(
        self, object mad, int64_t frame, int64_t time_ns, str src, str dst, int64_t ip_id=*, Wrapping around=*
    )

    @cython.locals(exchange=Exchange, record=CmRecord)
    cdef Exchange _of(self, CmRecord record, tuple key)

    @cython.locals(known=Exchange, exchange=Exchange)
    cdef _request(self, CmRecord record, object local)


@cython.locals(other=CmRecord)
cdef bint _has_other(Exchange exchange, CmRecord record)


@cython.locals(timeout_ns=int64_t, share=double)
cdef bint _is_copy(CmRecord record, CmRecord before)
