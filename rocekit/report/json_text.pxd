# The types of json_text.py where it is compiled; see setup.py.
cimport cython

cdef Py_ssize_t _PIECE
cdef Py_ssize_t _DEEPEST
cdef Py_ssize_t _LONGEST
cdef unsigned char _SPACE
cdef unsigned char _QUOTE
cdef unsigned char _BACKSLASH
cdef unsigned char _DELETE
cdef unsigned char _NEWLINE
cdef unsigned char _ZERO
cdef unsigned char _MINUS
cdef unsigned long long _TEN


@cython.final
cdef class _Writer:
    cdef object _sink
    cdef bint _ascii
    cdef bint _indent
    cdef unsigned char *_text
    cdef Py_ssize_t _size
    cdef Py_ssize_t _at

    cpdef document(self, object value)
    cdef int _hand_on(self) except -1

    @cython.locals(size=Py_ssize_t, text=cython.p_uchar)
    cdef int _room(self, Py_ssize_t more) except -1
    cdef inline int _put(self, unsigned char byte) except -1

    @cython.locals(size=Py_ssize_t)
    cdef int _copy(self, bytes text) except -1

    @cython.locals(i=Py_ssize_t)
    cdef inline int _newline(self, Py_ssize_t depth) except -1
    cdef int _value(self, object value, Py_ssize_t depth) except -1
    cdef int _rare(self, object value, Py_ssize_t depth) except -1

    @cython.locals(first=bint)
    cdef void _object(self, dict value, Py_ssize_t depth) except *

    @cython.locals(first=bint)
    cdef void _array(self, object value, Py_ssize_t depth) except *

    @cython.locals(size=Py_ssize_t, text=cython.p_const_char, out=cython.p_uchar, i=Py_ssize_t, byte=cython.uchar)
    cdef void _string(self, str value) except *
    cdef int _escaped(self, str value) except -1

    @cython.locals(
        overflow=cython.int, number=cython.longlong, rest=cython.ulonglong, above=cython.ulonglong, out=cython.p_uchar,
        begin=Py_ssize_t
    )
    cdef void _integer(self, object value) except *
