"""The grounds from which the place of a capture is inferred: direction, hops, clock, timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.points.turnarounds import (
    ANSWER,
    GO_BACK,
    PROGRAM,
    REACTION,
    RESPONSE,
    Floor,
    Sampler,
    Turns,
    place,
    turnarounds,
)
from rocekit.wire.sorting import distinct, stable_order, starts
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.track.connections import Connection

A, B, BETWEEN = "a", "b", "between"
#: One host's turnaround counts as farther away when it is so many times the other's, and so much longer.
_TIMES: Final = 4
_LONGER_NS: Final = 2_000
#: A device that responds this fast is at the capture point.
_AT_ONCE_NS: Final = 1_000
#: Where both hosts are steadily this far away, the capture point is between them.
_FAR_NS: Final = 500_000
#: Hosts send with one of these hop limits; packets pass no more routers than ``_MOST_HOPS``.
_HOP_LIMITS: Final = np.array([64, 128, 255])
_MOST_HOPS: Final = 16
#: A clock with a wider bound than this proves nothing.
_CLOCK_NS: Final = 1_000_000


class RowsBy:
    """Finds the rows of a column with a value, by a search: there may be as many values as rows."""

    def __init__(self, column: NDArray[np.int64]) -> None:
        self._order = np.argsort(column, kind="stable")
        self._values = column[self._order]

    def rows(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows with one of these values, in order; no value is twice among them."""
        low, high = (np.searchsorted(self._values, values, side=side) for side in ("left", "right"))
        counts = high - low
        before = np.cumsum(counts) - counts
        places = np.arange(counts.sum()) + np.repeat(low - before, counts)
        return np.sort(self._order[places])


class HostPairs:
    """A capture's sample: the connection of each packet, and the turnarounds."""

    def __init__(self, sampler: Sampler, file: int, connections: Sequence[Connection]) -> None:
        self.file = file
        self._addresses = {name: i for i, name in enumerate(sampler.addresses)}
        self._local = sampler.local
        self._columns = sampler.columns(file)
        self._ways = _Ways.of(self._columns) if self._columns else _Ways({}, {})
        pair, side = place(self._columns, self._addresses, connections)
        self._pair = pair
        self.shown: list[int] = distinct(pair[pair >= 0]).tolist()
        self.turns = turnarounds(self._columns, pair, side)
        self._turns_by_pair = RowsBy(self.turns.pair)

    def by_connection(self) -> list[tuple[int, Turns]]:
        """The index of each connection in the capture, with its turnarounds."""
        order = np.argsort(self.turns.pair, kind="stable")
        ordered = self.turns.where(order)
        low = np.searchsorted(ordered.pair, self.shown).tolist()
        high = np.searchsorted(ordered.pair, self.shown, side="right").tolist()
        return [(n, ordered.where(slice(low[i], high[i]))) for i, n in enumerate(self.shown)]

    def telling(self) -> list[int]:
        """Those of ``shown`` whose hosts' place the packets may tell."""
        if self._local or self._ways.sent_here:
            return self.shown
        ends = self._columns["src"] << 32 | self._columns["dst"]
        known = np.fromiter(self._ways.hops, np.int64)
        found = np.isin(ends, known[np.isin(self._opposite(known), known)])
        if len(self.turns.pair):
            turned = distinct(self.turns.pair)
            hosts = np.isin(self._pair, turned)
            ways = distinct(ends[hosts])
            found |= np.isin(ends, ways) | np.isin(ends, self._opposite(ways))
        return distinct(self._pair[found & (self._pair >= 0)]).tolist()

    @staticmethod
    def _opposite(way: Any) -> Any:
        """The way back."""
        return (way & 0xFFFF_FFFF) << 32 | way >> 32

    def turns_of(self, members: Sequence[int], flipped: set[int]) -> Turns:
        """The turnarounds of some connections; ``a`` and ``b`` are swapped for those in ``flipped``."""
        if not len(self.turns.pair):
            return self.turns
        chosen = self.turns.where(self._turns_by_pair.rows(np.array(members, np.int64)))
        turned = np.isin(chosen.pair, [n for n in members if n in flipped])
        return Turns(
            chosen.pair,
            np.where(turned, 1 - chosen.side, chosen.side),
            chosen.kind,
            chosen.gap,
            chosen.period,
        )

    def _way(self, src: str, dst: str) -> int:
        """What `_Ways` calls the way from one host to another."""
        here, there = self._addresses.get(src), self._addresses.get(dst)
        return -1 if here is None or there is None else here << 32 | there

    def by_direction(self, hosts: tuple[str, str]) -> tuple[str, str, str] | None:
        """The capturing host is known by its addresses, or by the direction in cooked headers."""
        if self._local:
            own = [host in self._local for host in hosts]
            if own[0] != own[1]:
                side = own.index(True)
                return (A, B)[side], "direction", f"{hosts[side]} is this host's address"
        if not self._ways.sent_here:
            return None
        sends = [self._ways.sent_here.get(self._way(*ends), False) for ends in (hosts, hosts[::-1])]
        if sends[0] == sends[1]:
            return None
        side = sends.index(True)
        return (A, B)[side], "direction", f"the capture marks packets of {hosts[side]} as outgoing"

    def hops(self, hosts: tuple[str, str]) -> dict[int, int]:
        """By sender, how many routers the packets have passed, by their hop limit, where that is known."""
        passed = self._ways.hops
        ways = (self._way(*hosts), self._way(*hosts[::-1])) if passed else ()
        return {side: passed[way] for side, way in enumerate(ways) if way in passed}


class _Ways(NamedTuple):
    """What the packets from one host to another say together, by both hosts' numbers in one.

    Attributes:
        hops: the routers that they have passed; none where that is unknown.
        sent_here: whether all of them are marked as sent by the capturing host; empty without such marks.
    """

    hops: dict[int, int]
    sent_here: dict[int, bool]

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[np.int64]]) -> _Ways:
        """Of all ways at once: there may be as many as packets."""
        ends = columns["src"] << 32 | columns["dst"]
        order = stable_order(ends)
        ordered = ends[order]
        begins = starts(ordered)
        ways = ordered[begins]
        limits = columns["hop_limit"][order]
        least, most = np.minimum.reduceat(limits, begins), np.maximum.reduceat(limits, begins)
        passed = _HOP_LIMITS[np.searchsorted(_HOP_LIMITS, least)] - least
        known = (least == most) & (passed <= _MOST_HOPS)
        hops = dict(zip(ways[known].tolist(), passed[known].tolist(), strict=True))
        marks = columns["outgoing"]
        if (marks < 0).all():
            return cls(hops, {})
        sent = np.logical_and.reduceat(marks[order] == 1, begins)
        return cls(hops, dict(zip(ways.tolist(), sent.tolist(), strict=True)))


def by_clock(hosts: tuple[str, str], journal: Correlation | None) -> tuple[str, str, str] | None:
    """The clock of the capture is that of one host, and not of the other."""
    if journal is None:
        return None
    windows: dict[int, tuple[str, int, int]] = {}
    for qp in journal.programs.qps:
        bound = journal.place(qp)
        clock = journal.clocks.get(qp.host)
        if bound is None or clock is None or clock.low_ns is None or clock.high_ns is None:
            continue
        ip = bound[0].ips[bound[1]]
        for side in (0, 1):
            if ip == hosts[side]:
                windows[side] = qp.host, clock.low_ns, clock.high_ns
    if len(windows) < 2 or windows[0][0] == windows[1][0]:
        return None
    fits = {s: low <= 0 <= high and high - low < _CLOCK_NS for s, (_, low, high) in windows.items()}
    if fits[0] == fits[1]:
        return None
    side = 0 if fits[0] else 1
    _, low, high = windows[1 - side]
    if low <= 0 <= high:
        return None
    own = windows[side][2] - windows[side][1]
    off = abs(low) if abs(low) < abs(high) else abs(high)
    return (
        (A, B)[side],
        "clock",
        f"the capture's clock is that of {windows[side][0]} within {duration(own)}, and differs from that of "
        f"{windows[1 - side][0]} by {duration(off)} or more",
    )


def by_hops(hosts: tuple[str, str], hops: Mapping[int, int]) -> tuple[str, str, str] | None:
    """Routers have decremented the hop limit of one host's packets, and not of the other's; or of both."""
    if len(hops) < 2 or hops[0] == hops[1] == 0:
        return None
    passed = ", ".join(f"those of {hosts[s]} {_routers(hops[s])}" for s in (0, 1))
    where = BETWEEN if hops[0] and hops[1] else B if hops[0] else A
    return where, "hops", f"packets have passed routers: {passed}"


def by_timing(hosts: tuple[str, str], floors: Mapping[int, Floor]) -> tuple[str | None, str | None, str]:
    """One host responds much faster than the other: it is near; or both are steadily far away."""
    if len(floors) < 2:
        missing = [hosts[s] for s in (0, 1) if s not in floors]
        return None, None, f"too few response times of {' and '.join(missing)}"
    near = 0 if floors[0].min_ns <= floors[1].min_ns else 1
    close, far = floors[near], floors[1 - near]
    words = _compared(hosts[near], close, hosts[1 - near], far)
    if far.min_ns >= _TIMES * close.min_ns and far.min_ns - close.min_ns >= _LONGER_NS:
        # Devices acknowledge equally fast. How fast a program continues, or a device goes back, varies.
        if far.kind == ANSWER or (
            close.kind in (ANSWER, RESPONSE) and close.min_ns <= _AT_ONCE_NS and far.steady
        ):
            return (A, B)[near], "timing", words
        return None, None, f"{hosts[1 - near]} responds much later, but may be slow rather than far away"
    if close.min_ns >= _FAR_NS and close.steady and far.steady and close.kind == far.kind == ANSWER:
        return BETWEEN, "timing", f"both hosts are far away: {words}"
    return None, None, "both hosts respond equally fast"


def _compared(near: str, close: Floor, away: str, far: Floor) -> str:
    """The shortest times of both hosts in words."""
    if close.kind == far.kind:
        times = f"{duration(close.min_ns)} of {near}, {duration(far.min_ns)} of {away}"
        return f"shortest {_TIMED[close.kind]}: {times}"
    return ", ".join(
        f"shortest {_TIMED[floor.kind]} of {host}: {duration(floor.min_ns)}"
        for host, floor in ((near, close), (away, far))
    )


_TIMED: Final = {
    ANSWER: "time to ACK",
    RESPONSE: "time to respond to a READ or atomic",
    GO_BACK: "time from NAK to go-back",
    PROGRAM: "time from post to poll outside the capture",
    REACTION: "time from ACK to next request",
}


def _routers(n: int) -> str:
    return plural(n, "router") if n else "none"
