"""Whether captures show the same traffic, and their clocks against each other.

The packets that two captures have in common bound the offset of their clocks: those from one host pass one
capture point first, those of the opposite direction the other, so the true offset lies between the time
differences of the two directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.merging.steps import LEAST_NS, find_step
from rocekit.packets.slim import PIECE, SlimColumn
from rocekit.wire.sorting import distinct, medians_of_each

if TYPE_CHECKING:
    from rocekit.packets.merging.alike import Alike, RowNumbers
    from rocekit.packets.merging.outline import Outline

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Packets are at two capture points within this time, on clocks that agree.
_WINDOW_NS: Final = 2_000_000_000
#: Two captures of the same traffic have at least this share of one direction's packets in common.
_LEAST_SHARE: Final = 0.05
#: Of doubtful packets, this share, and so many packets.
_NEARLY_ALL: Final = 0.8
_ENOUGH: Final = 64
#: Clocks whose rates differ by more than this do not exist: 1 in 1,000.
_MOST_DRIFT: Final = 1e-3
#: Clocks are taken to run equally fast unless the packets prove more difference than this.
_JITTER_NS: Final = 2_000
#: One of two captures has clearly more packets: the square of how many more is so many times what only one
#: of them has, three standard deviations of what either misses by chance.
_CLEARLY: Final = 9
#: Differences are spread to one side: so many times as far as to the other.
_SPREAD: Final = 2
#: The packets of so few ways are looked for one way after the other; those of more are sorted.
_FEW_WAYS: Final = 16
_NEVER_NS: Final = (1 << 63) - 1
#: Spans of time of which a hull has the least value each.
_SPANS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Alignment:
    """A capture's clock against the first capture's.

    Attributes:
        offset_ns: this capture's time − the first one's, at ``at_ns`` of this capture; 0 if they may share a
            clock.
        bound_ns: how far the true offset may be from it; None if the captures have no packets in common, or
            only of one direction.
        common: packets that this capture has in common with another; 0: it is not aligned.
        drift: by how much faster this clock is: 0.00001 gains 10 µs a second.
        group: captures with packets in common have the same number.
        step_ns: by how much more this clock is ahead from ``step_at_ns`` of this capture on: one was set.
    """

    file: int
    offset_ns: int
    bound_ns: int | None
    common: int
    drift: float = 0.0
    at_ns: int = 0
    group: int = 0
    step_ns: int = 0
    step_at_ns: int = 0

    def aligned(self, time_ns: Ints) -> Ints:
        """Times of this capture on the first one's clock."""
        if self.step_ns:
            time_ns = time_ns - np.where(time_ns >= self.step_at_ns, self.step_ns, 0)
        if not self.drift:
            return time_ns - self.offset_ns if self.offset_ns else time_ns
        return time_ns - self.offset_ns - np.round((time_ns - self.at_ns) * self.drift).astype(np.int64)

    def own(self, time_ns: Ints) -> Ints:
        """Times of the first capture's clock on this one's."""
        own = time_ns + self.offset_ns
        if self.drift:
            own = self.at_ns + np.round((own - self.at_ns) / (1 - self.drift)).astype(np.int64)
        if self.step_ns:
            own = own + np.where(own >= self.step_at_ns - self.step_ns, self.step_ns, 0)
        return own

    def to_dict(self) -> dict[str, int | float | None]:
        return {
            "file": self.file,
            "offset_ns": self.offset_ns,
            "bound_ns": self.bound_ns,
            "common": self.common,
            "drift_ppm": round(self.drift * 1e6, 3),
            "step_ns": self.step_ns,
            "step_at_ns": self.step_at_ns if self.step_ns else None,
        }


class AlignedTimes:
    """The times of a capture's packets on the first capture's clock, looked up as in an array."""

    def __init__(self, times: SlimColumn, alignment: Alignment) -> None:
        self._times, self._alignment = times, alignment

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, rows: Any) -> Any:
        return self._alignment.aligned(self._times[rows])

    @property
    def is_bounded(self) -> bool:
        """Whether packets of both directions bound the clock's offset."""
        return self._alignment.bound_ns is not None

    def whole(self) -> Ints:
        """All of them."""
        return self._alignment.aligned(self._times.whole())


@dataclass(frozen=True, slots=True)
class _Link:
    """The clock of one capture against another's."""

    offset_ns: int
    bound_ns: int | None
    common: int
    drift: float = 0.0
    at_ns: int = 0
    step_ns: int = 0
    step_at_ns: int = 0


def align(alike: Alike) -> list[Alignment]:
    """Offsets relative to the first capture, directly or through others with common packets."""
    links: dict[tuple[int, int], _Link] = {}
    parts = alike.outlines
    sharing = [file for file, shares in enumerate(alike.shares) if shares]
    for first, second in combinations(sharing, 2):
        a, b = alike.common(first, second)
        in_a, in_b = _within(a, alike.begin[first]), _within(b, alike.begin[second])
        found = _link(parts[first], parts[second], in_a, in_b, may_step=len(parts) == 2)
        if found is not None:
            links[first, second] = found
    aligned: dict[int, Alignment] = {}
    group = 0
    while len(aligned) < len(parts):
        root = next(i for i in range(len(parts)) if i not in aligned)
        aligned[root] = Alignment(root, 0, 0 if root == 0 else None, 0, group=group)
        while True:
            ways = [(k, link) for k, link in links.items() if (k[0] in aligned) != (k[1] in aligned)]
            if not ways:
                break
            (first, second), link = max(ways, key=lambda way: way[1].common)
            if second in aligned:
                aligned[first] = _joined(aligned[second], first, link, forward=False)
            else:
                aligned[second] = _joined(aligned[first], second, link, forward=True)
        group += 1
    return [aligned[i] for i in range(len(parts))]


def _joined(known: Alignment, file: int, link: _Link, *, forward: bool) -> Alignment:
    """A capture's alignment through a known one; ``forward``: the link leads from the known one."""
    sign = 1 if forward else -1
    offset, drift, at_ns = sign * link.offset_ns, sign * link.drift, link.at_ns
    if not forward:
        at_ns -= link.offset_ns
    if known.drift:
        offset += round((at_ns - known.at_ns) * known.drift)
    # The bound of a capture that opens a group is None though it is its own reference.
    reference = 0 if known.common == 0 and known.offset_ns == 0 else known.bound_ns
    bound = None if link.bound_ns is None or reference is None else reference + link.bound_ns
    return Alignment(
        file,
        known.offset_ns + offset,
        bound,
        link.common,
        known.drift + drift,
        at_ns,
        known.group,
        link.step_ns,  # of two captures only, so the first one's clock is the known one
        link.step_at_ns,
    )


def _within(rows: RowNumbers, begin: int) -> RowNumbers:
    """Rows of a capture, of which the first one is row ``begin``, as indices into it."""
    if not begin or not isinstance(rows, SlimColumn):
        return rows if not begin else rows[:] - begin
    found = rows.like(np.empty(0, np.int32))
    for _, piece in rows.pieces():
        found.add(piece - begin)
    return found


def _link(
    a: Outline, b: Outline, in_a: RowNumbers, in_b: RowNumbers, *, may_step: bool = False
) -> _Link | None:
    """The clock of ``b`` against ``a``'s by common packets; None: they are not of the same traffic.

    Args:
        may_step: whether to see if one of the clocks was set.
    """
    if not len(in_a):
        return None
    common = len(in_a)
    ahead = np.empty(common, np.int64)
    for at in range(0, common, PIECE):
        piece = slice(at, at + PIECE)
        np.subtract(b.time_ns[in_b[piece]], a.time_ns[in_a[piece]], out=ahead[piece])
    step = None
    if may_step and int(ahead.max()) - int(ahead.min()) >= LEAST_NS:
        step = find_step(b, in_b, ahead, _Ways(a, in_a).of)
        if step is not None:
            ahead -= np.where(b.time_ns[in_b[:]] >= step[1], step[0], 0)
    kept = _together(ahead)
    if kept is not None:
        ahead, in_a, in_b = ahead[kept], in_a[kept], in_b[kept]
    if not _share(a, b, in_a, in_b):
        return None
    found = _clock(ahead, _Ways(a, in_a), lambda: b.time_ns[in_b[:]], common)
    found = found or _Link(_one_way(a, b, in_a, ahead), None, common)
    return found if step is None else replace(found, step_ns=step[0], step_at_ns=step[1])


class _Ways:
    """The ways of packets: from which host to which.

    Attributes:
        of: the way of each packet.
        opposite: of each way that has packets, the one back; −1 if no packet goes back.
    """

    def __init__(self, outline: Outline, rows: RowNumbers) -> None:
        src, dst = outline.ends.src, outline.ends.dst
        hosts = 1 + max(int(src.max(initial=0)), int(dst.max(initial=0)))
        codes = src * hosts + dst
        known = distinct(codes)
        numbers = np.searchsorted(known, codes).astype(np.uint16 if len(known) <= 1 << 16 else np.int32)
        self.of: NDArray[np.integer[Any]] = np.empty(len(rows), numbers.dtype)
        counts = np.zeros(len(known), np.int64)
        for at in range(0, len(rows), PIECE):
            own = numbers[outline.flow[rows[at : at + PIECE]]]
            self.of[at : at + PIECE] = own
            counts += np.bincount(own, minlength=len(known))
        ways = {int(known[number]): number for number in np.flatnonzero(counts).tolist()}
        self.opposite = {
            number: ways.get(code % hosts * hosts + code // hosts, -1) for code, number in ways.items()
        }

    def medians(self, values: Ints) -> dict[int, float]:
        """The median of the packets of each way."""
        if len(self.opposite) <= _FEW_WAYS:
            return {
                way: float(np.median(values[self.of == way], overwrite_input=True)) for way in self.opposite
            }
        return dict(medians_of_each(values, self.of))

    def chosen(self, ways: Sequence[int]) -> Mask:
        """Which packets are of one of these ways."""
        if len(ways) == len(self.opposite):
            return np.ones(len(self.of), np.bool_)
        wanted = np.zeros(max(self.opposite, default=0) + 1, np.bool_)
        wanted[list(ways)] = True
        found: Mask = wanted[self.of]
        return found


def _clock(ahead: Ints, ways: _Ways, when: Callable[[], Ints], common: int) -> _Link | None:
    """The clock by time differences, given the ways of packets; ``when``: on the second capture's clock.

    None if all packets are of one direction.

    Of two hosts, the direction with the greater differences passes the first capture point first: none of its
    differences is less than the offset. None of the other direction's is more.
    """
    forward, back = _directions(ahead, ways)
    if not forward.any():
        return None
    for certain in (True, False):
        above = forward if certain else _usual(ahead, forward)
        below = back if certain else _usual(-ahead, back)
        high = int(np.min(ahead, where=above, initial=_NEVER_NS))
        low = int(np.max(ahead, where=below, initial=-_NEVER_NS))
        if low <= high + _JITTER_NS:
            low, high = min(low, high), max(low, high)
            return _Link(0 if low <= 0 <= high else (low + high) // 2, (high - low + 1) // 2, common)
        drift = _drift(ahead, when(), above, below)
        if drift is not None:
            return _Link(drift[0], drift[1], common, drift[2], drift[3])
    medians = [int(np.median(ahead[chosen])) for chosen in (forward, back)]
    middle_low, middle_high = min(medians), max(medians)
    offset = 0 if middle_low <= 0 <= middle_high else (middle_low + middle_high) // 2
    # The clock was set, or ran unsteadily: it was at ``low`` once and at ``high`` at another time.
    bound = max((middle_high - middle_low + 1) // 2, abs(offset - low), abs(high - offset))
    return _Link(offset, bound, common)


def _one_way(a: Outline, b: Outline, in_a: RowNumbers, ahead: Ints) -> int:
    """The clock of ``b`` by packets of one direction, of which nothing bounds it.

    A packet that only one capture has, because it was lost behind it, must not seem to come behind later ones
    that the other has: so the capture with clearly more packets is in front of the other for all that both
    have. Where both miss about as many, packets that were held up tell: few are, so the differences are
    spread to that side. Of differences that are spread to both sides alike, one packet more decides.
    """
    middle = int(np.median(ahead))
    (a_first, a_last), (b_first, b_last) = a.span, b.span
    first, last = max(a_first, b_first - middle), min(a_last, b_last - middle)
    own = np.bincount(a.flow[in_a[:]], minlength=len(a.ends.src)) > 0
    # Of what both have, a packet that was held up may be in this time at one of the two only.
    when = a.time_ns[in_a[:]]
    alone_a, alone_b = (
        int(counts[own].sum()) - int(np.count_nonzero((first <= times) & (times <= last)))
        for counts, times in (
            (a.flows(first, last), when),
            (b.flows(first + middle, last + middle), when + (ahead - middle)),
        )
    )
    more, alone = alone_a - alone_b, alone_a + alone_b
    if more * more < _CLEARLY * alone or not more:
        least, most = (abs(int(end) - middle) for end in np.quantile(ahead, (0.01, 0.99)))
        if not more or max(least, most) > _SPREAD * min(least, most) + _JITTER_NS:
            more = most - least
    sign = 1 if more >= 0 else -1
    differences = sign * ahead
    return sign * int(differences[_usual(differences, np.ones(len(ahead), np.bool_))].min())


def _directions(ahead: Ints, ways: _Ways) -> tuple[Mask, Mask]:
    """The packets that pass the first capture point first, and the others; of hosts that both send."""
    medians = ways.medians(ahead)
    forward, back = [], []
    for way, other in ways.opposite.items():
        if other >= 0 and medians[way] >= medians[other]:
            forward.append(way)
        if other >= 0 and medians[way] <= medians[other]:
            back.append(way)
    return ways.chosen(forward), ways.chosen(back)


def _usual(ahead: Ints, chosen: Mask) -> Mask:
    """Which of the chosen differences are not far less than nearly all: those may be of wrong pairs."""
    least, middle = np.quantile(ahead[chosen], (0.01, 0.5))
    usual: Mask = chosen & (ahead >= least - 3 * (middle - least) - _JITTER_NS)
    return usual


def _together(ahead: Ints) -> Mask | None:
    """The time differences near each other: those of one clock against the other. None: all of them."""
    if int(ahead.max()) - int(ahead.min()) <= _WINDOW_NS:
        return None
    ordered = np.sort(ahead)
    last = np.searchsorted(ordered, ordered + _WINDOW_NS, "right")
    best = int(np.argmax(last - np.arange(len(ordered))))
    kept: Mask = (ahead >= ordered[best]) & (ahead <= ordered[last[best] - 1])
    return kept


def _share(a: Outline, b: Outline, in_a: RowNumbers, in_b: RowNumbers) -> bool:
    """Whether common packets are more than chance: a share of what both captures show of the time.

    A retransmission without identification is like what it repeats, and CNPs are all alike. So where one
    capture ends before the other starts, nearly all packets of the time have to be common.
    """
    fewer = min(len(a), len(b))
    (a_first, a_last), (b_first, b_last) = a.span, b.span
    apart = a_last < b_first or b_last < a_first
    doubtful = apart and not any(a.ip_id[in_a[at : at + PIECE]].any() for at in range(0, len(in_a), PIECE))
    if len(in_a) >= fewer * (_NEARLY_ALL if doubtful else 0.5):
        return True
    ahead = int(np.median(b.time_ns[in_b[:]] - a.time_ns[in_a[:]]))
    first = max(a_first, b_first - ahead) - _WINDOW_NS // 100
    last = min(a_last, b_last - ahead) + _WINDOW_NS // 100
    within = [a.sources(first, last), b.sources(first + ahead, last + ahead)]
    if doubtful:
        fewer = min(int(counts.sum()) for counts in within)
        return fewer >= _ENOUGH and len(in_a) >= fewer * _NEARLY_ALL
    both = np.bincount(a.src(in_a[:]), minlength=len(within[0]))
    return bool(((both > 0) & (both >= np.minimum(*within) * _LEAST_SHARE)).any())


def _drift(ahead: Ints, when: Ints, forward: Mask, back: Mask) -> tuple[int, int, float, int] | None:
    """(offset, bound, drift, time of the offset) of a clock that runs faster or slower than the other one.

    None if no steady clock puts every packet's arrival behind its departure.
    """
    origin, base = int(when.min()), int(np.min(ahead, where=forward, initial=_NEVER_NS))
    above = _hull(when, origin, ahead, base, forward, 1)
    below = _hull(when, origin, ahead, base, back, -1)
    best: tuple[float, float, float] | None = None
    for points, sign in ((above, 1), (below, -1)):  # the widest corridor is along an edge of a hull
        for (t0, v0), (t1, v1) in pairwise(points):
            slope = (v1 - v0) / (t1 - t0) * sign
            if abs(slope) > _MOST_DRIFT:
                continue
            top = min(v - slope * t for t, v in above)
            bottom = max(-v - slope * t for t, v in below)
            if best is None or top - bottom > best[0]:
                best = (top - bottom, (top + bottom) / 2, slope)
    if best is None or best[0] < -_JITTER_NS:
        return None
    return base + round(best[1]), max(0, round(best[0] / 2)), best[2], origin


def _hull(
    when: Ints, origin: int, ahead: Ints, base: int, chosen: Mask, sign: int
) -> list[tuple[float, float]]:
    """The lower convex hull of (time, value), of the least value in each of up to 2,000 spans of time.

    Args:
        origin: the time that counts as 0; base: the difference that does; sign: −1 turns the values round.
    """
    longest = int(np.max(when, where=chosen, initial=origin)) - origin + 1
    times, values = np.empty(0, np.int64), np.empty(0, np.int64)
    for at in range(0, len(when), PIECE):
        own = chosen[at : at + PIECE]
        times = np.concatenate([times, when[at : at + PIECE][own] - origin])
        values = np.concatenate([values, sign * (ahead[at : at + PIECE][own] - base)])
        spans = np.minimum(times * _SPANS // max(1, longest), _SPANS - 1)
        order = np.lexsort((values, spans))
        firsts = order[np.r_[True, np.diff(spans[order]) > 0]] if len(order) else order
        times, values = times[firsts], values[firsts]
    hull: list[tuple[float, float]] = []
    for t, v in zip(times.tolist(), values.tolist(), strict=True):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (t - hull[-2][0]) >= (v - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((float(t), float(v)))
    return hull
