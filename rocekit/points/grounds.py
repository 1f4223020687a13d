"""The grounds from which the place of a capture is inferred: direction, hops, clock, timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

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
from rocekit.wire.sorting import distinct
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
_HOP_LIMITS: Final = (64, 128, 255)
_MOST_HOPS: Final = 16
#: A clock with a wider bound than this proves nothing.
_CLOCK_NS: Final = 1_000_000


class RowsBy:
    """Finds the rows of a column with a value, by a search: there may be as many values as rows."""

    def __init__(self, column: NDArray[np.int64]) -> None:
        self._order = np.argsort(column, kind="stable")
        self._values = column[self._order]

    def rows(self, value: int) -> NDArray[np.int64]:
        """The rows with this value, in order."""
        low, high = np.searchsorted(self._values, value), np.searchsorted(self._values, value, side="right")
        return self._order[low:high]


class HostPairs:
    """A capture's sample: the connection of each packet, and the turnarounds."""

    def __init__(self, sampler: Sampler, file: int, connections: Sequence[Connection]) -> None:
        self.file = file
        self._addresses = {name: i for i, name in enumerate(sampler.addresses)}
        self._local = sampler.local
        self._columns = sampler.columns(file)
        self._hops: dict[tuple[str, str], int | None] = {}
        self._sends: dict[tuple[str, str], bool] = {}
        pair, side = place(self._columns, self._addresses, connections)
        self.shown: list[int] = distinct(pair[pair >= 0]).tolist()
        self.turns = turnarounds(self._columns, pair, side)
        self._turns_by_pair = RowsBy(self.turns.pair)
        ends = (
            [self._columns[name] for name in ("src", "dst")] if self._columns else [np.empty(0, np.int64)] * 2
        )
        self._rows_by_ends = RowsBy(ends[0] << 32 | ends[1])

    def by_connection(self) -> list[tuple[int, Turns]]:
        """The index of each connection in the capture, with its turnarounds."""
        order = np.argsort(self.turns.pair, kind="stable")
        ordered = self.turns.where(order)
        low = np.searchsorted(ordered.pair, self.shown).tolist()
        high = np.searchsorted(ordered.pair, self.shown, side="right").tolist()
        return [(n, ordered.where(slice(low[i], high[i]))) for i, n in enumerate(self.shown)]

    def turns_of(self, members: Sequence[int], flipped: set[int]) -> Turns:
        """The turnarounds of some connections; ``a`` and ``b`` are swapped for those in ``flipped``."""
        if not len(self.turns.pair):
            return self.turns
        chosen = self.turns.where(np.sort(np.concatenate([self._turns_by_pair.rows(n) for n in members])))
        turned = np.isin(chosen.pair, list(flipped))
        return Turns(
            chosen.pair,
            np.where(turned, 1 - chosen.side, chosen.side),
            chosen.kind,
            chosen.gap,
            chosen.period,
        )

    def _from(self, src: str, dst: str) -> NDArray[np.int64]:
        """The rows of the packets from one host to another."""
        here, there = self._addresses.get(src), self._addresses.get(dst)
        return self._rows_by_ends.rows(-1 if here is None or there is None else here << 32 | there)

    def by_direction(self, hosts: tuple[str, str]) -> tuple[str, str, str] | None:
        """The capturing host is known by its addresses, or by the direction in cooked headers."""
        own = [host in self._local for host in hosts]
        if own[0] != own[1]:
            return (A, B)[own.index(True)], "direction", f"{hosts[own.index(True)]} is this host's address"
        if not self._columns or (self._columns["outgoing"] < 0).all():
            return None
        sends = [self._is_sender(*hosts), self._is_sender(*hosts[::-1])]
        if sends[0] == sends[1]:
            return None
        side = sends.index(True)
        return (A, B)[side], "direction", f"the capture marks packets of {hosts[side]} as outgoing"

    def _is_sender(self, src: str, dst: str) -> bool:
        """Whether all packets from one host to another are marked as sent by the capturing host."""
        known = self._sends.get((src, dst))
        if known is None:
            flags = self._columns["outgoing"][self._from(src, dst)]
            known = self._sends[src, dst] = bool(len(flags)) and bool((flags == 1).all())
        return known

    def hops(self, src: str, dst: str) -> int | None:
        """How many routers the packets have passed, by their hop limit; None where that is unknown."""
        if (src, dst) not in self._hops:
            self._hops[src, dst] = self._count_hops(src, dst)
        return self._hops[src, dst]

    def _count_hops(self, src: str, dst: str) -> int | None:
        if not self._columns:
            return None
        limits = self._columns["hop_limit"][self._from(src, dst)]
        if not len(limits) or limits.min() != limits.max():
            return None
        passed = min(h - int(limits[0]) for h in _HOP_LIMITS if h >= limits[0])
        return passed if passed <= _MOST_HOPS else None


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
