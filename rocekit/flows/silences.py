# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Times in which a host sent nothing of one traffic class.

While a class is paused, a host sends nothing in it on any connection; its other classes continue.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.rows import column
from rocekit.wire.network import DSCP_BITS, ECN_BITS

if TYPE_CHECKING:
    from rocekit.packets import Packets

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

#: Shorter silences than this are not kept.
LEAST_NS: Final = 1_000_000
#: Silences kept of each host and class: the first ones.
_MOST: Final = 10_000
_CLASS_BITS: Final = DSCP_BITS
_ECN_BITS: Final = ECN_BITS
_LEAST_NS: Final = LEAST_NS
_NONE: Final = -1

# A row: its host and class in one number, the times of its first and last packet, the next row of its host.
_NUMBER, _FIRST, _LAST, _NEXT, _WIDTH = range(5)


class Silences:
    """The silences of each host's classes.

    Attributes:
        spells: by (address, DSCP), (start, end) of each silence, in order.
        seen: by (address, DSCP), the times of the first and the last packet.
    """

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._spells: dict[int, list[tuple[int, int]]] = defaultdict(list)
        # Most hosts send in one class or two: each has a chain of rows, whose first one stands here.
        self._heads: Any = column(())
        self._rows: Any = column(())
        self._end = 0

    def feed(self, packets: Packets, keep: NDArray[np.bool_]) -> None:
        """Add the packets of a batch that ``keep`` chooses; batches come in order of time."""
        self._addresses = packets.addresses
        hosts = int(packets.src.max()) + 1
        if hosts > len(self._heads):
            self._heads = self._grown(self._heads, 2 * hosts)
        self._loop(
            column(keep.view(np.uint8), np.uint8),
            column(packets.src),
            column(packets.tclass, np.uint8),
            column(packets.time_ns),
        )

    @staticmethod
    def _grown(numbers: Any, room: int) -> Any:
        return column(np.append(np.asarray(numbers, np.int64), np.full(room - len(numbers), _NONE)))

    def _loop(self, keep: Any, src: Any, tclass: Any, time_ns: Any) -> None:
        with cython.nogil:
            for i in range(len(keep)):
                if not keep[i]:
                    continue
                number, time = src[i] << _CLASS_BITS | tclass[i] >> _ECN_BITS, time_ns[i]
                at = self._heads[src[i]]
                while at >= 0 and self._rows[at + _NUMBER] != number:
                    at = self._rows[at + _NEXT]
                if at < 0:
                    with cython.gil:
                        self._begin(src[i], number, time)
                    continue
                if time - self._rows[at + _LAST] >= _LEAST_NS:
                    with cython.gil:
                        self._note(number, self._rows[at + _LAST], time)
                self._rows[at + _LAST] = time

    def _begin(self, host: int, number: int, time: int) -> None:
        """The first packet of a host's class."""
        at = self._end
        if at == len(self._rows):
            self._rows = self._grown(self._rows, 2 * at + 64 * _WIDTH)
        self._rows[at + _NUMBER], self._rows[at + _NEXT] = number, self._heads[host]
        self._rows[at + _FIRST] = self._rows[at + _LAST] = time
        self._heads[host], self._end = at, at + _WIDTH

    def _note(self, number: int, start_ns: int, end_ns: int) -> None:
        spells = self._spells[number]
        if len(spells) < _MOST:
            spells.append((start_ns, end_ns))

    def _name(self, number: int) -> tuple[str, int]:
        return self._addresses[number >> _CLASS_BITS], number & (1 << _CLASS_BITS) - 1

    @property
    def spells(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        return {self._name(number): sorted(spells) for number, spells in self._spells.items()}

    @property
    def seen(self) -> dict[tuple[str, int], tuple[int, int]]:
        rows = np.asarray(self._rows[: self._end], np.int64).reshape(-1, _WIDTH)
        rows = rows[np.argsort(rows[:, _NUMBER])]
        return {
            self._name(number): (first, last)
            for number, first, last in rows[:, (_NUMBER, _FIRST, _LAST)].tolist()
        }
