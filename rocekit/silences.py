"""Spells in which a host sent nothing of one traffic class, from whole columns of packets.

A paused class shows as a silence of everything that a host sends in it, whatever the connection, while its
other classes go on.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.arrays import starts

if TYPE_CHECKING:
    from rocekit.packets import Packets

Ints = NDArray[np.int64]

#: Shorter silences than this are not kept.
LEAST_NS: Final = 1_000_000
#: Of each host and class, the first so many are kept.
_MOST: Final = 10_000
_CLASS_BITS: Final = 6


class Silences:
    """The silences of each host's classes.

    Attributes:
        spells: by (address, DSCP), (beginning, end) of each, in order; seen: first and last packet of each.
    """

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._spells: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._seen: dict[int, tuple[int, int]] = {}

    def feed(self, packets: Packets, rows: Ints) -> None:
        """Take the packets at ``rows``, later than all before."""
        self._addresses = packets.addresses
        key = packets.src[rows].astype(np.int64) << _CLASS_BITS | packets.tclass[rows] >> 2
        narrow = key.astype(np.uint16) if int(key.max()) < 1 << 16 else key  # sorted without comparing
        order = np.argsort(narrow, kind="stable")
        key, time = key[order], packets.time_ns[rows][order]
        begins = starts(key)
        ends = np.append(begins[1:], len(key)) - 1
        for number, begin, end in zip(key[begins].tolist(), begins.tolist(), ends.tolist(), strict=True):
            first, last = int(time[begin]), int(time[end])
            known = self._seen.get(number)
            if known is not None and first - known[1] >= LEAST_NS:
                self._note(number, known[1], first)
            self._seen[number] = (first if known is None else known[0], last)
        gaps = np.flatnonzero((np.diff(time) >= LEAST_NS) & (key[1:] == key[:-1]))
        for number, low, high in zip(
            key[gaps].tolist(), time[gaps].tolist(), time[gaps + 1].tolist(), strict=True
        ):
            self._note(number, low, high)

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
        return {self._name(number): span for number, span in self._seen.items()}
