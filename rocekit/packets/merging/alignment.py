"""Whether captures show the same traffic, and their clocks against each other.

The packets that two captures have in common bound the offset of their clocks: those from one host pass one
capture point first, those of the opposite direction the other, so the true offset lies between the time
differences of the two directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import Column, as_type
from rocekit.wire.sorting import stable_order, starts

if TYPE_CHECKING:
    from rocekit.packets.blocks import Captured
    from rocekit.packets.merging.alike import Alike, Numbers

Ints = NDArray[np.int64]

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
#: The pairs of fewer hosts can be numbered with 31 bits.
_MANY_HOSTS: Final = 1 << 15


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
    """

    file: int
    offset_ns: int
    bound_ns: int | None
    common: int
    drift: float = 0.0
    at_ns: int = 0
    group: int = 0

    def aligned(self, time_ns: Ints) -> Ints:
        """Times of this capture on the first one's clock."""
        if not self.drift:
            return time_ns - self.offset_ns if self.offset_ns else time_ns
        return time_ns - self.offset_ns - np.round((time_ns - self.at_ns) * self.drift).astype(np.int64)

    def own(self, time_ns: Ints) -> Ints:
        """Times of the first capture's clock on this one's."""
        if not self.drift:
            return time_ns + self.offset_ns
        since = time_ns + self.offset_ns - self.at_ns
        return self.at_ns + np.round(since / (1 - self.drift)).astype(np.int64)

    def to_dict(self) -> dict[str, int | float | None]:
        return {
            "file": self.file,
            "offset_ns": self.offset_ns,
            "bound_ns": self.bound_ns,
            "common": self.common,
            "drift_ppm": round(self.drift * 1e6, 3),
        }


@dataclass(frozen=True, slots=True)
class _Link:
    """The clock of one capture against another's."""

    offset_ns: int
    bound_ns: int | None
    common: int
    drift: float = 0.0
    at_ns: int = 0


def align(parts: Sequence[Captured], alike: Alike) -> list[Alignment]:
    """Offsets relative to the first capture, directly or through others with common packets."""
    links: dict[tuple[int, int], _Link] = {}
    for first in range(len(parts)):
        for second in range(first + 1, len(parts)):
            a, b = alike.common(first, second)
            found = _link(parts[first], parts[second], a - alike.begin[first], b - alike.begin[second])
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
        file, known.offset_ns + offset, bound, link.common, known.drift + drift, at_ns, known.group
    )


def _link(a: Captured, b: Captured, in_a: Numbers, in_b: Numbers) -> _Link | None:
    """The clock of ``b`` against ``a``'s by common packets; None: they are not of the same traffic."""
    if not len(in_a):
        return None
    common = len(in_a)
    ahead = b.time_ns[in_b]
    ahead -= a.time_ns[in_a]
    kept = _together(ahead)
    if not kept.all():
        ahead, in_a, in_b = ahead[kept], in_a[kept], in_b[kept]
    if not _share(a, b, in_a, in_b):
        return None
    return _clock(ahead, (a.src[in_a], a.dst[in_a]), lambda: b.time_ns[in_b], common)


def _clock(ahead: Ints, ends: tuple[Column, Column], when: Callable[[], Ints], common: int) -> _Link:
    """The clock by time differences, given the hosts of packets; ``when``: on the second capture's clock.

    Of two hosts, the direction with the greater differences passes the first capture point first: none of its
    differences is less than the offset. None of the other direction's is more.
    """
    forward, back = _directions(ahead, ends)
    if not len(forward):
        return _Link(int(np.median(ahead)), None, common)
    for certain in (True, False):
        above = forward if certain else _usual(ahead, forward)
        below = back if certain else _usual(-ahead, back)
        high, low = int(ahead[above].min()), int(ahead[below].max())
        if low <= high + _JITTER_NS:
            low, high = min(low, high), max(low, high)
            return _Link(0 if low <= 0 <= high else (low + high) // 2, (high - low + 1) // 2, common)
        drift = _drift(ahead, when(), above, below)
        if drift is not None:
            return _Link(drift[0], drift[1], common, drift[2], drift[3])
    medians = [int(np.median(ahead[chosen])) for chosen in (forward, back)]
    low, high = min(medians), max(medians)
    return _Link(0 if low <= 0 <= high else (low + high) // 2, (high - low + 1) // 2, common)


def _directions(ahead: Ints, ends: tuple[Column, Column]) -> tuple[Ints, Ints]:
    """The packets that pass the first capture point first, and the others; of hosts that both send."""
    hosts = 1 + max(int(end.max()) for end in ends)
    src, dst = (as_type(end, np.int32 if hosts < _MANY_HOSTS else np.int64) for end in ends)
    codes = src * hosts
    codes += dst
    order = stable_order(codes)
    first = starts(codes[order])
    ways = dict(zip(codes[order[first]].tolist(), np.split(order, first[1:]), strict=True))
    medians = {way: np.median(ahead[rows]) for way, rows in ways.items()}
    forward, back = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for way, rows in ways.items():
        source, destination = divmod(way, hosts)
        other = medians.get(destination * hosts + source)
        if other is not None and medians[way] >= other:
            forward.append(rows)
        if other is not None and medians[way] <= other:
            back.append(rows)
    return np.concatenate(forward), np.concatenate(back)


def _usual(ahead: Ints, chosen: Ints) -> Ints:
    """Which of the chosen differences are not far less than nearly all: those may be of wrong pairs."""
    least, middle = np.quantile(ahead[chosen], (0.01, 0.5))
    usual: Ints = chosen[ahead[chosen] >= least - 3 * (middle - least) - _JITTER_NS]
    return usual


def _together(ahead: Ints) -> NDArray[np.bool_]:
    """The time differences near each other: those of one clock against the other."""
    if int(ahead.max()) - int(ahead.min()) <= _WINDOW_NS:
        return np.ones(len(ahead), np.bool_)
    ordered = np.sort(ahead)
    last = np.searchsorted(ordered, ordered + _WINDOW_NS, "right")
    best = int(np.argmax(last - np.arange(len(ordered))))
    kept: NDArray[np.bool_] = (ahead >= ordered[best]) & (ahead <= ordered[last[best] - 1])
    return kept


def _share(a: Captured, b: Captured, in_a: Numbers, in_b: Numbers) -> bool:
    """Whether common packets are more than chance: a share of what both captures show of the time.

    A retransmission without identification is like what it repeats, and CNPs are all alike. So where one
    capture ends before the other starts, nearly all packets of the time have to be common.
    """
    fewer = min(len(a), len(b))
    apart = a.time_ns.max() < b.time_ns.min() or b.time_ns.max() < a.time_ns.min()
    doubtful = bool(apart and not a.ip_id[in_a].any())
    if len(in_a) >= fewer * (_NEARLY_ALL if doubtful else 0.5):
        return True
    ahead = int(np.median(b.time_ns[in_b] - a.time_ns[in_a]))
    first = max(int(a.time_ns.min()), int(b.time_ns.min()) - ahead) - _WINDOW_NS // 100
    last = min(int(a.time_ns.max()), int(b.time_ns.max()) - ahead) + _WINDOW_NS // 100
    within = [a.src[(a.time_ns >= first) & (a.time_ns <= last)]]
    within.append(b.src[(b.time_ns >= first + ahead) & (b.time_ns <= last + ahead)])
    if doubtful:
        fewer = min(map(len, within))
        return fewer >= _ENOUGH and len(in_a) >= fewer * _NEARLY_ALL
    both = np.bincount(a.src[in_a])
    size = len(both)
    counts = [np.bincount(src, minlength=size)[:size] for src in within]
    return bool(((both > 0) & (both >= np.minimum(*counts) * _LEAST_SHARE)).any())


def _drift(ahead: Ints, when: Ints, forward: Ints, back: Ints) -> tuple[int, int, float, int] | None:
    """(offset, bound, drift, time of the offset) of a clock that runs faster or slower than the other one.

    None if no steady clock puts every packet's arrival behind its departure.
    """
    origin, base = int(when.min()), int(ahead[forward].min())
    above = _hull(when[forward] - origin, ahead[forward] - base)
    below = _hull(when[back] - origin, base - ahead[back])
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


def _hull(times: Ints, values: Ints) -> list[tuple[float, float]]:
    """The lower convex hull of (time, value), of the least value in each of up to 2,000 spans of time."""
    spans = np.minimum(times * 2_000 // max(1, int(times.max()) + 1), 1_999)
    order = np.lexsort((values, spans))
    firsts = order[np.r_[True, np.diff(spans[order]) > 0]]
    hull: list[tuple[float, float]] = []
    for t, v in zip(times[firsts].tolist(), values[firsts].tolist(), strict=True):
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (t - hull[-2][0]) >= (v - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((float(t), float(v)))
    return hull
