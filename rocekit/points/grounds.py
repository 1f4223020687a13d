"""The grounds from which the place of a capture is inferred: direction, hops, clock, timing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.points.turnarounds import (
    ANSWER,
    FEWEST,
    GO_BACK,
    NO_TURNS,
    PROGRAM,
    REACTION,
    RESPONSE,
    Ends,
    Floor,
    Ints,
    Sampler,
    Turns,
    place,
    turnarounds,
)
from rocekit.wire.sorting import stable_order, starts
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
#: A way is the numbers of both hosts in one.
WAY_BITS: Final = 32
_HOST: Final = (1 << WAY_BITS) - 1
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
    """A capture's sample: the connection of each packet, and the turnarounds.

    Attributes:
        names: the addresses, by number; numbers: by name.
        ends: of all connections.
        shown: the indexes of those that have packets here.
        turns: the turnarounds; turn_counts: how many each connection has.
    """

    def __init__(self, sampler: Sampler, file: int, connections: list[Connection]) -> None:
        self.file = file
        self.names = sampler.addresses
        self.numbers = sampler.numbers()
        self.ends = Ends.of(connections, self.numbers)
        self._local = sampler.local
        columns = sampler.columns(file)
        self._ways = Ways(columns)
        pair, side = place(columns, self.ends)
        self._pair = pair
        self.shown: Ints = _chosen(len(connections), pair[pair >= 0])
        self.turns = turnarounds(columns, pair, side)
        self.turn_counts: Ints = np.bincount(self.turns.pair, minlength=len(connections))
        self._turns_by_pair = RowsBy(self.turns.pair)

    def by_connection(self) -> list[tuple[int, Turns]]:
        """The index of each connection in the capture, with its turnarounds; too few of them are none."""
        order = np.argsort(self.turns.pair, kind="stable")
        ordered = self.turns.where(order)
        low = np.searchsorted(ordered.pair, self.shown).tolist()
        high = np.searchsorted(ordered.pair, self.shown, side="right").tolist()
        return [
            (n, ordered.where(slice(first, end)) if end - first >= FEWEST else NO_TURNS)
            for n, first, end in zip(self.shown.tolist(), low, high, strict=True)
        ]

    def telling(self) -> Ints:
        """Those of ``shown`` whose hosts' place the packets may tell."""
        ways = self._ways
        if self._local or ways.sent is not None:
            return self.shown
        back = ways.back()
        found = (ways.hops >= 0) & (back >= 0) & (ways.hops[back] >= 0)
        if len(self.turns.pair):
            turned = np.zeros(len(self.ends.a) + 1, np.bool_)  # the last one: packets of no connection
            turned[self.turns.pair] = True
            here = np.zeros(len(found), np.bool_)
            here[ways.way[turned[self._pair]]] = True
            found |= here | ((back >= 0) & here[back])
        return _chosen(len(self.ends.a), self._pair[found[ways.way] & (self._pair >= 0)])

    def turns_of(self, members: Ints, flipped: NDArray[np.bool_]) -> Turns:
        """The turnarounds of some connections; ``a`` and ``b`` are swapped for those that are ``flipped``."""
        if not len(self.turns.pair):
            return self.turns
        chosen = self.turns.where(self._turns_by_pair.rows(members))
        turned = np.isin(chosen.pair, members[flipped])
        return Turns(
            chosen.pair,
            np.where(turned, 1 - chosen.side, chosen.side),
            chosen.kind,
            chosen.gap,
            chosen.period,
        )

    def ways(self, src: Ints, dst: Ints) -> tuple[list[int], list[int]]:
        """Of the packets from some hosts to others: the routers passed, and whether sent here (see ``Ways``).

        −1 of both where there are none; the mark is 0 without any.
        """
        ways, found = self._ways, self._ways.find(src << WAY_BITS | dst)
        hops = np.where(found >= 0, ways.hops[found], -1) if len(ways.hops) else found
        if ways.sent is None:
            return hops.tolist(), [0] * len(found)
        return hops.tolist(), np.where(found >= 0, ways.sent[found], 0).tolist()

    def by_direction(self, hosts: tuple[str, str], marks: tuple[int, int]) -> tuple[str, str, str] | None:
        """The capturing host is known by its addresses, or by the direction in cooked headers."""
        if self._local:
            own = [host in self._local for host in hosts]
            if own[0] != own[1]:
                side = own.index(True)
                return (A, B)[side], "direction", f"{hosts[side]} is this host's address"
        if marks[0] == marks[1]:
            return None
        side = 0 if marks[0] else 1
        return (A, B)[side], "direction", f"the capture marks packets of {hosts[side]} as outgoing"


def _chosen(count: int, numbers: Ints) -> Ints:
    """The different ones of numbers from 0 to ``count``, sorted."""
    there = np.zeros(count, np.bool_)
    there[numbers] = True
    return np.flatnonzero(there)


class Ways:
    """What the packets from one host to another say together, of all ways at once: they may be as many.

    Attributes:
        way: of each packet.
        hops: by way, the routers that its packets have passed; −1 where that is unknown.
        sent: by way, whether all of its packets are marked as sent by the capturing host; None without marks.
    """

    def __init__(self, columns: Mapping[str, Ints]) -> None:
        self.sent: NDArray[np.bool_] | None = None
        if not columns:
            self.way = self.hops = self._ends = np.empty(0, np.int64)
            return
        ends = columns["src"] << WAY_BITS | columns["dst"]
        order = stable_order(ends)
        ordered = ends[order]
        begins = starts(ordered)
        self._ends = ordered[begins]
        self.way = np.empty(len(ends), np.int64)
        self.way[order] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(ends)))
        limits = columns["hop_limit"][order]
        least, most = np.minimum.reduceat(limits, begins), np.maximum.reduceat(limits, begins)
        passed = _HOP_LIMITS[np.searchsorted(_HOP_LIMITS, least)] - least
        self.hops = np.where((least == most) & (passed <= _MOST_HOPS), passed, -1)
        marks = columns["outgoing"]
        if (marks >= 0).any():
            self.sent = np.logical_and.reduceat(marks[order] == 1, begins)

    def find(self, ends: Ints) -> Ints:
        """The ways between some ends; −1: there are no packets."""
        if not len(self._ends):
            return np.full(len(ends), -1)
        at = np.minimum(np.searchsorted(self._ends, ends), len(self._ends) - 1)
        return np.where(self._ends[at] == ends, at, -1)

    def back(self) -> Ints:
        """The way back of each."""
        return self.find((self._ends & _HOST) << WAY_BITS | self._ends >> WAY_BITS)


def by_clock(hosts: tuple[str, str], journal: Correlation | None) -> tuple[str, str, str] | None:
    """The clock of the capture is that of one host, and not of the other."""
    if journal is None:
        return None
    known = journal.clock_windows()
    windows = {side: known[ip] for side, ip in enumerate(hosts) if ip in known}
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
