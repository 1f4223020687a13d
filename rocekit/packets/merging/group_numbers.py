# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""A number for each different identity: packets with the same number are one group.

A hash table with open addressing. Compiled, it replaces a sort of all identities: it looks at each once.
"""

from __future__ import annotations

from os import urandom
from typing import Any, Final

import numpy as np

from rocekit.packets.rows import COMPILED, column

#: Secret, so that nobody can make packets that all start at one place of the table.
_FACTOR: Final = int.from_bytes(urandom(8), "little") | 1
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_BITS: Final = 64
_LEAST_BITS: Final = 10
#: So many places are looked at before the first of them is needed: memory brings them at the same time.
_AHEAD: Final = 64


class GroupNumbers:
    """Numbers 64-bit values in the order in which they first occur.

    Args:
        expected: how many different ones there may be.

    Attributes:
        count: the different values so far.
    """

    def __init__(self, expected: int) -> None:
        self.count = 0
        self._touched = 0
        self._room = 0
        self._known: Any = column(np.empty(0, np.uint64), np.uint64)
        self._values: Any = column(np.empty(0, np.uint64), np.uint64)
        self._of: Any = column(np.empty(0, np.int32), np.int32)
        self._starts: Any = column(np.zeros(_AHEAD))
        self._table: Any = self._of
        self._bits = max(_LEAST_BITS, (expected + expected // 2).bit_length())
        self._places()

    def number(self, values: Any) -> Any:
        """The number of each value (int32); ``values``: uint64."""
        of = np.empty(len(values), np.int32)
        self._values, self._of = column(values, np.uint64), column(of, np.int32)
        if self.count + len(values) > self._room:
            self._make_room(self.count + len(values))
        row = 0
        while row < len(values):
            row = self._look_up(row, len(values))
            if row < len(values):
                self._bits += 1
                self._places()
                self._insert()
        return of if COMPILED else np.array(self._of, np.int32)

    def let_go(self) -> None:
        """No more values follow."""
        self._room = 0
        self._known = self._values = column(np.empty(0, np.uint64), np.uint64)
        self._table = self._of = column(np.empty(0, np.int32), np.int32)

    def _make_room(self, room: int) -> None:
        """Memory for the values of so many numbers, or more."""
        room = max(room, self._room + (self._room >> 1))
        known = np.empty(room, np.uint64)
        known[: self.count] = self._known[: self.count]
        self._room = room
        self._known = column(known, np.uint64)

    def _places(self) -> None:
        """An empty table of twice the places: numbers, −1 in a free place."""
        self._shift = _BITS - self._bits
        self._last = (1 << self._bits) - 1
        self._table = column(np.empty(0, np.int32), np.int32)  # the one before is let go first
        self._table = column(np.full(1 << self._bits, -1, np.int32), np.int32)

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
                while number >= 0 and self._known[number] != value:
                    at = at + 1 & self._last
                    number = self._table[at]
                if number < 0:
                    if self.count >= most:
                        return row + i
                    number = self.count
                    self._table[at] = number
                    self._known[number] = value
                    self.count += 1
                self._of[row + i] = number
            row += many
        return end

    def _insert(self) -> None:
        """Put all numbers into a new table."""
        for number in range(self.count):
            at = (self._known[number] * _FACTOR & _WORD) >> self._shift
            while self._table[at] >= 0:
                at = at + 1 & self._last
            self._table[at] = number


def tally(of: Any, begin: int, count: Any, first: Any) -> None:
    """Add up how often numbers occur in a part of the rows, and note the first row of each.

    Args:
        of: the number of each row (int32); begin: the first of these rows.
        count: by number, 0 at first; first: by number (both int32).
    """
    for i in range(len(of)):
        number = of[i]
        if count[number] == 0:
            first[number] = begin + i
        count[number] += 1
