"""Where a capture was taken: at one of a connection's two hosts, or between them. Inferred, with its ground.

No capture states its place; its packets show it. The grounds, the most certain first:

* ``direction``: cooked captures (``tcpdump -i any``) mark what their own host sent; a live trace knows its
  host's addresses.
* ``hops``: routers have decremented the IP hop limit of one host's packets, and not of the other's.
* ``clock``: the capture has the clock of one journal's host, within microseconds, and not of the other's.
* ``timing``: a host's reaction to a packet appears no sooner than the way to the host and back takes. The
  shortest times of both hosts are compared: from a request to its ACK (or response); from a NAK to the
  go-back; from a program's post to its poll, less the round trip in the capture; and, least certain, from the
  ACK that leaves nothing outstanding to the next request.

A slow host looks far away. So a difference only counts where it is large, and between devices that
acknowledge, or where one host responds at once and the other is steadily late. Else the place is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rocekit.points.grounds import BETWEEN, A, B, HostPairs, by_clock, by_hops, by_timing
from rocekit.points.host_pairs import Between, Hosts, PairsByName
from rocekit.points.turnarounds import (
    FEWEST,
    KINDS,
    NO_TURNS,
    PROGRAM,
    REACTION,
    Floor,
    Sampler,
    Turns,
    is_paced,
)
from rocekit.track.connections import requesting_sides

if TYPE_CHECKING:
    from rocekit.correlate import Correlation
    from rocekit.track.connections import Connection

#: Which of two hosts send requests, by whether each does.
_SIDES: Final = {
    (a, b): frozenset(side for side, sends in enumerate((a, b)) if sends)
    for a in (False, True)
    for b in (False, True)
}


_NO_FLOORS: Final[Mapping[int, Floor]] = MappingProxyType({})


@cache
def _by_side(hops: tuple[int, int]) -> Mapping[int, int]:
    """The routers passed by side, where they are known; there are few different numbers of them."""
    return MappingProxyType({side: passed for side, passed in enumerate(hops) if passed >= 0})


class Vantage(NamedTuple):
    """Where a capture was taken, inferred from one connection or from all traffic of two hosts.

    Attributes:
        hosts: the addresses of ``a`` and ``b``.
        place: ``a``, ``b`` or ``between``; None if unknown.
        grounds: ``direction``, ``hops``, ``clock`` or ``timing``; None if the place is unknown.
        requesters: the sides (0, 1) that sent requests.
        floors: the shortest turnaround of each side; hops: how many routers its packets have passed.
    """

    file: int
    hosts: tuple[str, str]
    place: str | None
    grounds: str | None
    reason: str
    requesters: frozenset[int] = frozenset()
    floors: Mapping[int, Floor] = MappingProxyType({})
    hops: Mapping[int, int] = MappingProxyType({})

    @property
    def host(self) -> str | None:
        """The address at which the capture was taken."""
        return self.hosts[0] if self.place == A else self.hosts[1] if self.place == B else None

    @property
    def role(self) -> str | None:
        """``requester``, ``responder`` or ``both``: what the host does; None between the hosts."""
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
            "turnaround": {"ab"[s]: f.to_dict() for s, f in self.floors.items()} if self.floors else {},
            "hops": {"ab"[s]: n for s, n in self.hops.items()} if self.hops else {},
        }

    def __str__(self) -> str:
        """``at 10.9.0.1, the requester (…)``, ``probably between the hosts (…)`` or ``unknown (…)``."""
        if self.place is None:
            return f"unknown ({self.reason})"
        where = "between the hosts" if self.place == BETWEEN else f"at {self.host}"
        role = f", the {self.role}" if self.role in ("requester", "responder") else ""
        probably = "" if self.certain else "probably "
        return f"{probably}{where}{role} ({self.reason})"


class Vantages:
    """Where each capture was taken: by connection, and by pair of hosts."""

    def __init__(
        self, sampler: Sampler, connections: Sequence[Connection], journal: Correlation | None = None
    ) -> None:
        self._sampler = sampler
        self._connections = list(connections)  # a table's own look-up takes longer than what is done here
        self._journal = journal
        self._tables = {file: HostPairs(sampler, file, self._connections) for file in sampler.files}
        self._programs = _program_turns(journal, connections) if journal is not None else {}

    @property
    def files(self) -> list[int]:
        """The captures that have packets."""
        return [file for file, table in self._tables.items() if len(table.shown)]

    def of_connections(self) -> dict[int, list[Vantage]]:
        """By connection id: one for each capture that contains it."""
        found: dict[int, list[Vantage]] = {}
        for table in self._tables.values():
            ends = table.ends
            between = Between(table, ends.a[table.shown], ends.b[table.shown])
            for place, (number, turns) in enumerate(table.by_connection()):
                connection = self._connections[number]
                found.setdefault(connection.id, []).append(
                    self._judge(table, turns, between.of(place), [connection])
                )
        return found

    def of_files(self) -> dict[int, list[Vantage]]:
        """By capture: one for each pair of hosts whose traffic it contains."""
        return {file: list(self.of_hosts(file)) for file, table in self._tables.items() if len(table.shown)}

    def of_hosts(self, file: int, *, telling: bool = False) -> Iterator[Vantage]:
        """One for each pair of hosts whose traffic a capture contains, in order of their addresses.

        Args:
            telling: without pairs of which nothing tells the place, which may be as many as packets.
        """
        table = self._tables[file]
        numbers = table.telling() if telling and self._journal is None else table.shown
        a, b = table.ends.a[numbers], table.ends.b[numbers]
        pairs = PairsByName(a, b, table)
        between = Between(table, pairs.low, pairs.high)
        turn_counts, own = pairs.sums(table.turn_counts[numbers]), numbers.tolist()
        for place, first in pairs.in_order():
            rows = pairs.rows(place)
            turns = NO_TURNS
            if turn_counts[place] >= FEWEST:
                turns = table.turns_of(numbers[rows], a[rows] != first)
            hosts = between.of(place, flipped=first != int(pairs.low[place]))
            yield self._judge(table, turns, hosts, [self._connections[own[row]] for row in rows])

    def _judge(self, table: HostPairs, turns: Turns, hosts: Hosts, connections: list[Connection]) -> Vantage:
        names = hosts.names
        sides = requesting_sides(connections, names[0])
        hops = _by_side(hosts.hops)
        floors = _NO_FLOORS
        if len(turns.pair) or self._programs:
            floors = self._floors(turns, connections, names, single=len(self._tables) == 1)
        where, grounds, reason = (
            table.by_direction(names, hosts.marks)
            or by_hops(names, hops)
            or (by_clock(names, self._journal) if len(self._tables) == 1 else None)
            or by_timing(names, floors)
        )
        return Vantage(table.file, names, where, grounds, reason, _SIDES[sides], floors, hops)

    def _floors(
        self, turns: Turns, connections: Sequence[Connection], hosts: tuple[str, str], *, single: bool
    ) -> dict[int, Floor]:
        """By side, the shortest turnaround; a reaction only where nothing is more certain."""
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


def _program_turns(
    journal: Correlation, connections: Sequence[Connection]
) -> dict[tuple[int, int], list[int]]:
    """From post to poll, less the round trip in the capture: the way from program to capture and back."""
    found: dict[tuple[int, int], list[int]] = {}
    for wr in journal.work_requests:
        transfer = journal.transfer_of(wr)
        if transfer is None or wr.wc is None or transfer.acked_ns is None or transfer.events:
            continue
        if wr.wc.status == "SUCCESS" and transfer.connection.transport == "RC":
            took = wr.wc.polled_ns - wr.posted_ns - (transfer.acked_ns - transfer.first_ns)
            if took >= 0:
                found.setdefault((transfer.connection.id, transfer.side), []).append(took)
    return found
