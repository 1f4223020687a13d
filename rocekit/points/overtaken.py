"""Which packets changed their place on the way: the fewest whose moving gives the order of the sender."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


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
