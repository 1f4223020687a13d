# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""A number for each different identity: packets with the same number are one group.

A hash table with open addressing. Compiled, it replaces a sort of all identities: it looks at each once.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np

from rocekit.packets.rows import COMPILED, column

#: Secret, so that nobody can make packets that all start at one place of the table.
_FACTOR: Final = secrets.randbits(64) | 1
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_BITS: Final = 64
_LEAST_BITS: Final = 10
#: So many places are looked at before the first of them is needed: memory brings them at the same time.
_AHEAD: Final = 64


class GroupNumbers:
    """Numbers 64-bit values in the order in which they first occur.

    Args:
        values: all of them (uint64).
        expected: how many different ones there may be.

    Attributes:
        count: the different values.
        of: the number of each value (int32).
        first: the row in which each number first occurs (int32); only the first ``count`` are used.
    """

    def __init__(self, values: Any, expected: int) -> None:
        of, first = np.empty(len(values), np.int32), np.empty(len(values), np.int32)
        bits = max(_LEAST_BITS, (expected + expected // 2).bit_length())
        self.count = 0
        self._touched = 0
        self._values: Any = column(values, np.uint64)
        self._of: Any = column(of, np.int32)
        self._first: Any = column(first, np.int32)
        self._starts: Any = column(np.zeros(_AHEAD))
        self._places(bits)
        row = 0
        while row < len(values):
            row = self._look_up(row, len(values))
            if row < len(values):
                self._places(bits := bits + 1)
                self._insert()
        self.of = of if COMPILED else np.array(self._of, np.int32)
        self.first = (first if COMPILED else np.array(self._first, np.int32))[: self.count]

    def tally(self, begin: int, end: int, count: Any, first: Any) -> None:
        """How often rows of each number occur in a part of the rows, and the first of them.

        Args:
            count: zeros, by number; first: by number, changed where there is one (both int32).
        """
        for row in range(end - 1, begin - 1, -1):
            number = self._of[row]
            count[number] += 1
            first[number] = row

    def _places(self, bits: int) -> None:
        """An empty table of ``1 << bits`` places: numbers, −1 in a free place."""
        self._shift = _BITS - bits
        self._last = (1 << bits) - 1
        self._table: Any = column(np.full(1 << bits, -1, np.int32), np.int32)

    def _look_up(self, begin: int, end: int) -> int:
        """Number the rows from ``begin`` on, until the table is nearly full. Returns where it stopped."""
        most = self._last - self._last // 4
        row = begin
        while row < end:
            many = _AHEAD if end - row > _AHEAD else end - row
            for i in range(many):
                at = (self._values[row + i] * _FACTOR & _WORD) >> self._shift
                self._starts[i] = at
                self._touched ^= self._table[at]
            for i in range(many):
                at = self._starts[i]
                value = self._values[row + i]
                number = self._table[at]
                while number >= 0 and self._values[self._first[number]] != value:
                    at = at + 1 & self._last
                    number = self._table[at]
                if number < 0:
                    if self.count >= most:
                        return row + i
                    number = self.count
                    self._table[at] = number
                    self._first[number] = row + i
                    self.count += 1
                self._of[row + i] = number
            row += many
        return end

    def _insert(self) -> None:
        """Put all numbers into a new table."""
        for number in range(self.count):
            at = (self._values[self._first[number]] * _FACTOR & _WORD) >> self._shift
            while self._table[at] >= 0:
                at = at + 1 & self._last
            self._table[at] = number
