# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Values as the text of JSON documents: what ``json.JSONEncoder`` writes, byte for byte.

Python's encoder is slow where it indents: it is not written in C there. Documents of many connections have
tens of millions of values, and a live trace is to end soon after Ctrl-C. No fast library indents by one
space, or writes ASCII alone. Compiled, values go straight into bytes; else Python's encoder works.

An iterator is written as a list: so what a document has millions of need not be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from json import JSONEncoder
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, Final

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

if cython.compiled:
    from cython.cimports.cpython.exc import PyErr_CheckSignals
    from cython.cimports.cpython.long import PyLong_AsLongLongAndOverflow
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.stdlib import free, realloc
    from cython.cimports.libc.string import memcpy, memmove

#: Bytes that are handed on at once.
_PIECE: Final = 1 << 18
#: The deepest document. Ours have a dozen levels; what is part of itself has no end.
_DEEPEST: Final = 500
#: More bytes than a number of 64 bits has.
_LONGEST: Final = 24
_SPACE: Final = 0x20
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_DELETE: Final = 0x7F
_NEWLINE: Final = 0x0A
_ZERO: Final = 0x30
_MINUS: Final = 0x2D
_TEN: Final = 10


def line(value: Any, *, ascii: bool = False) -> str:
    """A document without spaces and newlines."""
    if not cython.compiled:
        return _plain(ascii=ascii, indent=None).encode(value)
    pieces: list[str] = []
    writer = _Writer(pieces.append, ascii=ascii, indent=False)
    writer.document(value)
    return pieces[0] if len(pieces) == 1 else "".join(pieces)


def indented(value: Any, write: Callable[[str], object], *, ascii: bool = False) -> None:
    """Write a document, indented by one space a level, in pieces.

    Args:
        ascii: whether characters beyond ASCII are escaped.
    """
    if cython.compiled:
        _Writer(write, ascii=ascii, indent=True).document(value)
        return
    some: list[str] = []
    for piece in _plain(ascii=ascii, indent=1).iterencode(value):
        some.append(piece)  # a piece is a word or a bracket
        if len(some) == _PIECE:
            write("".join(some))
            some.clear()
    write("".join(some))


def _plain(*, ascii: bool, indent: int | None) -> JSONEncoder:
    """Python's encoder; nothing that is written here is part of itself."""
    separators = None if indent else (",", ":")
    return JSONEncoder(
        ensure_ascii=ascii, indent=indent, separators=separators, check_circular=False, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    """What Python's encoder makes of an iterator.

    Raises:
        TypeError: it is none, and nothing that a document can have.
    """
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _Writer:
    """Writes one document; it only runs compiled.

    Args:
        sink: takes each piece of the text.
    """

    def __init__(self, sink: Callable[[str], object], *, ascii: bool, indent: bool) -> None:
        self._sink = sink
        self._ascii, self._indent = ascii, indent
        self._text, self._size, self._at = cython.NULL, 0, 0
        self._room(_LONGEST)

    def __dealloc__(self) -> None:
        free(self._text)

    def document(self, value: Any) -> None:
        """Write it, and hand all of its text on."""
        self._value(value, 0)
        self._hand_on()

    def _hand_on(self) -> None:
        PyErr_CheckSignals()  # Ctrl-C does not wait for the whole document
        # A character of half a pair is no UTF-8, and stays what it is.
        self._sink(self._text[: self._at].decode("utf-8", "surrogatepass"))
        self._at = 0

    def _room(self, more: int) -> None:
        """Make sure that so many bytes can follow."""
        if self._at + more > self._size:
            size = max(self._size * 2, self._at + more, 512)
            text = cython.cast("unsigned char *", realloc(self._text, size))
            if text == cython.NULL:
                raise MemoryError
            self._text, self._size = text, size

    def _put(self, byte: int) -> None:
        self._room(1)
        self._text[self._at] = byte
        self._at += 1

    def _copy(self, text: bytes) -> None:
        size = len(text)
        self._room(size)
        memcpy(self._text + self._at, cython.cast("const unsigned char *", text), size)
        self._at += size

    def _newline(self, depth: int) -> None:
        if self._indent:
            self._room(depth + 1)
            self._text[self._at] = _NEWLINE
            for i in range(depth):
                self._text[self._at + 1 + i] = _SPACE
            self._at += 1 + depth

    def _value(self, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            raise RecursionError("a JSON document is deeper than any of ours")
        if type(value) is str:
            self._string(value)
        elif value is None:
            self._copy(b"null")
        elif value is True:
            self._copy(b"true")
        elif value is False:
            self._copy(b"false")
        elif type(value) is int:
            self._integer(value)
        elif type(value) is dict:
            self._object(value, depth)
        elif type(value) is list or type(value) is tuple:
            self._array(value, depth)
        else:
            self._rare(value, depth)
        if self._at >= _PIECE:
            self._hand_on()

    def _rare(self, value: Any, depth: int) -> None:
        """Numbers with a point, and what is of a class that is like one of the others."""
        if isinstance(value, str):
            self._string(str.__str__(value))
        elif isinstance(value, int):
            self._copy(int.__repr__(value).encode())
        elif isinstance(value, dict):
            self._object(dict(value), depth)
        elif isinstance(value, (list, tuple)):
            self._array(list(value), depth)
        elif isinstance(value, Iterator):
            self._array(value, depth)
        else:  # Python's encoder knows the words of what is no number, and says what cannot be written
            self._copy(_plain(ascii=True, indent=None).encode(value).encode())

    def _object(self, value: dict[Any, Any], depth: int) -> None:
        if not value:
            self._copy(b"{}")
            return
        self._put(ord("{"))
        first = True
        for key, item in value.items():
            if not first:
                self._put(ord(","))
            first = False
            self._newline(depth + 1)
            if type(key) is str:
                self._string(key)
            else:
                self._string(_key(key))
            self._put(ord(":"))
            if self._indent:
                self._put(_SPACE)
            self._value(item, depth + 1)
        self._newline(depth)
        self._put(ord("}"))

    def _array(self, value: Any, depth: int) -> None:
        self._put(ord("["))
        first = True
        for item in value:
            if not first:
                self._put(ord(","))
            first = False
            self._newline(depth + 1)
            self._value(item, depth + 1)
        if not first:
            self._newline(depth)
        self._put(ord("]"))

    def _string(self, value: str) -> None:
        """A string that needs no escape is copied; Python escapes the others."""
        size = 0
        try:
            text = PyUnicode_AsUTF8AndSize(value, cython.address(size))
        except UnicodeEncodeError:
            self._escaped(value)
            return
        self._room(size + 2)
        out = self._text + self._at
        out[0] = _QUOTE
        for i in range(size):
            byte = text[i]
            if byte < _SPACE or byte in (_QUOTE, _BACKSLASH) or (self._ascii and byte >= _DELETE):
                self._escaped(value)
                return
            out[i + 1] = byte
        out[size + 1] = _QUOTE
        self._at += size + 2

    def _escaped(self, value: str) -> None:
        text = encode_basestring_ascii(value) if self._ascii else encode_basestring(value)
        self._copy(text.encode("utf-8", "surrogatepass"))

    def _integer(self, value: Any) -> None:
        overflow = 0
        number = PyLong_AsLongLongAndOverflow(value, cython.address(overflow))
        if overflow:
            self._copy(int.__repr__(value).encode())
            return
        self._room(2 * _LONGEST)
        out = self._text + self._at
        rest = cython.cast("unsigned long long", number)
        if number < 0:
            rest = 0 - rest
            out[0] = _MINUS
            out += 1
            self._at += 1
        begin = _LONGEST  # the digits come from the last one on
        while True:
            begin -= 1
            above = rest // _TEN
            out[begin] = _ZERO + rest - above * _TEN
            rest = above
            if not rest:
                break
        memmove(out, out + begin, _LONGEST - begin)
        self._at += _LONGEST - begin


def _key(key: Any) -> str:
    """A key that is no string, or of a class of strings, as Python's encoder makes one of it."""
    if isinstance(key, str):
        return str.__str__(key)
    text = _plain(ascii=False, indent=None).encode({key: 0})  # {"…":0}
    return text[2 : len(text) - 4]
