# The types of line_loop.py where it is compiled; see setup.py.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef int64_t _DECIMAL
cdef int64_t _HEX
cdef int64_t _SECONDS
cdef int64_t _WORD
cdef Py_ssize_t _STEP
cdef uint64_t _BILLION
cdef uint64_t _TEN
cdef uint64_t _HUNDRED
cdef uint8_t _ZERO
cdef uint8_t _SPACE
cdef uint8_t _NEWLINE
cdef uint8_t _HEX_DIGITS
cdef uint8_t _X
cdef uint8_t _MINUS
cdef uint8_t _POINT

@cython.locals(digits=Py_ssize_t, limit=uint64_t)
cdef Py_ssize_t _digits(uint64_t value) noexcept nogil


@cython.final
cdef class LineLoop:
    cdef uint8_t[::1] _out
    cdef const uint8_t[::1] _text
    cdef const int64_t[::1] _steps
    cdef const int64_t[::1] _begins
    cdef const int64_t[::1] _word_at
    cdef const int64_t[::1] _word_size
    cdef const int64_t[::1] _word_width
    cdef bint _strip
    cdef const uint8_t[::1] _pairs

    cpdef Py_ssize_t write(
        self, const int64_t[::1] kinds, const int64_t[:, ::1] columns, Py_ssize_t first, Py_ssize_t last
    )

    @cython.locals(
        at=Py_ssize_t, row=Py_ssize_t, begin=Py_ssize_t, step=Py_ssize_t, place=Py_ssize_t, form=int64_t,
        value=int64_t, width=Py_ssize_t
    )
    cdef Py_ssize_t _every(
        self, const int64_t[::1] kinds, const int64_t[:, ::1] columns, Py_ssize_t first, Py_ssize_t last
    ) noexcept nogil

    cdef inline Py_ssize_t _copy(self, Py_ssize_t at, Py_ssize_t place, Py_ssize_t size) noexcept nogil

    @cython.locals(i=Py_ssize_t)
    cdef inline Py_ssize_t _pad(self, Py_ssize_t at, Py_ssize_t count) noexcept nogil

    cdef inline Py_ssize_t _word(self, Py_ssize_t at, Py_ssize_t word, Py_ssize_t width) noexcept nogil

    @cython.locals(digits=Py_ssize_t)
    cdef inline Py_ssize_t _number(self, Py_ssize_t at, uint64_t value, Py_ssize_t width, bint negative) noexcept nogil

    @cython.locals(place=Py_ssize_t, above=uint64_t, pair=Py_ssize_t)
    cdef inline Py_ssize_t _decimal(self, Py_ssize_t at, uint64_t value, Py_ssize_t digits) noexcept nogil

    @cython.locals(i=Py_ssize_t, digits=Py_ssize_t, above=uint64_t, digit=uint8_t)
    cdef inline Py_ssize_t _hex(self, Py_ssize_t at, uint64_t value, Py_ssize_t width) noexcept nogil

    @cython.locals(negative=bint, seconds=uint64_t, digits=Py_ssize_t)
    cdef inline Py_ssize_t _time(self, Py_ssize_t at, int64_t value, Py_ssize_t width) noexcept nogil
