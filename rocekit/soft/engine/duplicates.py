"""What a responder keeps of READs and atomics, to respond to them again (9.7.5.1.3)."""

from __future__ import annotations

from dataclasses import dataclass

from rocekit.soft.engine.packet import Packet
from rocekit.wire import psns_of


@dataclass(frozen=True, slots=True)
class Resource:
    """A READ, atomic, FLUSH or ATOMIC WRITE that was executed; there are as many as the peers agreed on.

    Attributes:
        request: its packet.
        first_psn, last_psn: of its responses, unwrapped.
        original: the value in memory before an atomic.
    """

    request: Packet
    first_psn: int
    last_psn: int
    original: int

    def last_of(self, again: Packet, psn: int, path_mtu: int) -> int | None:
        """The last PSN of the response to a duplicate at ``psn``; None if it is not this request.

        A READ may be asked for again in part: from any of its PSNs on, at the address that belongs there, and
        up to its end or less (9.4.4). Everything else has to be the same request.
        """
        first = self.request
        if again.op is not first.op or again.rkey != first.rkey:
            return None
        if first.op.operation != "READ":
            same = psn == self.first_psn and _changes(again) == _changes(first)
            return self.last_psn if same else None
        done = (psn - self.first_psn) * path_mtu
        if again.payload or again.remote_va != first.remote_va + done:
            return None
        if again.dma_length > first.dma_length - done or (first.dma_length and not again.dma_length):
            return None
        return psn + psns_of(again.dma_length, path_mtu) - 1


def _changes(request: Packet) -> tuple[int | bytes, ...]:
    """What a request does, and where."""
    return (
        *(request.remote_va, request.dma_length, request.swap_add, request.compare),
        *(request.placement_type, request.selectivity, request.payload),
    )
