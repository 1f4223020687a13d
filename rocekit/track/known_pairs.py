"""QP pairs known from elsewhere than the packets: from journals, and from handshakes over TCP."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocekit.track.connections import Negotiated

if TYPE_CHECKING:
    from rocekit.track.cm_exchanges import Exchange
    from rocekit.track.handshake import Offer

JOURNAL: Final = "journal"
HANDSHAKE: Final = "handshake"


@dataclass(frozen=True, slots=True)
class Pair:
    """What a journal, or the handshake of two programs, says of a QP pair; what it does not know is None."""

    transport: str | None
    ips: tuple[str | None, str | None]
    qpns: tuple[int, int]
    negotiated: tuple[Negotiated, Negotiated]
    source: str = JOURNAL


class KnownPairs:
    """The pairs known so far, by address and QPN."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._pairs: dict[tuple[str | None, int], list[Pair]] = {}
        for pair in pairs:
            self._learn(pair)

    def _learn(self, pair: Pair) -> None:
        for side in (0, 1):
            self._pairs.setdefault((pair.ips[side], pair.qpns[side]), []).append(pair)

    def learn(self, first: Offer, second: Offer) -> None:
        """Two programs exchanged their QPs: earlier handshakes of the same QPs no longer count."""
        ends = (first, second)
        for end in ends:
            known = self._pairs.get((end.ip, end.qpn), [])
            known[:] = [pair for pair in known if pair.source != HANDSHAKE]
        said = [Negotiated(starting_psn=e.psn, rkey=e.rkey, remote_va=e.remote_va) for e in ends]
        self._learn(Pair(None, (first.ip, second.ip), (first.qpn, second.qpn), (said[0], said[1]), HANDSHAKE))

    def pair_of(self, src: str, dst: str, qpn: int) -> tuple[Pair, int] | None:
        """The one pair that a flow to ``qpn`` at ``dst`` belongs to, and the side that sends on it.

        A journal overrules a handshake.
        """
        if not self._pairs:
            return None
        found = []
        for ip in (dst, None):
            for pair in self._pairs.get((ip, qpn), ()):
                for side in (0, 1):
                    here, there = pair.ips[side], pair.ips[1 - side]
                    if pair.qpns[1 - side] == qpn and here in (src, None) and there in (dst, None):
                        found.append((pair, side))
        distinct = {(id(pair), side): (pair, side) for pair, side in found}
        recorded = [pair for pair in distinct.values() if pair[0].source != HANDSHAKE]
        best = recorded or list(distinct.values())
        return best[0] if len(best) == 1 else None

    def agreed(self, exchange: Exchange, qpns: tuple[int, int]) -> list[Negotiated]:
        """What a CM exchange agreed on, corrected by the journal: a program may set its QP differently."""
        ips = (exchange.src, exchange.dst)
        own = exchange.negotiated()
        for pair in self._pairs.get((ips[0], qpns[0]), ()):
            for side in (0, 1):
                there = pair.ips[1 - side]
                if pair.qpns[side] == qpns[0] and pair.qpns[1 - side] == qpns[1] and there in (ips[1], None):
                    said = (pair.negotiated[side], pair.negotiated[1 - side])
                    return [mine.overruled_by(other) for mine, other in zip(own, said, strict=True)]
        return own
