"""Kinds of packets: those of one kind are printed alike but for their numbers and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import Packets, Row
from rocekit.packets.flow_numbers import PairNumbers
from rocekit.wire.sorting import first_of_each

Ints = NDArray[np.int64]

#: Kinds that are remembered: no capture but one of random bytes has so many.
_MOST: Final = 1 << 14
#: What a kind consists of: a column, and how many of its bits.
Part = tuple[NDArray[Any], int]


class Kinds:
    """Numbers the kinds of packets, and makes what belongs to each from the first packet of it.

    Args:
        make: makes it from that packet.

    Attributes:
        every: what was made, by number. The numbers hold until ``of`` is called again.
    """

    def __init__(self, make: Callable[[Row], Any]) -> None:
        self._make = make
        self._forget()

    def _forget(self) -> None:
        self._numbers = PairNumbers()
        self.every: list[Any] = []

    def of(self, packets: Packets, parts: Sequence[Part]) -> Ints:
        """Each packet's kind, by what makes the kind up: at most 64 bits."""
        if len(self.every) > _MOST:
            self._forget()
        key = np.zeros(len(packets), np.uint64)
        at = 0
        for values, bits in parts:
            key |= values.astype(np.uint64) << np.uint64(at)
            at += bits
        assert at <= 64
        found: Ints = self._numbers.of(key, np.zeros(len(packets), np.uint64))
        new = found >= len(self.every)
        if new.any():
            rows = np.flatnonzero(new)
            _, first = first_of_each(found[rows])
            self.every += map(self._make, packets.where(rows[first]).rows())
        return found
