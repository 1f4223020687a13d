# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The loop that writes lines of packets as bytes: it follows the steps that ``lines`` makes of templates.

The caller gives it room for the longest lines that the steps can make, so it needs no checks of its own.
It only runs compiled. Elsewhere ``lines`` formats the templates, which gives the same text.
"""

from __future__ import annotations

from typing import Any, Final

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

#: What a step writes behind its literal text; a number is aligned to the right, a word to the left.
NOTHING, DECIMAL, UNSIGNED, HEX, SECONDS, WORD = range(6)
_DECIMAL: Final = DECIMAL
_UNSIGNED: Final = UNSIGNED
_HEX: Final = HEX
_SECONDS: Final = SECONDS
_WORD: Final = WORD
#: The longest number: a sign, 20 digits and a point.
LONGEST_NUMBER: Final = 22
#: A step: where its literal text is and how long, its form, column and width, and its first word.
STEP: Final = 6
_STEP: Final = STEP

_BILLION: Final = 10**9
_TEN: Final = 10
_HUNDRED: Final = 100
_ZERO: Final = ord("0")
_SPACE: Final = ord(" ")
_NEWLINE: Final = ord("\n")
_HEX_DIGITS: Final = ord("a") - 10
_X: Final = ord("x")
_MINUS: Final = ord("-")
_POINT: Final = ord(".")
_PAIRS: Final = b"".join(b"%02d" % i for i in range(100))


class LineLoop:
    """Writes lines into ``out``.

    Args:
        out: bytes to write into.
        text: all literal texts and words, end to end.
        steps: the steps of all kinds of lines, each ``STEP`` numbers, end to end.
        begins: where each kind's steps begin, counted in steps; one more for the end of the last.
        word_at, word_size, word_width: of each word: its place in ``text``, its bytes, its characters.
        strip: whether spaces at the ends of lines are left out.
    """

    def __init__(
        self,
        out: Any,
        text: bytes,
        steps: Any,
        begins: Any,
        word_at: Any,
        word_size: Any,
        word_width: Any,
        *,
        strip: bool,
    ) -> None:
        self._out = out
        self._text = text
        self._steps, self._begins = steps, begins
        self._word_at, self._word_size, self._word_width = word_at, word_size, word_width
        self._strip = strip
        self._pairs = _PAIRS

    def write(self, kinds: Any, columns: Any, first: int, last: int) -> int:
        """Write the lines of some rows, each with a newline; returns the number of bytes.

        Args:
            kinds: of each row: which of the kinds.
            columns: numbers, a row a column; unsigned ones as the same bits.
        """
        with cython.nogil:
            return self._every(kinds, columns, first, last)

    def _every(self, kinds: Any, columns: Any, first: int, last: int) -> int:
        at = 0
        for row in range(first, last):
            begin = at
            for step in range(self._begins[kinds[row]], self._begins[kinds[row] + 1]):
                place = step * _STEP
                at = self._copy(at, self._steps[place], self._steps[place + 1])
                form = self._steps[place + 2]
                if form == 0:
                    continue
                value, width = columns[self._steps[place + 3]][row], self._steps[place + 4]
                if form == _WORD:
                    at = self._word(at, value + self._steps[place + 5], width)
                elif form == _HEX:
                    at = self._hex(at, value, width)
                elif form == _SECONDS:
                    at = self._time(at, value, width)
                elif form == _DECIMAL and value < 0:
                    at = self._number(at, -value, width, True)
                else:
                    at = self._number(at, value, width, False)
            if self._strip:
                while at > begin and self._out[at - 1] == _SPACE:
                    at -= 1
            self._out[at] = _NEWLINE
            at += 1
        return at

    def _copy(self, at: int, place: int, size: int) -> int:
        memcpy(cython.address(self._out[at]), cython.address(self._text[place]), size)
        return at + size

    def _pad(self, at: int, count: int) -> int:
        for i in range(count):
            self._out[at + i] = _SPACE
        return at + max(count, 0)

    def _word(self, at: int, word: int, width: int) -> int:
        at = self._copy(at, self._word_at[word], self._word_size[word])
        return self._pad(at, width - self._word_width[word])

    def _number(self, at: int, value: int, width: int, negative: bool) -> int:
        if value < _TEN and width == 0 and not negative:
            self._out[at] = _ZERO + value
            return at + 1
        digits = _digits(value)
        at = self._pad(at, width - digits - negative)
        if negative:
            self._out[at] = _MINUS
            at += 1
        return self._decimal(at, value, digits)

    def _decimal(self, at: int, value: int, digits: int) -> int:
        """Write so many digits of a number, from the last one on."""
        place = at + digits
        while place - at >= 2:
            above = value // _HUNDRED
            pair = (value - above * _HUNDRED) * 2
            place -= 2
            self._out[place], self._out[place + 1] = self._pairs[pair], self._pairs[pair + 1]
            value = above
        if place > at:
            self._out[at] = _ZERO + value
        return at + digits

    def _hex(self, at: int, value: int, width: int) -> int:
        digits, above = 1, value >> 4
        while above:
            digits += 1
            above >>= 4
        at = self._pad(at, width - digits - 2)
        self._out[at], self._out[at + 1] = _ZERO, _X
        at += 2
        for i in range(digits - 1, -1, -1):
            digit = value & 15
            self._out[at + i] = digit + (_ZERO if digit < _TEN else _HEX_DIGITS)
            value >>= 4
        return at + digits

    def _time(self, at: int, value: int, width: int) -> int:
        """Write nanoseconds as seconds, with nine decimals."""
        negative = value < 0
        if negative:
            value = -value
        seconds = value // _BILLION
        digits = _digits(seconds)
        at = self._pad(at, width - digits - 10 - negative)
        if negative:
            self._out[at] = _MINUS
            at += 1
        at = self._decimal(at, seconds, digits)
        self._out[at] = _POINT
        return self._decimal(at + 1, value - seconds * _BILLION, 9)


def _digits(value: int) -> int:
    """How many decimal digits a number has."""
    digits, limit = 1, _TEN
    while digits < 20 and value >= limit:
        digits += 1
        limit *= _TEN
    return digits
