"""Which packets changed their place on the way: the fewest whose moving gives the order of the sender."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


Moment = tuple[int, int]
"""A time at a capture point, and a frame number, which tells packets of the same time apart."""


class _Extent(NamedTuple):
    """The first and the last moment of some packets at a capture point; whether they are in that order."""

    first: Moment
    last: Moment
    in_order: bool

    @classmethod
    def of(cls, time_ns: Ints, frames: Ints) -> _Extent:
        first, last = int(time_ns.min()), int(time_ns.max())
        later = (time_ns[1:] > time_ns[:-1]) | ((time_ns[1:] == time_ns[:-1]) & (frames[1:] > frames[:-1]))
        return cls(
            (first, int(frames[time_ns == first].min())),
            (last, int(frames[time_ns == last].max())),
            bool(later.all()),
        )


class DoubtfulPieces:
    """Where among many packets some may have been overtaken. They are added piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[tuple[_Extent, ...] | None] = []

    def add(self, *points: tuple[Ints, Ints]) -> None:
        """Add a piece: the times and frame numbers of its packets at the one point, and at the next."""
        self._pieces.append(tuple(_Extent.of(*seen) for seen in points) if len(points[0][0]) else None)

    def found(self) -> list[tuple[int, int]]:
        """Pieces to look at together: the number of the first, and that behind the last.

        What is before everything behind it at both points has not overtaken any of that.
        """
        firsts: list[list[Moment]] = []  # by piece: of all packets from it on, at each point
        for piece in reversed(self._pieces):
            behind = firsts[-1] if firsts else None
            own = [extent.first for extent in piece or ()] or behind or []
            firsts.append([min(pair) for pair in zip(own, behind, strict=True)] if behind else own)
        firsts = [*firsts[::-1], []]
        found, begin, in_order = [], 0, True
        lasts: list[Moment] = []
        for number, piece in enumerate(self._pieces):
            if piece is not None:
                in_order = in_order and all(extent.in_order for extent in piece)
                own = [extent.last for extent in piece]
                lasts = [max(pair) for pair in zip(own, lasts, strict=True)] if lasts else own
            behind = firsts[number + 1]
            if (
                not lasts
                or not behind
                or all(last < first for last, first in zip(lasts, behind, strict=True))
            ):
                if not in_order or number > begin:
                    found.append((begin, number + 1))
                begin, lasts, in_order = number + 1, [], True
        return found


def overtaken(first_ns: Ints, first_frames: Ints, second_ns: Ints, second_frames: Ints) -> Ints:
    """The packets that were moved, as indices; of two that changed places, the one that was sent first.

    Args:
        first_ns, first_frames: the times and frame numbers of packets at the one capture point; second_ns,
            second_frames: of the same packets at the next.
    """
    sent = np.lexsort((first_frames, first_ns))
    arrived = np.lexsort((second_frames, second_ns))
    rank = np.empty(len(sent), np.int64)
    rank[arrived] = np.arange(len(arrived))
    rank = rank[sent]
    # A block ends where everything sent so far has arrived before everything else.
    ends = np.flatnonzero(np.maximum.accumulate(rank) == np.arange(len(rank)))
    starts = np.r_[0, ends[:-1] + 1] if len(ends) else ends
    several = ends > starts
    moved: list[int] = []
    for start, end in zip(starts[several].tolist(), ends[several].tolist(), strict=True):
        moved += [start + i for i in _out_of_order(rank[start : end + 1].tolist())]
    return np.sort(sent[np.array(moved, np.int64)])


def _out_of_order(ranks: list[int]) -> list[int]:
    """The places outside the longest increasing subsequence (patience sorting)."""
    tails: list[int] = []
    at: list[int] = []
    before = []
    for place, rank in enumerate(ranks):
        pile = bisect_left(tails, rank)
        if pile == len(tails):
            tails.append(rank)
            at.append(place)
        else:
            tails[pile], at[pile] = rank, place
        before.append(at[pile - 1] if pile else -1)
    kept = set()
    place = at[-1]
    while place >= 0:
        kept.add(place)
        place = before[place]
    return [i for i in range(len(ranks)) if i not in kept]
