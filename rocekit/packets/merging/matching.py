"""Which copy of a packet in one capture is which in another, where counting the copies does not tell it.

Packets with the same identity (retransmissions with identification 0, all of IPv6) are matched by time: the
time at which a packet passes the other capture point follows from the packets around it that each capture has
once. The order of equal packets never changes: nobody could tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.packets.blocks import Captured
    from rocekit.packets.merging.alike import Alike, Numbers

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Without other packets to compare with: equal packets further apart than this are different ones.
_NEAR_NS: Final = 20_000_000
#: The least time by which a copy may be off before another one is looked for.
_SLACK_NS: Final = 200_000
#: No packet is later than this.
_LATE_NS: Final = 1_000_000_000
#: Larger groups of equal packets are matched one after the other.
_MOST_CELLS: Final = 250_000
_AHEAD: Final = 1_000
#: The first round knows only packets that counting matches, the next also those of the round before.
_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True)
class _Way:
    """How long one host's packets take from one capture point to another.

    Attributes:
        here: times of the same packets at the one point, in order; there: at the other.
        low_ns, high_ns: where one point has more copies, one that takes less or more is another packet.
        least_ns, most_ns: the same where both have equally many: then one is rather late than lost.
        reach_ns: what a copy without a partner counts.
    """

    here: Ints
    there: Ints
    low_ns: int
    high_ns: int
    least_ns: int
    most_ns: int
    reach_ns: int

    @classmethod
    def of(cls, here: Ints, there: Ints) -> _Way:
        if not len(here):
            return cls(here, there, -_NEAR_NS, _NEAR_NS, -_NEAR_NS, _NEAR_NS, _NEAR_NS)
        if not (here[1:] > here[:-1]).all():
            order = np.lexsort((there, here))  # of the same time, whatever order they were matched in
            here, there = here[order], there[order]
        low, middle, high = np.quantile(there - here, (0.01, 0.5, 0.99)).astype(np.int64).tolist()
        reach = max(10 * (high - low), _NEAR_NS)
        # Packets may be late, by queues; they are never there before they were sent.
        if middle >= 0:
            early = -_SLACK_NS if low >= 0 else low - 3 * (middle - low) - _SLACK_NS
            bounds = early, middle + reach, early, middle + max(reach, _LATE_NS)
        else:  # they pass the other point first
            late = _SLACK_NS if high <= 0 else high + 3 * (high - middle) + _SLACK_NS
            bounds = middle - reach, late, middle - max(reach, _LATE_NS), late
        return cls(here, there, *bounds, reach)

    def off(self, here: Ints, there: Ints) -> NDArray[np.float64]:
        """How far each packet at the second point (a row) is off the expected time of each at the first.

        Between the arrivals of those around it any time is as good as another, or nearly.
        """
        if not len(self.here):
            return np.abs(there[:, None] - here[None, :]).astype(np.float64)
        after = np.searchsorted(self.here, here)
        low = np.where(after > 0, self.there[np.maximum(after - 1, 0)], self.there[0] - self.reach_ns)
        last = len(self.here) - 1
        high = np.where(after <= last, self.there[np.minimum(after, last)], self.there[-1] + self.reach_ns)
        low, high = np.minimum(low, high), np.maximum(low, high)
        base = int(self.here[0])
        usual = np.interp(here - base, self.here - base, self.there - self.here)
        expected = here + np.round(usual).astype(np.int64)
        times = there[:, None]
        # Where there are few packets around, they say little.
        beyond = np.clip(np.maximum(low - times, times - high), 0, self.reach_ns // 2)
        found: NDArray[np.float64] = beyond + np.minimum(np.abs(times - expected), self.reach_ns // 2) / 1_000
        took = times - here
        found[(took < self.low_ns) | (took > self.high_ns)] = np.inf
        return found


def number(alike: Alike, parts: Sequence[Captured], times: Sequence[Ints]) -> tuple[Numbers, int]:
    """A number for each row, the same for a packet's copies in all captures; and how many numbers there are.

    Args:
        parts: the packets of each capture; times: their aligned times.
    """
    sizes = np.where(alike.even, alike.most, 0)
    total = int(sizes.sum())
    if total == alike.groups and (sizes == 1).all():
        numbers = alike.group.copy()
    else:
        numbers = (np.cumsum(sizes) - sizes).astype(np.int32)[alike.group]
        for file in range(len(parts)):
            rows, place = alike.place_in_group(file)
            numbers[rows] += place.astype(np.int32)
    matcher = _Matcher(alike, parts, times)
    doubtful = ~alike.even
    matcher.mark_doubtful(doubtful)
    groups = np.flatnonzero(doubtful).tolist()
    for _ in range(_ROUNDS if groups else 0):
        for group in groups:
            total = matcher.resolve(group, numbers, total)
        matcher.learn(numbers, total)
    return numbers, total


class _Matcher:
    """Numbers the packets of groups one group at a time."""

    def __init__(self, alike: Alike, parts: Sequence[Captured], times: Sequence[Ints]) -> None:
        self._alike = alike
        self._parts, self._times = parts, times
        self._ways: dict[tuple[int, int, int], _Way] = {}
        self._common: dict[tuple[int, int], tuple[Numbers, Numbers]] = {}

    def _time_of(self, rows: Ints | Numbers, file: int) -> Ints:
        return self._times[file][rows - self._alike.begin[file]]

    def _src_of(self, rows: Ints | Numbers, file: int) -> NDArray[Any]:
        found: NDArray[Any] = self._parts[file].src[rows - self._alike.begin[file]]
        return found

    def learn(self, numbers: Numbers, total: int) -> None:
        """Take the delays from all packets that have been matched, by their numbers."""
        for first, second in self._common:
            places = np.full((2, total), -1, np.int32)
            for place, file in zip(places, (first, second), strict=True):
                own = self._alike.rows_of(file)
                place[numbers[own]] = np.arange(own.start, own.stop, dtype=np.int32)
            both = (places >= 0).all(axis=0)
            self._common[first, second] = places[0, both], places[1, both]
        self._ways.clear()

    def _way(self, first: int, second: int, src: int) -> _Way:
        key = (first, second, src)
        if key not in self._ways:
            if (first, second) not in self._common:
                self._common[first, second] = self._alike.common(first, second, least=0)
            a, b = self._common[first, second]
            chosen = self._src_of(a, first) == src
            self._ways[key] = _Way.of(self._time_of(a[chosen], first), self._time_of(b[chosen], second))
        return self._ways[key]

    def mark_doubtful(self, doubtful: Mask) -> None:
        """Mark even groups of which a pair, the k-th of each capture, is off the usual time.

        Only those whose identity does not tell them from a retransmission: without identification.
        """
        alike = self._alike
        uncertain = np.zeros(alike.groups, np.bool_)
        for file, part in enumerate(self._parts):
            # An identity has the identification in it: what holds of one packet of a group holds of all.
            uncertain[alike.group[alike.rows_of(file)][part.ip_id == 0]] = True
        if not uncertain.any():
            return
        uncertain &= alike.even
        before = np.zeros(alike.groups, np.bool_)
        for first in range(len(self._parts)):
            here = alike.count[first] > 0
            from_here = uncertain & here & ~before
            before |= here
            for second in range(first + 1, len(self._parts)):
                self._mark_off(doubtful, from_here & (alike.count[second] > 0), first, second)

    def _mark_off(self, doubtful: Mask, groups: Mask, first: int, second: int) -> None:
        others, rows = self._alike.pairs(groups, first, second)
        took = self._time_of(rows, second) - self._time_of(others, first)
        sources = self._src_of(rows, second)
        for src in distinct(sources).tolist():
            way = self._way(first, second, src)
            off = (sources == src) & ((took < way.least_ns) | (took > way.most_ns))
            doubtful[self._alike.group[rows[off]]] = True

    def resolve(self, group: int, numbers: Numbers, total: int) -> int:
        """Number a group's packets from ``total`` on; returns the next free number."""
        count = self._alike.count[:, group].tolist()
        # Each capture's packets so far, as times and numbers, by capture.
        known: list[tuple[int, Ints, Ints]] = []
        for file in sorted(range(len(count)), key=lambda f: (-count[f], f)):
            if not count[file]:
                break
            rows = self._alike.packets_of(group, file)
            times, src = self._time_of(rows, file), int(self._src_of(rows[:1], file)[0])
            own = np.full(len(rows), -1, np.int64)
            for other, their_times, their_numbers in known:
                way = self._way(other, file, src)
                open_rows = np.flatnonzero(own < 0)
                free = np.flatnonzero(~np.isin(their_numbers, own))
                for mine, theirs in _pairs(their_times[free], times[open_rows], way):
                    own[open_rows[mine]] = their_numbers[free[theirs]]
            fresh = np.flatnonzero(own < 0)
            own[fresh] = np.arange(total, total + len(fresh))
            total += len(fresh)
            numbers[rows] = own
            known.append((file, times, own))
        return total


def _pairs(here: Ints, there: Ints, way: _Way) -> list[tuple[int, int]]:
    """(place in ``there``, place in ``here``) of the same packets, by times at the two points.

    The sum of what they are off their expected times is least.
    """
    if not len(here) or not len(there):
        return []
    if len(here) * len(there) > _MOST_CELLS:
        return _one_by_one(here, there, way)
    return _least(way.off(here, there), way.reach_ns)


def _least(off: NDArray[np.float64], reach_ns: int) -> list[tuple[int, int]]:
    """The pairs in order of both with the least sum; each place without a partner counts ``reach_ns``."""
    rows, columns = off.shape
    gain = reach_ns * 2.0 + 1 - off  # a pair spares two places without a partner
    best = np.zeros((rows + 1, columns + 1))
    for r in range(rows):
        through = best[r, :-1] + np.where(np.isinf(off[r]), -np.inf, gain[r])
        best[r + 1, 1:] = np.maximum.accumulate(np.maximum(best[r, 1:], through))
    pairs = []
    r, c = rows, columns
    while r and c:
        if best[r, c] == best[r - 1, c]:
            r -= 1
        elif best[r, c] == best[r, c - 1]:
            c -= 1
        else:
            r, c = r - 1, c - 1
            pairs.append((r, c))
    return pairs[::-1]


def _one_by_one(here: Ints, there: Ints, way: _Way) -> list[tuple[int, int]]:
    """As ``_least``, but each takes the nearest of the next few that the one before it left."""
    pairs, free = [], 0
    for place, time in enumerate(there.tolist()):
        last = min(int(np.searchsorted(here, time - way.low_ns, "right")), free + _AHEAD)
        if last <= free:
            continue
        off = way.off(here[free:last], there[place : place + 1])[0]
        nearest = int(np.argmin(off))
        if np.isfinite(off[nearest]):
            pairs.append((place, free + nearest))
            free += nearest + 1
    return pairs
