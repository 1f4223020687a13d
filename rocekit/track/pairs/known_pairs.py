"""QP pairs known before their packets: from journals, handshakes over TCP, and GIDs in the CM's REQs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.machine.limits import KNOWN_PAIR_LOOKS, limit
from rocekit.track.connections import Negotiated
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.track.cm_exchanges import Exchange
    from rocekit.track.connections import Connection
    from rocekit.track.pairs.handshake import Offer

JOURNAL: Final = "journal"
CM: Final = "cm"
HANDSHAKE: Final = "handshake"
#: Which of several pairs of one QP counts.
_STRENGTH: Final = (JOURNAL, CM, HANDSHAKE)
#: A host's clock is wrong by less than this, unless PSNs prove that a journal is of the capture.
CLOCKS_DIFFER_NS: Final = 600 * 10**9
#: Pairs of one QPN that each flow or exchange looks at on average, beside the limit ``KNOWN_PAIR_LOOKS`` for
#: all together: a journal may have as many of one number as it has lines.
_LOOKS: Final = 16
#: A PSN this close behind a QP's starting PSN is no accident (1 in 256).
NEAR_START: Final = 1 << 16


def may_be_of(
    span_ns: tuple[int, int] | None,
    starts: Iterable[int | None],
    first_ns: int,
    last_ns: int,
    psns: Iterable[int | None],
) -> bool:
    """Whether a QP of a journal can be one of the capture: QPNs are used again, on other days and hosts.

    Args:
        span_ns: when the journal's QP lived; None if unknown.
        starts: the starting PSNs of its two directions.
        first_ns, last_ns: when packets of its QPN were seen.
        psns: the first PSNs seen of them.
    """
    if span_ns is None:
        return True
    if span_ns[0] - CLOCKS_DIFFER_NS <= last_ns and first_ns <= span_ns[1] + CLOCKS_DIFFER_NS:
        return True
    seen = [psn for psn in psns if psn is not None]
    return any(psn - start & MASK < NEAR_START for start in starts if start is not None for psn in seen)


class Pair(NamedTuple):
    """What a journal, or the handshake of two programs, says of a QP pair; what it does not know is None.

    Attributes:
        span_ns: when its QPs lived, as far as the journal tells.
        connection: that of a CM exchange, as long as no packet of it was seen.
    """

    transport: str | None
    ips: tuple[str | None, str | None]
    qpns: tuple[int, int]
    negotiated: tuple[Negotiated, Negotiated]
    source: str = JOURNAL
    span_ns: tuple[int, int] | None = None
    connection: Connection | None = None

    def may_be_of(self, time_ns: int, psn: int | None) -> bool:
        """Whether a packet of this time and PSN can be one of this pair's."""
        starts = [said.starting_psn for said in self.negotiated]
        if self.connection is not None:
            unused = not self.connection.packets and self.connection.closed_frame is None
            return unused and any(
                (psn or 0) - start & MASK < NEAR_START for start in starts if start is not None
            )
        return may_be_of(self.span_ns, starts, time_ns, time_ns, [psn])


class KnownPairs:
    """The pairs known so far, ``by_end``: by address and QPN; an address may be unknown (None).

    ``limits_met`` gets the name of the limit where too many were to be looked at.
    """

    def __init__(self, pairs: Iterable[Pair] = (), limits_met: set[str] | None = None) -> None:
        self.by_end: dict[tuple[str | None, int], list[Pair]] = {}
        self._looks = limit(KNOWN_PAIR_LOOKS)
        self._met = set() if limits_met is None else limits_met
        for pair in pairs:
            self._learn(pair)

    def _learn(self, pair: Pair) -> None:
        for side in (0, 1):
            self.by_end.setdefault((pair.ips[side], pair.qpns[side]), []).append(pair)

    def _forget(self, end: tuple[str | None, int]) -> None:
        """The end's pairs that no journal names no longer count; those of journals came first."""
        known = self.by_end.get(end, [])
        while known and known[-1].source != JOURNAL:
            known.pop()

    def _of_end(self, ip: str | None, qpn: int) -> Sequence[Pair]:
        """The pairs of an address and QPN; of many, none where too many were looked at."""
        known = self.by_end.get((ip, qpn), ())
        self._looks += _LOOKS - len(known)
        if len(known) <= _LOOKS or self._looks >= 0:
            return known
        self._met.add(KNOWN_PAIR_LOOKS)
        return ()

    def learn(self, first: Offer, second: Offer) -> None:
        """Two programs exchanged their QPs: earlier handshakes of the same QPs no longer count."""
        ends = (first, second)
        for end in ends:
            self._forget((end.ip, end.qpn))
        said = [Negotiated(starting_psn=e.psn, rkey=e.rkey, remote_va=e.remote_va) for e in ends]
        self._learn(Pair(None, (first.ip, second.ip), (first.qpn, second.qpn), (said[0], said[1]), HANDSHAKE))

    def pair_of(self, src: str, dst: str, qpn: int, time_ns: int, psn: int) -> tuple[Pair, int] | None:
        """The one pair that a flow to ``qpn`` at ``dst`` belongs to, and the side that sends on it.

        A journal overrules the CM, and that a handshake.

        Args:
            time_ns, psn: of the flow's first packet.
        """
        found = []
        for ip in (dst, None):
            for pair in self._of_end(ip, qpn):
                for side in (0, 1):
                    here, there = pair.ips[side], pair.ips[1 - side]
                    fits = pair.qpns[1 - side] == qpn and here in (src, None) and there in (dst, None)
                    if fits and pair.may_be_of(time_ns, psn):
                        found.append((pair, side))
        distinct = {(id(pair), side): (pair, side) for pair, side in found}
        strongest = min((_STRENGTH.index(pair.source) for pair, _ in found), default=0)
        best = [pair for pair in distinct.values() if _STRENGTH.index(pair[0].source) == strongest]
        return best[0] if len(best) == 1 else None

    def expect(self, exchange: Exchange, connection: Connection) -> Pair | None:
        """A connection's pair between the GIDs of its REQ, where its MADs travel between other addresses.

        With several rails the CM can use one and the data another. Its packets decide: the first between the
        GIDs' addresses moves the connection there.
        """
        request = exchange.request.cm
        gids = [request.gid(f"primary_{whose}_port_gid") for whose in ("local", "remote")]
        if gids[0] == gids[1] or None in gids:
            return None
        a, b = request.address("primary_local_port_gid"), request.address("primary_remote_port_gid")
        if [a, b] == connection.ips or a is None or b is None:
            return None
        if not _is_host(a) or not _is_host(b):
            return None
        qpns = connection.qpns[0] or 0, connection.qpns[1] or 0
        said = connection.negotiated[0], connection.negotiated[1]
        for end in zip((a, b), qpns, strict=True):
            self._forget(end)
        pair = Pair(connection.transport, (a, b), qpns, said, CM, connection=connection)
        self._learn(pair)
        return pair

    def agreed(self, exchange: Exchange, qpns: tuple[int, int]) -> list[Negotiated]:
        """What a CM exchange agreed on, corrected by the journal: a program may set its QP differently."""
        ips = (exchange.src, exchange.dst)
        own = exchange.negotiated()
        time_ns, psn = exchange.request.time_ns, own[0].starting_psn
        for pair in self._of_end(ips[0], qpns[0]):
            for side in (0, 1):
                there = pair.ips[1 - side]
                if pair.source == CM:
                    continue
                fits = pair.qpns[side] == qpns[0] and pair.qpns[1 - side] == qpns[1]
                if fits and there in (ips[1], None) and pair.may_be_of(time_ns, psn):
                    said = (pair.negotiated[side], pair.negotiated[1 - side])
                    return [mine.overruled_by(other) for mine, other in zip(own, said, strict=True)]
        return own


def _is_host(ip: str) -> bool:
    """Whether a host can have this address."""
    address = ipaddress.ip_address(ip)
    return not (address.is_unspecified or address.is_multicast or address.is_loopback)
