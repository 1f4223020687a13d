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
from rocekit.wire.arrays import distinct
from rocekit.wire.words import duration

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.track.connections import Connection

A, B, BETWEEN = "a", "b", "between"
#: One host's turnaround must be so many times the other's, and so much longer, to be put down to the way.
_TIMES: Final = 4
_LONGER_NS: Final = 2_000
#: Nothing between the capture and a device that answers this soon.
_AT_ONCE_NS: Final = 1_000
#: Both ends steadily this far away: neither is where the capture was taken.
_FAR_NS: Final = 500_000
#: Packets begin with one of these hop limits, and pass no more routers than that.
_HOP_LIMITS: Final = (64, 128, 255)
_MOST_HOPS: Final = 16
#: A clock known no better than this says nothing.
_CLOCK_NS: Final = 1_000_000


class HostPairs:
    """A capture's sample, put to connections, and the turnarounds in it."""

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

    def by_connection(self) -> list[tuple[int, Turns]]:
        """Each connection that the capture shows, by its place among all, with its turnarounds."""
        order = np.argsort(self.turns.pair, kind="stable")
        ordered = self.turns.where(order)
        low = np.searchsorted(ordered.pair, self.shown).tolist()
        high = np.searchsorted(ordered.pair, self.shown, side="right").tolist()
        return [(n, ordered.where(slice(low[i], high[i]))) for i, n in enumerate(self.shown)]

    def turns_of(self, members: Sequence[int], flipped: set[int]) -> Turns:
        """The turnarounds of some connections, ``a`` and ``b`` changed for those in ``flipped``."""
        chosen = self.turns.where(np.isin(self.turns.pair, members))
        turned = np.isin(chosen.pair, list(flipped))
        return Turns(
            chosen.pair,
            np.where(turned, 1 - chosen.side, chosen.side),
            chosen.kind,
            chosen.gap,
            chosen.period,
        )

    def _from(self, src: str, dst: str) -> NDArray[np.bool_]:
        here, there = self._addresses.get(src, -1), self._addresses.get(dst, -1)
        return (self._columns["src"] == here) & (self._columns["dst"] == there)

    def by_direction(self, hosts: tuple[str, str]) -> tuple[str, str, str] | None:
        own = [host in self._local for host in hosts]
        if own[0] != own[1]:
            return (A, B)[own.index(True)], "direction", f"{hosts[own.index(True)]} is this host's address"
        if not self._columns or (self._columns["outgoing"] < 0).all():
            return None
        sends = [self._is_sender(*hosts), self._is_sender(*hosts[::-1])]
        if sends[0] == sends[1]:
            return None
        return (A, B)[sends.index(True)], "direction", "its packets are marked as sent by the capturing host"

    def _is_sender(self, src: str, dst: str) -> bool:
        """Whether all packets from one host to another are marked as sent by the capturing host."""
        known = self._sends.get((src, dst))
        if known is None:
            flags = self._columns["outgoing"][self._from(src, dst)]
            known = self._sends[src, dst] = bool(len(flags)) and bool((flags == 1).all())
        return known

    def hops(self, src: str, dst: str) -> int | None:
        """How many routers packets had passed, by their hop limit; None where it does not tell."""
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
    """The capture's clock is one host's own, and not the other's."""
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
        f"its clock is {windows[side][0]}'s to within {_span(own)}, and at least {_span(off)} off "
        f"{windows[1 - side][0]}'s",
    )


def by_hops(hosts: tuple[str, str], hops: Mapping[int, int]) -> tuple[str, str, str] | None:
    if len(hops) < 2 or hops[0] == hops[1] == 0:
        return None
    if hops[0] and hops[1]:
        return (
            BETWEEN,
            "hops",
            f"{hosts[0]}'s packets have passed {_routers(hops[0])}, {hosts[1]}'s {_routers(hops[1])}",
        )
    side = 0 if not hops[0] else 1
    return (
        (A, B)[side],
        "hops",
        f"{hosts[side]}'s packets have passed no router yet, {hosts[1 - side]}'s {_routers(hops[1 - side])}",
    )


def by_timing(hosts: tuple[str, str], floors: Mapping[int, Floor]) -> tuple[str | None, str | None, str]:
    if len(floors) < 2:
        missing = [hosts[s] for s in (0, 1) if s not in floors]
        return None, None, f"too few answers of {' and '.join(missing)} to what was sent once"
    near = 0 if floors[0].min_ns <= floors[1].min_ns else 1
    close, far = floors[near], floors[1 - near]
    words = f"{_says(hosts[near], close)}, {_says(hosts[1 - near], far)}"
    if far.min_ns >= _TIMES * close.min_ns and far.min_ns - close.min_ns >= _LONGER_NS:
        # Devices answer alike; how soon a program goes on, or a device goes back, is its own affair.
        if far.kind == ANSWER or (
            close.kind in (ANSWER, RESPONSE) and close.min_ns <= _AT_ONCE_NS and far.steady
        ):
            return (A, B)[near], "timing", words
        return None, None, f"{words}, which may be that host's own doing"
    if close.min_ns >= _FAR_NS and close.steady and far.steady and close.kind == far.kind == ANSWER:
        return BETWEEN, "timing", f"{words}, steadily"
    return None, None, f"{words}: too much alike"


def _says(host: str, floor: Floor) -> str:
    what = {
        ANSWER: "acknowledges requests {} after they pass",
        RESPONSE: "responds to READs and atomics {} after they pass",
        GO_BACK: "goes back {} after the NAK passes",
        PROGRAM: "needs {} beside what passes here to post and poll",
        REACTION: "asks on {} after the answer passes",
    }[floor.kind]
    return f"{host} {what.format(_span(floor.min_ns))} at the soonest"


def _routers(n: int) -> str:
    return f"{n} router{'s' if n > 1 else ''}"


def _span(ns: int) -> str:

    return duration(ns)
