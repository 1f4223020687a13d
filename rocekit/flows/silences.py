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

#: Shorter silences than this are not kept.
LEAST_NS: Final = 1_000_000
#: Silences kept of each host and class: the first ones.
_MOST: Final = 10_000
_CLASS_BITS: Final = DSCP_BITS
_ECN_BITS: Final = ECN_BITS
_LEAST_NS: Final = LEAST_NS
_NEVER: Final = -(1 << 63)


class Silences:
    """The silences of each host's classes.

    Attributes:
        spells: by (address, DSCP), (start, end) of each silence, in order.
        seen: by (address, DSCP), the times of the first and the last packet.
    """

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._spells: dict[int, list[tuple[int, int]]] = defaultdict(list)
        # By host and class: times of its first and last packet.
        self._first: Any = column(())
        self._last: Any = column(())

    def feed(self, packets: Packets, keep: NDArray[np.bool_]) -> None:
        """Add the packets of a batch that ``keep`` chooses; batches come in order of time."""
        self._addresses = packets.addresses
        room = int(packets.src.max()) + 1 << _CLASS_BITS
        if room > len(self._last):
            self._first, self._last = self._grown(self._first, 2 * room), self._grown(self._last, 2 * room)
        self._loop(
            column(keep, np.uint8),
            column(packets.src),
            column(packets.tclass, np.uint8),
            column(packets.time_ns),
        )

    @staticmethod
    def _grown(times: Any, room: int) -> Any:
        return column(np.append(np.asarray(times, np.int64), np.full(room - len(times), _NEVER)))

    def _loop(self, keep: Any, src: Any, tclass: Any, time_ns: Any) -> None:
        for i in range(len(keep)):
            if not keep[i]:
                continue
            number = src[i] << _CLASS_BITS | tclass[i] >> _ECN_BITS
            time, last = time_ns[i], self._last[number]
            if last == _NEVER:
                self._first[number] = time
            elif time - last >= _LEAST_NS:
                self._note(number, last, time)
            self._last[number] = time

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
        first, last = np.asarray(self._first), np.asarray(self._last)
        return {
            self._name(number): (int(first[number]), int(last[number]))
            for number in np.flatnonzero(last != _NEVER).tolist()
        }
