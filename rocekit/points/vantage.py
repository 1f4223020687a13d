"""Where a capture was taken: at one of a connection's two hosts, or in between. Inferred, and said why.

A capture says nothing of its place, but its packets do, the surest ground first:

* ``direction``: cooked captures (``tcpdump -i any``) mark what their own host sent; a live trace knows its
  host's addresses;
* ``hops``: the IP hop limit of one host's packets is still whole, the other's has been counted down;
* ``clock``: the capture's clock is that of one journal's host, to within microseconds, and not the other's;
* ``timing``: how long after a packet has passed by does what a host makes of it pass by? No sooner than the
  way to the host and back takes. Compared are the shortest times of both hosts: an acknowledgement (or
  response) after its request; a go-back after its NAK; a program's poll and its packets, less the capture's
  own round trip; and, least sure, the next request after the acknowledgement that left nothing outstanding.

A host that is slow looks far away. So a difference only counts where it is large, and between devices that
answer, or where one answers at once and the other is steadily late; else it cannot be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.points.turnarounds import (
    ANSWER,
    GO_BACK,
    KINDS,
    PROGRAM,
    REACTION,
    RESPONSE,
    Floor,
    Sampler,
    Turns,
    is_paced,
    place,
    turnarounds,
)
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]

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


@dataclass(frozen=True, slots=True)
class Vantage:
    """Where a capture was taken, seen from one connection or from two hosts' traffic.

    Attributes:
        hosts: the two ends' addresses, ``a`` and ``b``.
        place: ``a``, ``b``, ``between``, or None where it cannot be told.
        grounds: ``direction``, ``hops``, ``clock`` or ``timing``; None where it cannot be told.
        requesters: which sides (0, 1) asked for anything.
        floors: by side, what was timed; hops: by side, routers passed.
    """

    file: int
    hosts: tuple[str, str]
    place: str | None
    grounds: str | None
    reason: str
    requesters: frozenset[int] = frozenset()
    floors: Mapping[int, Floor] = field(default_factory=dict)
    hops: Mapping[int, int] = field(default_factory=dict)

    @property
    def host(self) -> str | None:
        """The address at which the capture was taken."""
        return {A: self.hosts[0], B: self.hosts[1]}.get(self.place or "")

    @property
    def role(self) -> str | None:
        """``requester``, ``responder`` or ``both``: what the host there does; None in between."""
        if self.place not in (A, B) or not self.requesters:
            return None
        side = (A, B).index(self.place)
        if self.requesters == {0, 1}:
            return "both"
        return "requester" if side in self.requesters else "responder"

    @property
    def certain(self) -> bool:
        return self.grounds is not None and self.grounds != "timing"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "file": self.file,
            "place": self.place,
            "ip": self.host,
            "role": self.role,
            "grounds": self.grounds,
            "certain": self.certain,
            "reason": self.reason,
            "turnaround": {"ab"[s]: floor.to_dict() for s, floor in sorted(self.floors.items())},
            "hops": {"ab"[s]: n for s, n in sorted(self.hops.items())},
        }

    def __str__(self) -> str:
        if self.place is None:
            return f"where it was taken cannot be told: {self.reason}"
        where = "in between" if self.place == BETWEEN else f"at {self.host}'s side"
        role = {"requester": " (the requester's)", "responder": " (the responder's)"}.get(self.role or "", "")
        seems = "taken" if self.certain else "taken, it seems,"
        return f"{seems} {where}{role}: {self.reason}"


class Vantages:
    """Where each capture was taken: of each connection, and of each capture as a whole."""

    def __init__(
        self, sampler: Sampler, connections: Sequence[Connection], journal: Correlation | None = None
    ) -> None:
        self._sampler = sampler
        self._connections = connections
        self._journal = journal
        self._tables = {file: _Table(sampler, file, connections) for file in sampler.files}
        self._programs = _program_turns(journal, connections) if journal is not None else {}

    def of_connections(self) -> dict[int, list[Vantage]]:
        """By connection id, one a capture that shows it."""
        found: dict[int, list[Vantage]] = {}
        for table in self._tables.values():
            for number, turns in table.by_connection():
                connection = self._connections[number]
                found.setdefault(connection.id, []).append(
                    self._judge(table, turns, _hosts(connection), [connection])
                )
        return found

    def of_files(self) -> dict[int, list[Vantage]]:
        """By capture, one for every two hosts whose traffic it shows."""
        found: dict[int, list[Vantage]] = {}
        for file, table in self._tables.items():
            hosts = {number: _hosts(self._connections[number]) for number in table.shown}
            names = sorted({tuple(sorted(pair)) for pair in hosts.values()})
            numbers = {}
            flipped = {}
            for number, pair in hosts.items():
                numbers[number] = names.index(tuple(sorted(pair)))
                flipped[number] = pair[0] > pair[1]
            for group, pair_name in enumerate(names):
                members = [n for n, g in numbers.items() if g == group]
                turns = table.turns_of(members, {n for n in members if flipped[n]})
                ends = (str(pair_name[0]), str(pair_name[1]))
                found.setdefault(file, []).append(
                    self._judge(table, turns, ends, [self._connections[n] for n in members])
                )
        return found

    def _judge(
        self, table: _Table, turns: Turns, hosts: tuple[str, str], connections: Sequence[Connection]
    ) -> Vantage:
        requesters = frozenset(
            s if straight else 1 - s
            for straight, requests in {(_hosts(c) == hosts, _asking(c)) for c in connections}
            for s in requests
        )
        hops = {s: n for s in (0, 1) if (n := table.hops(hosts[s], hosts[1 - s])) is not None}
        floors = self._floors(turns, connections, hosts, single=len(self._tables) == 1)
        where, grounds, reason = (
            table.by_direction(hosts)
            or _by_hops(hosts, hops)
            or (self._by_clock(hosts) if len(self._tables) == 1 else None)
            or _by_timing(hosts, floors)
        )
        return Vantage(table.file, hosts, where, grounds, reason, requesters, floors, hops)

    def _floors(
        self, turns: Turns, connections: Sequence[Connection], hosts: tuple[str, str], *, single: bool
    ) -> dict[int, Floor]:
        """By side, the shortest turnaround; a reaction only where there is nothing surer."""
        found: dict[int, Floor] = {}
        for side in (0, 1):
            kinds = []
            for number, kind in enumerate(KINDS):
                if kind == PROGRAM:
                    gaps = [
                        g
                        for c in (connections if single and self._programs else ())
                        for s in (0, 1)
                        if c.ips[s] == hosts[side]
                        for g in self._programs.get((c.id, s), ())
                    ]
                    floor = Floor.of(kind, np.array(gaps, np.int64))
                else:
                    own = turns.where((turns.side == side) & (turns.kind == number))
                    floor = None if kind == REACTION and is_paced(own) else Floor.of(kind, own.gap)
                if floor is not None:
                    kinds.append(floor)
            sure = [f for f in kinds if f.kind != REACTION] or kinds
            if sure:
                found[side] = min(sure, key=lambda f: f.min_ns)
        return found

    def _by_clock(self, hosts: tuple[str, str]) -> tuple[str, str, str] | None:
        """The capture's clock is one host's own, and not the other's."""
        if self._journal is None:
            return None
        windows: dict[int, tuple[str, int, int]] = {}
        for qp in self._journal.programs.qps:
            bound = self._journal.place(qp)
            clock = self._journal.clocks.get(qp.host)
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


class _Table:
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


def _asking(connection: Connection) -> tuple[int, ...]:
    """The sides that asked for anything."""
    return tuple(s for s, side in enumerate(connection.requests) if side is not None and side.started)


def _hosts(connection: Connection) -> tuple[str, str]:
    return connection.ips[0] or "?", connection.ips[1] or "?"


def _program_turns(
    journal: Correlation, connections: Sequence[Connection]
) -> dict[tuple[int, int], list[int]]:
    """From posting to polling, less what passed at the capture in between: the way there and back."""
    found: dict[tuple[int, int], list[int]] = {}
    for wr in journal.work_requests:
        transfer = wr.transfer
        if transfer is None or wr.wc is None or transfer.acked_ns is None or transfer.events:
            continue
        if wr.wc.status == "SUCCESS" and transfer.connection.transport == "RC":
            took = wr.wc.polled_ns - wr.posted_ns - (transfer.acked_ns - transfer.first_ns)
            if took >= 0:
                found.setdefault((transfer.connection.id, transfer.side), []).append(took)
    return found


def _by_hops(hosts: tuple[str, str], hops: Mapping[int, int]) -> tuple[str, str, str] | None:
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


def _by_timing(hosts: tuple[str, str], floors: Mapping[int, Floor]) -> tuple[str | None, str | None, str]:
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
    from rocekit.wire.words import duration

    return duration(ns)
