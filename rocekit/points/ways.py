"""What several captures have of each way, that is of the packets from one host to another.

There may be as many ways as packets, and to ask NumPy for the median of each takes a hundred times as long as
to sort all of them together: so of many ways with few packets everything is found at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.merging.merge import UNSEEN
from rocekit.packets.slim import PIECE, SlimColumn, SlimTimes
from rocekit.wire.sorting import medians_of_each

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Ends = tuple[int, int]
"""The numbers of two hosts."""
Pair = tuple[int, int]
"""Two captures, the lower number first."""

#: The packets of so few ways are looked for one after the other, and each way is asked by itself.
FEW_WAYS: Final = 64
#: A way of more packets is always asked by itself.
_SMALL: Final = 1024
#: Packets whose ways are looked at together.
_TOGETHER: Final = 1 << 17


class CaptureColumns:
    """By capture, columns of all packets.

    Attributes:
        seen_ns: the aligned time, or ``UNSEEN``; frames: the frame number, or 0; hops: the hop limit.
    """

    def __init__(
        self, seen_ns: Sequence[SlimTimes], frames: Sequence[SlimColumn], hops: Sequence[SlimColumn]
    ) -> None:
        self.seen_ns, self.frames, self.hops = seen_ns, frames, hops
        self.files = range(len(frames))

    def took(self, rows: Rows, first: int, second: int) -> Ints:
        """How long packets took from one capture to another, ns, of those that both have."""
        took, count = np.empty(len(rows), np.int64), 0
        for at in range(0, len(rows), PIECE):
            own = rows[at : at + PIECE]
            here, there = self.seen_ns[first][own], self.seen_ns[second][own]
            both = (here != UNSEEN) & (there != UNSEEN)
            piece = there - here
            piece = piece if both.all() else piece[both]
            took[count : count + len(piece)] = piece
            count += len(piece)
        return took[:count]

    def has(self, rows: Rows, file: int) -> NDArray[np.bool_]:
        """Whether a capture has each of the packets."""
        found = np.empty(len(rows), np.bool_)
        for at in range(0, len(rows), PIECE):
            found[at : at + PIECE] = self.frames[file][rows[at : at + PIECE]] != 0
        return found


class HostWay(Protocol):
    """What the captures have of a way."""

    @property
    def counts(self) -> list[int]:
        """By capture, how many of its packets it has."""

    def common(self, first: int, second: int) -> bool:
        """Whether two captures have a packet in common."""

    def median(self, first: int, second: int) -> float | None:
        """The median time that packets took from one capture to another, ns; None if both have none."""

    def hops(self, file: int) -> float:
        """The median hop limit of the packets that a capture has, which are some."""

    def alike(self, first: int, second: int) -> bool:
        """Whether two captures are known to have all of its packets, in the same order."""


class _LargeWay:
    """A way that is asked by itself."""

    def __init__(self, columns: CaptureColumns, rows: Rows) -> None:
        self._columns, self._rows = columns, rows
        self._medians: dict[Pair, float | None] = {}

    @cached_property
    def counts(self) -> list[int]:
        found = np.zeros(len(self._columns.files), np.int64)
        for at in range(0, len(self._rows), PIECE):
            own = self._rows[at : at + PIECE]
            found += [np.count_nonzero(frames[own]) for frames in self._columns.frames]
        return found.tolist()

    @cached_property
    def _shared(self) -> Rows:
        """The packets that two captures or more have; none where one capture is split into many files."""
        once, twice = np.zeros((2, len(self._rows)), np.bool_)
        for file, count in enumerate(self.counts):
            if count:
                here = self._columns.has(self._rows, file)
                twice |= once & here
                once |= here
        return self._rows[twice]

    def common(self, first: int, second: int) -> bool:
        has, rows = self._columns.has, self._shared
        return bool(len(rows)) and bool((has(rows, first) & has(rows, second)).any())

    def median(self, first: int, second: int) -> float | None:
        if not (self.counts[first] and self.counts[second]):
            return None
        if (first, second) not in self._medians:
            took = self._columns.took(self._rows, first, second)
            self._medians[first, second] = float(np.median(took, overwrite_input=True)) if len(took) else None
        return self._medians[first, second]

    def hops(self, file: int) -> float:
        own = self._rows[self._columns.has(self._rows, file)]
        return float(np.median(self._columns.hops[file][own]))

    def alike(self, first: int, second: int) -> bool:
        return False


class _SmallWay:
    """A way that was looked at together with others."""

    __slots__ = ("counts", "hop_limits", "same", "took")

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        self.took: dict[Pair, float] = {}
        self.hop_limits: dict[int, float] = {}
        self.same: set[Pair] = set()

    def common(self, first: int, second: int) -> bool:
        return _pair(first, second) in self.took

    def median(self, first: int, second: int) -> float | None:
        took = self.took.get(_pair(first, second))
        return took if took is None or first < second else -took

    def hops(self, file: int) -> float:
        return self.hop_limits[file]

    def alike(self, first: int, second: int) -> bool:
        return _pair(first, second) in self.same


def _pair(first: int, second: int) -> Pair:
    return (first, second) if first < second else (second, first)


class HostWays:
    """All ways.

    Args:
        rows: the packets of each way, in order.
    """

    def __init__(self, columns: CaptureColumns, rows: Mapping[Ends, Rows]) -> None:
        self._columns, self._rows = columns, rows
        self._none = _LargeWay(columns, np.empty(0, np.int32))

    def of(self, src: int, dst: int) -> HostWay:
        """The way between two hosts; without packets if there are none."""
        return self._known.get((src, dst), self._none)

    @cached_property
    def _known(self) -> dict[Ends, HostWay]:
        many = len(self._rows) > FEW_WAYS
        small = [ends for ends, rows in self._rows.items() if many and len(rows) <= _SMALL]
        found: dict[Ends, HostWay] = {}
        begin = count = 0
        for place, ends in enumerate(small):
            count += len(self._rows[ends])
            if count >= _TOGETHER or place == len(small) - 1:
                together = small[begin : place + 1]
                found.update(zip(together, self._at_once(together), strict=True))
                begin, count = place + 1, 0
        for ends, rows in self._rows.items():
            if ends not in found:
                found[ends] = _LargeWay(self._columns, rows)
        return found

    def _at_once(self, ways: list[Ends]) -> list[_SmallWay]:
        """What there is to know of some ways."""
        columns = self._columns
        parts = [self._rows[ends] for ends in ways]
        rows, sizes = np.concatenate(parts), np.array(list(map(len, parts)))
        begins = np.cumsum(sizes) - sizes
        of = np.repeat(np.arange(len(ways)), sizes)
        seen, frames = ([column[rows] for column in by] for by in (columns.seen_ns, columns.frames))
        has = [of_file != 0 for of_file in frames]
        counts = [np.bincount(of[own], minlength=len(ways)) for own in has]
        found = [_SmallWay(list(own)) for own in zip(*(own.tolist() for own in counts), strict=True)]
        whole = []
        for file in columns.files:
            for way, hops in medians_of_each(columns.hops[file][rows[has[file]]], of[has[file]]):
                found[way].hop_limits[file] = hops
            whole.append((counts[file] == sizes) & _in_order(seen[file], frames[file], begins))
        once, twice = np.zeros((2, len(rows)), np.bool_)
        for own in has:
            twice |= once & own
            once |= own
        # Where one capture is split into many files, no two of them share packets.
        sharing = [file for file, own in enumerate(has) if (twice & own).any()]
        for pair in combinations(sharing, 2):
            first, second = pair
            both = has[first] & has[second]
            for way, took in medians_of_each((seen[second] - seen[first])[both], of[both]):
                found[way].took[pair] = took
            for way in np.flatnonzero(whole[first] & whole[second]).tolist():
                found[way].same.add(pair)
        return found


def _in_order(times: Ints, frames: Ints, begins: Ints) -> NDArray[np.bool_]:
    """Of each way whether its packets came in the order of their rows."""
    later = np.ones(len(times), np.bool_)
    later[1:] = (times[1:] > times[:-1]) | ((times[1:] == times[:-1]) & (frames[1:] > frames[:-1]))
    later[begins] = True
    found: NDArray[np.bool_] = np.logical_and.reduceat(later, begins)
    return found
