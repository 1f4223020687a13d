"""Waits before repeats, and the pause frames of their traffic class that came meanwhile.

There may be very many of both, and many senders of pauses: no wait is compared with each pause.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rocekit.findings.paused_classes import priorities_of
from rocekit.flows.observer import REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.packets.pauses import Pause


class Stalls(NamedTuple):
    """How many waits had pauses of one sender in them, and how long the longest was."""

    waits: int = 0
    longest_ns: int = 0


def stalls_of(evidence: Evidence, senders: Sequence[Sequence[Pause]]) -> list[Stalls]:
    """The waits for a timer during which a pause frame of their traffic class came, for each sender."""
    waits: dict[int, list[tuple[int, int]]] = {}
    masks: dict[tuple[int, int], int] = {}
    for story in evidence.stories:
        for run in story.repeats:
            if run.cause == "timeout" and run.waited_ns >= 0:
                key = story.connection.id, story.side
                if key not in masks:
                    masks[key] = _mask(evidence, story)
                waits.setdefault(masks[key], []).append((run.time_ns - run.waited_ns, run.time_ns))
    found = [Stalls() for _ in senders]
    for mask, own in waits.items():
        times = [sorted({p.time_ns for p in pauses if p.priorities & mask}) for pauses in senders]
        for place, more in enumerate(_stalled(own, times)):
            known = found[place]
            found[place] = Stalls(known.waits + more.waits, max(known.longest_ns, more.longest_ns))
    return found


def _mask(evidence: Evidence, story: Story) -> int:
    """The priorities of a story's requests as a bit mask."""
    view = evidence.survey.flow(story.connection, story.side)
    dscps = {} if view is None else view.dscps.get(REQUEST, {})
    return sum(1 << p for p in set().union(*(priorities_of(evidence, dscp)[0] for dscp in dscps)))


def _stalled(waits: list[tuple[int, int]], senders: list[list[int]]) -> list[Stalls]:
    """The waits with a pause of each sender in them; of each, the times of its pauses in order."""
    starts, ends = sorted(start for start, _ in waits), sorted(end for _, end in waits)
    longest = _longest_at(waits, {time for times in senders for time in times})
    most = max(longest.values(), default=0)
    # A wait with several of the pauses is counted at the first one.
    pairs = [(a, b) for times in senders for a, b in pairwise(times) if b - a <= most]
    both = _around(waits, pairs)
    found = []
    for times in senders:
        count = sum(bisect_right(starts, time) - bisect_left(ends, time) for time in times)
        count -= sum(both.get(pair, 0) for pair in pairwise(times))
        found.append(Stalls(count, max((longest[time] for time in times), default=0)))
    return found


def _longest_at(waits: list[tuple[int, int]], times: Iterable[int]) -> dict[int, int]:
    """How long the longest wait around each time is; 0: none."""
    found: dict[int, int] = {}
    coming = sorted(waits, reverse=True)
    begun: list[tuple[int, int]] = []
    for time in sorted(times):
        while coming and coming[-1][0] <= time:
            start, end = coming.pop()
            heapq.heappush(begun, (start - end, end))
        while begun and begun[0][1] < time:
            heapq.heappop(begun)
        found[time] = -begun[0][0] if begun else 0
    return found


def _around(waits: list[tuple[int, int]], pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """How many waits each pair of times is in: begun by the first, ended at the second or later."""
    found: dict[tuple[int, int], int] = {}
    coming = sorted(waits, reverse=True)
    ends = sorted({end for _, end in waits})
    sums = [0] * (len(ends) + 1)  # a Fenwick tree over ends, the last one first
    for pair in sorted(set(pairs)):
        while coming and coming[-1][0] <= pair[0]:
            at = len(ends) - bisect_left(ends, coming.pop()[1])
            while at < len(sums):
                sums[at] += 1
                at += at & -at
        at = len(ends) - bisect_left(ends, pair[1])
        count = 0
        while at > 0:
            count += sums[at]
            at -= at & -at
        found[pair] = count
    return found
