"""What ICMP, ARP and ND say of a connection or of two hosts, for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit import wire
from rocekit.findings.quoted import Way, WaysBetween, place_of, transfers_at
from rocekit.wire.icmp import TOO_BIG
from rocekit.wire.words import plural, qpn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.packets.witnesses.icmp import IcmpError
    from rocekit.packets.witnesses.neighbours import Unanswered
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: A host that gets no reply asks so often, so its last request says as much for the time after it.
_ASKS_AGAIN_NS: Final = 3_000_000_000


class Quoted(NamedTuple):
    """ICMP errors of one kind, from one sender, about the packets from one host to another.

    Attributes:
        ways: the connections that they are about, each with the side that sent the packets.
        certain: whether quoted QPNs name the connections; else the UDP port or the two hosts do.
        transfers: the transfers of the quoted packets, as far as the capture has them.
    """

    errors: list[IcmpError]
    ways: list[tuple[Connection, int]]
    certain: bool
    transfers: list[Transfer]

    @property
    def is_cm(self) -> bool:
        """Whether all quoted packets went to QP 1."""
        return all(e.quote.dest_qpn == wire.GSI_QPN for e in self.errors)

    def is_roce(self, evidence: Evidence) -> bool:
        """Whether the capture has RoCE packets of the two hosts."""
        quote = self.errors[0].quote
        return bool(self.ways) or frozenset((quote.src, quote.dst)) in evidence.host_pairs

    def count_words(self, evidence: Evidence) -> str:
        """How many errors there are, in words."""
        least = "at least " if evidence.witnesses is not None and evidence.witnesses.is_full else ""
        return f"{least}{plural(len(self.errors), 'message')}"

    def what(self, evidence: Evidence) -> str:
        """The quoted packets in words."""
        quote = self.errors[0].quote
        if len(self.ways) == 1:
            connection, side = self.ways[0]
            return f"RoCE packets on {connection.way(side)}{'' if self.certain else ' (probably)'}"
        hosts = f"from {quote.src} to {quote.dst}"
        if self.ways:
            return f"RoCE packets {hosts} on {len(self.ways):,} connections"
        if self.is_roce(evidence):
            return f"{'CM messages' if self.is_cm else 'RoCE packets'} {hosts}"
        numbers = {e.quote.dest_qpn for e in self.errors}
        number = next(iter(numbers))
        maybe = f": if they are RoCE, to {qpn(number)}" if len(numbers) == 1 and number is not None else ""
        return f"packets to UDP port 4791 {hosts} that are not in this capture{maybe}"

    def to_dict(self) -> dict[str, Any]:
        """The errors as evidence of a finding."""
        first, quotes = self.errors[0], [e.quote for e in self.errors]
        return {
            "icmp": first.kind,
            "icmp_messages": len(self.errors),
            "icmp_source": first.source,
            "source": first.quote.src,
            "destination": first.quote.dst,
            "connections": [c.id for c, _ in self.ways],
            "connection_by": None if not self.ways else "QPN" if self.certain else "port or hosts",
            "quoted_bytes_max": max(q.length for q in quotes),
            "quoted_qpns": sorted({q.dest_qpn for q in quotes if q.dest_qpn is not None})[:16],
            "quoted_psns": list(dict.fromkeys(q.psn for q in quotes if q.psn is not None))[:16],
            "transfers": [t.id for t in self.transfers[:16]],
        }


def quoted(evidence: Evidence, *, too_big: bool) -> Iterator[Quoted]:
    """The ICMP errors, grouped by kind, sender and hosts: "packet too big", or all others."""
    if evidence.witnesses is None:
        return
    groups: dict[tuple[str, str, str, str, bool], list[IcmpError]] = {}
    for error in evidence.witnesses.icmp:
        if (error.kind == TOO_BIG) is too_big:
            quote = error.quote
            key = (error.kind, error.source, quote.src, quote.dst, quote.dest_qpn == wire.GSI_QPN)
            groups.setdefault(key, []).append(error)
    between: dict[tuple[str, str], WaysBetween] = {}
    told = [[(error, *_way(evidence, between, error)) for error in errors] for errors in groups.values()]
    places = [place_of(error, way) for own in told for error, way, _ in own if way is not None]
    of_place = transfers_at(evidence, [place for place in places if place is not None])
    for own in told:
        ways: dict[tuple[int, int], Way] = {}
        transfers: dict[int, Transfer] = {}
        certain = True
        for error, way, by_qpn in own:
            if way is not None:
                ways[way[0].id, way[1]] = way
                certain = certain and by_qpn
                place = place_of(error, way)
                transfer = None if place is None else of_place.get(place)
                if transfer is not None:
                    transfers[transfer.id] = transfer
        yield Quoted([error for error, _, _ in own], list(ways.values()), certain, list(transfers.values()))


def _way(
    evidence: Evidence, known: dict[tuple[str, str], WaysBetween], error: IcmpError
) -> tuple[Way | None, bool]:
    """The connection of a quoted packet and its sender's side, and whether the QPN names it."""
    quote = error.quote
    hosts = quote.src, quote.dst
    between = known.get(hosts)
    if between is None:
        between = known[hosts] = WaysBetween(evidence, hosts)
    if quote.dest_qpn is not None:
        return between.of_qpn(quote.dest_qpn, error.time_ns), True
    return between.of_port(quote.sport), False


def silence_evidence(evidence: Evidence, hosts: Sequence[str | None], start: int, end: int) -> dict[str, Any]:
    """What ICMP, ARP and ND say of two hosts between two times, as evidence."""
    a, b = hosts
    if a is None or b is None:
        return {}
    found: dict[str, Any] = {}
    about = evidence.icmp_between.get(frozenset((a, b)))
    errors = None if about is None else about.between(start, end + _ASKS_AGAIN_NS)
    if errors is not None:
        found["icmp"] = errors
    asked = [*evidence.unanswered.get((a, b), ()), *evidence.unanswered.get((b, a), ())]
    streaks = [s for s in asked if s.first_ns <= end and _end_ns(s) >= start]
    if streaks:
        found["neighbours"] = {
            "without_reply": sorted({s.target for s in streaks}),
            "requests": sum(s.requests for s in streaks),
            "frames": [f for s in streaks for f in s.frames][:16],
        }
    return found


def _end_ns(streak: Unanswered) -> int:
    return streak.last_ns + _ASKS_AGAIN_NS if streak.until_ns is None else streak.until_ns


def silence_words(found: Mapping[str, Any]) -> str:
    """The same for the advice; empty if they say nothing."""
    words = ""
    if "icmp" in found:
        words += (
            f"{' and '.join(found['icmp']['sources'])} sent ICMP errors about packets between these two "
            f"hosts ({', '.join(found['icmp']['kinds'])}): look at that finding first. "
        )
    if "neighbours" in found:
        targets = " and ".join(found["neighbours"]["without_reply"])
        words += (
            f"Meanwhile {plural(found['neighbours']['requests'], 'ARP or ND request')} for {targets} got no "
            "reply in the capture: probably that host or its link was down. "
        )
    return words
