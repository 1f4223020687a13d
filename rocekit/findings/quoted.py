"""The connection and the transfer of a packet that an ICMP error quotes.

There may be very many errors, connections and transfers: each is looked at once, not each for each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from rocekit import wire
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocekit.findings.evidence import Evidence
    from rocekit.packets.witnesses.icmp import IcmpError
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: A connection, and the side that sent the quoted packet.
Way = tuple["Connection", int]
#: A connection's id, the requester's side, and a PSN.
Place = tuple[int, int, int]


class WaysBetween:
    """The connections from one host to another, by what a quoted packet says of its own."""

    def __init__(self, evidence: Evidence, hosts: tuple[str, str]) -> None:
        self._all = evidence.ways_between.get(hosts, [])
        self._observer = evidence.observer
        self._by_qpn: dict[int | None, _InTime] | None = None
        self._by_port: dict[int, list[Way]] | None = None

    def of_qpn(self, number: int, time_ns: int) -> Way | None:
        """The last way to a QP that had begun by then; else the last one."""
        if self._by_qpn is None:
            own: dict[int | None, list[Way]] = {}
            for connection, side in self._all:
                own.setdefault(connection.qpns[1 - side], []).append((connection, side))
            self._by_qpn = {number: _InTime(ways) for number, ways in own.items()}
        ways = self._by_qpn.get(number)
        return None if ways is None else ways.begun_by(time_ns)

    def of_port(self, port: int) -> Way | None:
        """The only way, or the only one with packets from that UDP port."""
        if len(self._all) <= 1 or self._observer is None:
            return self._all[0] if len(self._all) == 1 else None
        if self._by_port is None:
            self._by_port = {}
            for way in self._all:
                view = self._observer.flow(*way)
                for sport in () if view is None else view.sports:
                    self._by_port.setdefault(sport, []).append(way)
        ways = self._by_port.get(port, ())
        return ways[0] if len(ways) == 1 else None


class _InTime:
    """Ways to one QPN. Those of a QP that was made anew may be many."""

    def __init__(self, ways: list[Way]) -> None:
        self._ways = ways
        begun = sorted((c.first_ns, at) for at, (c, _) in enumerate(ways) if c.first_ns is not None)
        self._times = [time for time, _ in begun]
        self._last = list(accumulate((at for _, at in begun), max))

    def begun_by(self, time_ns: int) -> Way:
        known = bisect_right(self._times, time_ns)
        return self._ways[self._last[known - 1] if known else -1]


def place_of(error: IcmpError, way: Way) -> Place | None:
    """Where the quoted packet's message is; None: the quote does not say."""
    psn, opcode = error.quote.psn, wire.OPCODES.get(error.quote.opcode or 0)
    if psn is None or opcode is None:
        return None
    return way[0].id, 1 - way[1] if opcode.response else way[1], psn


def transfers_at(evidence: Evidence, places: Iterable[Place]) -> dict[Place, Transfer]:
    """The last transfer with each place's PSN, as far as the capture has them."""
    asked: dict[tuple[int, int], set[int]] = {}
    for number, side, psn in places:
        asked.setdefault((number, side), set()).add(psn)
    found: dict[Place, Transfer] = {}
    for (number, side), psns in asked.items():
        wanted = _Wanted(psns)
        for transfer in reversed(evidence.transfers_of.get((number, side), ())):
            for psn in wanted.take(transfer.first_psn, transfer.last_psn):
                found[number, side, psn] = transfer
            if not wanted.left:
                break
    return found


class _Wanted:
    """PSNs of 24 bits, in order, of which those of a range can be taken out; a taken one is not met again."""

    def __init__(self, psns: Iterable[int]) -> None:
        self._psns = sorted(psns)
        self._next = list(range(len(self._psns) + 1))
        self.left = len(self._psns)

    def take(self, first: int, last: int) -> Iterator[int]:
        """Take those of the unwrapped PSNs from ``first`` to ``last``."""
        begin, more = first & MASK, min(last - first, MASK)
        if more >= 0:
            yield from self._take(begin, min(begin + more, MASK))
        if begin + more > MASK:
            yield from self._take(0, begin + more - MASK - 1)

    def _take(self, first: int, last: int) -> Iterator[int]:
        at = self._free(bisect_left(self._psns, first))
        while at < len(self._psns) and self._psns[at] <= last:
            self._next[at] = at + 1
            self.left -= 1
            yield self._psns[at]
            at = self._free(at + 1)

    def _free(self, at: int) -> int:
        """The place of the first one from ``at`` on that is not taken."""
        end = at
        while self._next[end] != end:
            end = self._next[end]
        while self._next[at] != end:
            self._next[at], at = end, self._next[at]
        return end
