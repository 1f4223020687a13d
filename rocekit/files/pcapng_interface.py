"""Pcapng interface descriptions: the link type of their packets, and how to read their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import SUPPORTED_LINKTYPES

_NS = 1_000_000_000
_SECONDS_END = (1 << 62) // _NS  # so that the difference of any two times fits 63 bits of nanoseconds
_FAR_S = 1 << 40  # seconds beyond any use


class Interface(NamedTuple):
    """An interface description block.

    Args:
        linktype: folded LINKTYPE number.
        snaplen: most bytes captured of a frame; 0 for no limit.
        resolution: the ``if_tsresol`` byte: 10^-n seconds, or 2^-n with the highest bit set.
        offset_s: seconds to add to every time.
    """

    linktype: int
    snaplen: int
    resolution: int = 6
    offset_s: int = 0


@dataclass(frozen=True, slots=True)
class OddPacket:
    """A packet that is not in an enhanced packet block; ``stamp`` None: it has no time."""

    interface: int
    stamp: int | None
    caplen: int
    wirelen: int
    block: int
    data: int
    end: int


class InterfaceTables:
    """The interfaces of all sections as columns, to look up packets' link types and times."""

    def __init__(self) -> None:
        self._fresh: list[Interface] = []
        self._count = 0
        self.linktype = np.zeros(0, np.uint16)
        self.all_supported = True
        self._resolution = np.zeros(0, np.uint8)
        self._offset_s = np.zeros(0, np.int64)
        self._plain: int | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, interface: Interface) -> None:
        """One more, in a row of its own."""
        self._fresh.append(interface)
        self._count += 1

    def build(self) -> None:
        """Bring the columns up to date."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return
        folded, _, steps, seconds = zip(*fresh, strict=True)
        linktypes = np.array(folded, np.uint16)
        self.all_supported = self.all_supported and set(linktypes.tolist()) <= SUPPORTED_LINKTYPES
        self.linktype = np.append(self.linktype, linktypes)
        self._resolution = np.append(self._resolution, np.array(steps, np.uint8))
        offsets = np.clip(np.array(seconds, np.int64), -_FAR_S, _FAR_S)
        self._offset_s = np.append(self._offset_s, offsets)
        usual = int(self._resolution[0])
        is_plain = usual <= 9 and not self._offset_s.any() and bool((self._resolution == usual).all())
        self._plain = 10 ** (9 - usual) if is_plain else None

    def time_ns(
        self, interface: NDArray[np.int64], stamp: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], int]:
        """Nanoseconds since the epoch of each packet, and how many were too far from it."""
        if not len(stamp):
            return np.zeros(0, np.int64), 0
        if self._plain is not None and int(stamp.max()) <= (2**62 - 1) // self._plain:
            return stamp.astype(np.int64) * self._plain, 0
        seconds = np.zeros(len(stamp), np.uint64)
        nanos = np.zeros(len(stamp), np.uint64)
        resolutions = self._resolution[interface]
        for resolution in np.unique(resolutions).tolist():
            which = resolutions == resolution
            seconds[which], nanos[which] = split_stamp(stamp[which], resolution)
        since = np.minimum(seconds, np.uint64(_FAR_S)).astype(np.int64) + self._offset_s[interface]
        outside = int(np.count_nonzero((since >= _SECONDS_END) | (since < -_SECONDS_END)))
        since = np.clip(since, -_SECONDS_END, _SECONDS_END - 1)
        return since * _NS + nanos.astype(np.int64), outside


class Stretches:
    """The packets of a batch, by the interfaces that they can name: those of their section, before them.

    Attributes:
        row: the first interface's row in the tables, of the section being read.
    """

    def __init__(self) -> None:
        self.row = 0
        self._known = 0
        self._every: list[tuple[int, int, int]] = [(0, 0, 0)]

    def begin(self, packet: int, known: int, row: int) -> None:
        """From this packet of the batch on there are ``known`` interfaces."""
        self.row, self._known = row, known
        if self._every[-1][0] == packet:
            self._every.pop()
        self._every.append((packet, known, row))

    def take(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each packet of a whole batch: how many interfaces there were, and the first one's row."""
        every, self._every = self._every, [(0, self._known, self.row)]
        packet, known, row = np.array(every, np.int64).T
        lengths = np.diff(np.append(packet, count))
        return np.repeat(known, lengths), np.repeat(row, lengths)


def split_stamp(stamp: NDArray[np.uint64], resolution: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Whole seconds, and nanoseconds within them (rounded down), of 64-bit times of an ``if_tsresol``.

    Source: draft-ietf-opsawg-pcapng, if_tsresol: the lower seven bits are a negative power of 10, or of 2
    when the highest bit is set.
    """
    power = resolution & 0x7F
    none = np.zeros_like(stamp)
    if resolution & 0x80:
        rest = stamp & np.uint64((1 << power) - 1) if power < 64 else stamp
        seconds = stamp >> np.uint64(power) if power < 64 else none
        # 34 bits of fraction are finer than a nanosecond, and times 10^9 they fit 64 bits.
        cut = max(0, power - 34)
        rest = rest >> np.uint64(cut) if cut < 64 else none
        return seconds, rest * np.uint64(_NS) >> np.uint64(power - cut)
    if power > 19:
        rest, seconds = stamp, none
    else:
        unit = np.uint64(10**power)
        seconds, rest = stamp // unit, stamp % unit
    if power <= 9:
        return seconds, rest * np.uint64(10 ** (9 - power))
    return seconds, rest // np.uint64(10 ** (power - 9)) if power <= 28 else none
