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
from typing import TYPE_CHECKING, Any

import numpy as np

from rocekit.points.grounds import BETWEEN, A, B, HostPairs, by_clock, by_hops, by_timing
from rocekit.points.turnarounds import KINDS, PROGRAM, REACTION, Floor, Sampler, Turns, is_paced

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.track.connections import Connection


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
        self._tables = {file: HostPairs(sampler, file, connections) for file in sampler.files}
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
        self, table: HostPairs, turns: Turns, hosts: tuple[str, str], connections: Sequence[Connection]
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
            or by_hops(hosts, hops)
            or (by_clock(hosts, self._journal) if len(self._tables) == 1 else None)
            or by_timing(hosts, floors)
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
