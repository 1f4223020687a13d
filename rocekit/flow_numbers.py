"""One-way flows to small numbers: (source, destination, destination QPN) of every packet, in one pass.

A table of keys with a free place after each search's end (open addressing): compiled, a packet costs some
nanoseconds, however many flows there are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rocekit.rows import COMPILED

ADDRESS_BITS: Final = 20
QPN_BITS: Final = 24
_LEAST: Final = 1024  # places; always a power of two
_MIXER: Final = 0x9E37_79B9_7F4A_7C15  # 2^64 over the golden ratio
_WORD: Final = 0xFFFF_FFFF_FFFF_FFFF
_SHIFT: Final = 32


class FlowNumbers:
    """Numbers flows in the order in which they are first seen.

    Attributes:
        count: flows so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._places(_LEAST)

    def _places(self, size: int) -> None:
        self._size = size
        keys, numbers = np.zeros(size, np.int64), np.full(size, -1, np.int64)
        self._keys: Any = keys if COMPILED else keys.tolist()
        self._numbers: Any = numbers if COMPILED else numbers.tolist()

    def of(self, src: Any, dst: Any, qpn: Any) -> Any:
        """Each packet's flow (int64): columns of address numbers and destination QPNs."""
        keys = (src.astype(np.int64) << ADDRESS_BITS | dst) << QPN_BITS | qpn
        found = np.empty(len(keys), np.int64)
        start = 0
        while start < len(keys):
            start = self._look_up(keys if COMPILED else keys.tolist(), found, start)
            if start < len(keys):
                self._grow()
        return found

    def _look_up(self, keys: Any, found: Any, start: int) -> int:
        """Fills ``found`` from ``start`` on, until the table is half full. Gives how far it came."""
        last = self._size - 1
        for i in range(start, len(keys)):
            key = keys[i]
            at = self._place(key, last)
            while self._numbers[at] >= 0 and self._keys[at] != key:
                at = at + 1 & last
            if self._numbers[at] < 0:
                if self.count * 2 >= self._size:
                    return i
                self._keys[at], self._numbers[at] = key, self.count
                self.count += 1
            found[i] = self._numbers[at]
        return len(keys)

    def _place(self, key: int, last: int) -> int:
        """Where the search for a key begins."""
        return ((key * _MIXER & _WORD) >> _SHIFT) & last

    def _grow(self) -> None:
        keys, numbers = self._keys, self._numbers
        self._places(2 * self._size)
        self._insert(keys, numbers)

    def _insert(self, keys: Any, numbers: Any) -> None:
        last = self._size - 1
        for i in range(len(numbers)):
            if numbers[i] >= 0:
                at = self._place(keys[i], last)
                while self._numbers[at] >= 0:
                    at = at + 1 & last
                self._keys[at], self._numbers[at] = keys[i], numbers[i]
