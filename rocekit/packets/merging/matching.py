"""Which copy of a packet in one capture is which in another, where counting the copies does not tell it.

Packets with the same identity (retransmissions with identification 0, all of IPv6) are matched by time: the
time at which a packet passes the other capture point follows from the packets around it that each capture has
once. The order of equal packets never changes: nobody could tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.slim import PIECE, SlimColumn
from rocekit.wire.sorting import distinct, stable_order, starts

if TYPE_CHECKING:
    from rocekit.packets.merging.alignment import AlignedTimes
    from rocekit.packets.merging.alike import Alike, Numbers, RowNumbers

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_NO_TIMES: Final[Ints] = np.empty(0, np.int64)
#: Without other packets to compare with: equal packets further apart than this are different ones.
_NEAR_NS: Final = 20_000_000
#: The least time by which a copy may be off before another one is looked for.
_SLACK_NS: Final = 200_000
#: No packet is later than this.
_LATE_NS: Final = 1_000_000_000
#: Larger groups of equal packets are matched one after the other.
_MOST_CELLS: Final = 250_000
_AHEAD: Final = 1_000
#: The packets of so few hosts are looked for one host after the other; those of more are sorted.
_FEW_SOURCES: Final = 8
#: The first round knows only packets that counting matches, the next also those of the round before.
_ROUNDS: Final = 2


@dataclass(frozen=True, slots=True)
class _Limits:
    """Within which times one host's packets pass from one capture point to another.

    Attributes:
        low_ns, high_ns: where one point has more copies, one that takes less or more is another packet.
        least_ns, most_ns: the same where both have equally many: then one is rather late than lost.
        reach_ns: what a copy without a partner counts.
    """

    low_ns: int
    high_ns: int
    least_ns: int
    most_ns: int
    reach_ns: int

    @classmethod
    def of(cls, took: Ints, are_bounded: bool) -> _Limits:
        """By the times that packets took, which are put in another order.

        Args:
            are_bounded: whether packets of both directions align the clocks, so that times tell which point a
                packet passed first.
        """
        if not len(took):
            return cls(-_NEAR_NS, _NEAR_NS, -_NEAR_NS, _NEAR_NS, _NEAR_NS)
        if (took == took[0]).all():  # often one packet; as np.quantile finds it, which takes much longer
            low = middle = high = int(float(took[0]))
        else:
            quantiles = np.quantile(took, (0.01, 0.5, 0.99), overwrite_input=True)
            low, middle, high = quantiles.astype(np.int64).tolist()
        reach = max(10 * (high - low), _NEAR_NS)
        # Packets may be late, by queues; they are never there before they were sent.
        if not are_bounded:
            most = max(reach, _LATE_NS)
            bounds = middle - reach, middle + reach, middle - most, middle + most
        elif middle >= 0:
            early = -_SLACK_NS if low >= 0 else low - 3 * (middle - low) - _SLACK_NS
            bounds = early, middle + reach, early, middle + max(reach, _LATE_NS)
        else:  # they pass the other point first
            late = _SLACK_NS if high <= 0 else high + 3 * (high - middle) + _SLACK_NS
            bounds = middle - reach, late, middle - max(reach, _LATE_NS), late
        return cls(*bounds, reach)


class _Way:
    """How long one host's packets take from one capture point to another.

    Args:
        here: times of the same packets at the one point; there: at the other.
    """

    def __init__(self, here: Ints, there: Ints, limits: _Limits) -> None:
        if not (here[1:] > here[:-1]).all():
            order = np.lexsort((there, here))  # of the same time, whatever order they were matched in
            here, there = here[order], there[order]
        self.here, self.there = here, there
        self.limits, self.reach_ns = limits, limits.reach_ns

    def bounds_ns(self, identified: bool) -> tuple[int, int]:
        """The least and the most that a packet takes.

        One with an identification is rather late than another packet: its sender gives each its own.
        """
        limits = self.limits
        return (limits.least_ns, limits.most_ns) if identified else (limits.low_ns, limits.high_ns)

    def off(self, here: Ints, there: Ints, identified: bool) -> NDArray[np.float64]:
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
        low_ns, high_ns = self.bounds_ns(identified)
        found[(took < low_ns) | (took > high_ns)] = np.inf
        return found


def number(alike: Alike, times: Sequence[AlignedTimes]) -> tuple[list[SlimColumn], int]:
    """A number for each packet, the same for its copies in all captures; and how many numbers there are.

    Args:
        times: of each capture's packets.

    Returns the numbers by capture.
    """
    sizes = alike.most * alike.even  # in few bytes
    total = int(sizes.sum())
    matcher = _Matcher(alike, times)
    doubtful = ~alike.even
    matcher.mark_doubtful(doubtful)
    groups = np.flatnonzero(doubtful)
    if total == alike.groups and (sizes == 1).all():
        if not len(groups):
            return [outline.group for outline in alike.outlines], total
        numbers = np.concatenate([outline.group.whole() for outline in alike.outlines])
    else:
        begins = (np.cumsum(sizes, dtype=np.int64) - sizes).astype(np.int32)
        numbers = np.concatenate([begins[outline.group.whole()] for outline in alike.outlines])
        for file in range(len(alike.outlines)):
            rows, place = alike.place_in_group(file)
            numbers[rows] += place.astype(np.int32)
    for _ in range(_ROUNDS if len(groups) else 0):
        for group in groups.tolist():
            total = matcher.resolve(group, numbers, total)
        matcher.learn(numbers, total)
    return [SlimColumn.of(numbers[alike.rows_of(f)], np.int32) for f in range(len(alike.outlines))], total


class _Matcher:
    """Numbers the packets of groups one group at a time."""

    def __init__(self, alike: Alike, times: Sequence[AlignedTimes]) -> None:
        self._alike = alike
        self._outlines, self._times = alike.outlines, times
        self._ways: dict[tuple[int, int, int], _Way] = {}
        self._limits: dict[tuple[int, int, int], _Limits] = {}
        self._common: dict[tuple[int, int], tuple[RowNumbers, RowNumbers]] = {}
        self._has_many_sources = [len(distinct(o.ends.src)) > _FEW_SOURCES for o in alike.outlines]
        self._by_source: dict[tuple[int, int], dict[int, Ints]] = {}

    def _time_of(self, rows: Ints | Numbers, file: int) -> Ints:
        found: Ints = self._times[file][rows - self._alike.begin[file]]
        return found

    def _src_of(self, rows: Ints | Numbers, file: int) -> Ints:
        return self._outlines[file].src(rows - self._alike.begin[file])

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
        self._limits.clear()
        self._by_source.clear()

    def _way(self, first: int, second: int, src: int) -> _Way:
        key = (first, second, src)
        if key not in self._ways:
            pieces = [*self._passing(first, second, src)]
            here, there = (np.concatenate([_NO_TIMES, *times]) for times in zip(*pieces, strict=True))
            self._ways[key] = _Way(here, there, self._limits_of(first, second, src))
        return self._ways[key]

    def _limits_of(self, first: int, second: int, src: int) -> _Limits:
        key = (first, second, src)
        if key not in self._limits:
            took = [there - here for here, there in self._passing(first, second, src)]
            are_bounded = self._times[first].is_bounded and self._times[second].is_bounded
            self._limits[key] = _Limits.of(np.concatenate(took), are_bounded)
        return self._limits[key]

    def _passing(self, first: int, second: int, src: int) -> Iterator[tuple[Ints, Ints]]:
        """When one host's packets that two captures have in common passed each, in pieces; at least one."""
        if (first, second) not in self._common:
            self._common[first, second] = self._alike.common(first, second, least=0)
        a, b = self._common[first, second]
        if self._has_many_sources[first]:
            mine = self._places_of(first, second).get(src, _NO_TIMES)
            for at in range(0, max(len(mine), 1), PIECE):
                places = mine[at : at + PIECE]
                yield self._time_of(a[places], first), self._time_of(b[places], second)
            return
        for at in range(0, max(len(a), 1), PIECE):
            rows, others = a[at : at + PIECE], b[at : at + PIECE]
            own = self._src_of(rows, first) == src
            yield self._time_of(rows[own], first), self._time_of(others[own], second)

    def _places_of(self, first: int, second: int) -> dict[int, Ints]:
        """By host, which of the packets in common it sent: there may be as many hosts as packets."""
        known = self._by_source.get((first, second))
        if known is None:
            rows = self._common[first, second][0]
            pieces = range(0, len(rows), PIECE)
            sources = np.concatenate(
                [_NO_TIMES, *(self._src_of(rows[at : at + PIECE], first) for at in pieces)]
            )
            order = stable_order(sources)
            begins = starts(sources[order])
            places = np.split(order, begins[1:]) if len(begins) else []
            known = dict(zip(sources[order[begins]].tolist(), places, strict=True))
            self._by_source[first, second] = known
        return known

    def mark_doubtful(self, doubtful: Mask) -> None:
        """Mark even groups of which a pair, the k-th of each capture, is off the usual time.

        Only those whose identity does not tell them from a retransmission: without identification.
        """
        alike = self._alike
        uncertain = np.zeros(alike.groups, np.bool_)
        for outline in self._outlines:
            # An identity has the identification in it: what holds of one packet of a group holds of all.
            for at, ip_id in outline.ip_id.pieces():
                if not ip_id.all():
                    uncertain[outline.group[np.flatnonzero(ip_id == 0) + at]] = True
        if not uncertain.any():
            return
        uncertain &= alike.even
        before = np.zeros(alike.groups, np.bool_)
        sharing = [file for file, shares in enumerate(alike.shares) if shares]
        for place, first in enumerate(sharing):
            here = alike.count[first] > 0
            from_here = uncertain & here & ~before
            before |= here
            for second in sharing[place + 1 :]:
                self._mark_off(doubtful, from_here & (alike.count[second] > 0), first, second)

    def _mark_off(self, doubtful: Mask, groups: Mask, first: int, second: int) -> None:
        others, rows = self._alike.pairs(groups, first, second)
        took = self._time_of(rows, second) - self._time_of(others, first)
        sources = self._src_of(rows, second)
        different = distinct(sources)
        limits = [self._limits_of(first, second, src) for src in different.tolist()]
        least, most = (
            np.array([getattr(of, name) for of in limits], np.int64) for name in ("least_ns", "most_ns")
        )
        of = np.searchsorted(different, sources)
        off = (took < least[of]) | (took > most[of])
        doubtful[self._alike.group_of(rows[off], second)] = True

    def resolve(self, group: int, numbers: Numbers, total: int) -> int:
        """Number a group's packets from ``total`` on; returns the next free number."""
        count = [int(counts[group]) for counts in self._alike.count]
        # Each capture's packets so far, as times and numbers, by capture.
        known: list[tuple[int, Ints, Ints]] = []
        for file in sorted(range(len(count)), key=lambda f: (-count[f], f)):
            if not count[file]:
                break
            rows = self._alike.packets_of(group, file)
            times, src = self._time_of(rows, file), int(self._src_of(rows[:1], file)[0])
            identified = bool(self._outlines[file].ip_id[rows[:1] - self._alike.begin[file]][0])
            own = np.full(len(rows), -1, np.int64)
            for other, their_times, their_numbers in known:
                way = self._way(other, file, src)
                open_rows = np.flatnonzero(own < 0)
                free = np.flatnonzero(~np.isin(their_numbers, own))
                for mine, theirs in _pairs(their_times[free], times[open_rows], way, identified):
                    own[open_rows[mine]] = their_numbers[free[theirs]]
            fresh = np.flatnonzero(own < 0)
            own[fresh] = np.arange(total, total + len(fresh))
            total += len(fresh)
            numbers[rows] = own
            known.append((file, times, own))
        return total


def _pairs(here: Ints, there: Ints, way: _Way, identified: bool) -> list[tuple[int, int]]:
    """(place in ``there``, place in ``here``) of the same packets, by times at the two points.

    The sum of what they are off their expected times is least.
    """
    if not len(here) or not len(there):
        return []
    if len(here) * len(there) > _MOST_CELLS:
        return _one_by_one(here, there, way, identified)
    return _least(way.off(here, there, identified), way.reach_ns)


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


def _one_by_one(here: Ints, there: Ints, way: _Way, identified: bool) -> list[tuple[int, int]]:
    """As ``_least``, but each takes the nearest of the next few that the one before it left."""
    pairs, free = [], 0
    low_ns = way.bounds_ns(identified)[0]
    for place, time in enumerate(there.tolist()):
        last = min(int(np.searchsorted(here, time - low_ns, "right")), free + _AHEAD)
        if last <= free:
            continue
        off = way.off(here[free:last], there[place : place + 1], identified)[0]
        nearest = int(np.argmin(off))
        if np.isfinite(off[nearest]):
            pairs.append((place, free + nearest))
            free += nearest + 1
    return pairs
