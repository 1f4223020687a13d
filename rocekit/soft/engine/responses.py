"""Responses that an RC responder has not sent yet: ACKs, NAKs, READ responses and results of atomics.

They are sent in the order of their requests. An ACK that still waits is replaced by the next one (coalescing,
9.7.5.1.2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from rocekit.soft.engine.duplicates import Resource
from rocekit.soft.engine.parts import QueuePair
from rocekit.wire import ACK, FIRST, LAST, MIDDLE, ONLY, OPCODE_NAMES, OPCODES, syndrome_kind
from rocekit.wire.build import build_transport
from rocekit.wire.psn import MASK

_ACKNOWLEDGE: Final = OPCODE_NAMES["RC_ACKNOWLEDGE"]
_ATOMIC_ACK: Final = OPCODE_NAMES["RC_ATOMIC_ACKNOWLEDGE"]
_READ: Final = {
    op.position: op.value
    for op in OPCODES.values()
    if op.transport == "RC" and op.operation == "READ_RESPONSE"
}


@dataclass(slots=True)
class Response:
    """A response that waits to be sent, of one packet or, for a READ, several.

    Attributes:
        kind: ``ACK`` (also for NAKs), ``READ_RESPONSE`` or ``ATOMIC_ACK``.
        psn, last_psn: of its next packet and of its last.
        source: the bytes of a READ that are not sent yet.
        original: the value in memory before an atomic.
        resource: of a READ or atomic, what is kept of it.
        begun: whether its first packet was sent.
        fresh: whether it is the first response to its request.
    """

    kind: str
    psn: int
    last_psn: int
    syndrome: int
    msn: int
    source: memoryview | None = None
    original: int = 0
    resource: Resource | None = None
    begun: bool = False
    fresh: bool = True

    @property
    def position(self) -> str:
        """The position of its next packet among its packets."""
        ends = self.psn == self.last_psn
        if not self.begun:
            return ONLY if ends else FIRST
        return LAST if ends else MIDDLE


class ResponseQueue:
    """The responses of one queue pair, in order."""

    __slots__ = ("_qp", "_queue")

    def __init__(self, qp: QueuePair) -> None:
        self._qp = qp
        self._queue: deque[Response] = deque()

    def clear(self) -> None:
        self._queue.clear()

    def append(self, response: Response) -> None:
        self._queue.append(response)

    def repeat(self, response: Response) -> None:
        """Respond again: one response a resource, so it replaces one that still waits (9.7.5.1.3)."""
        for place, waiting in enumerate(self._queue):
            if waiting.resource is response.resource:
                response.fresh = waiting.fresh
                self._queue[place] = response
                return
        response.fresh = False
        self._queue.append(response)

    @property
    def due(self) -> int:
        """READs, atomics, FLUSHes and ATOMIC WRITEs whose first response is not sent completely."""
        return sum(r.fresh and r.kind != "ACK" for r in self._queue)

    @property
    def urgent(self) -> bool:
        """Whether the next response carries no data."""
        return bool(self._queue) and self._queue[0].kind != "READ_RESPONSE"

    def acknowledge(self, psn: int, syndrome: int, msn: int) -> None:
        """Acknowledge everything up to ``psn``; if the last response that waits is an ACK, it is changed."""
        if self._queue:
            last = self._queue[-1]
            if last.kind == "ACK" and syndrome_kind(last.syndrome) == ACK:
                last.psn = last.last_psn = psn
                last.syndrome, last.msn = syndrome, msn
                self._qp.device.counters.count("ack_deferred")
                return
        self._queue.append(Response("ACK", psn, psn, syndrome, msn))

    def next_packet(self, now: int) -> bytes | None:
        """The transport bytes of the next response packet, or None."""
        if not self._queue:
            return None
        qp, response = self._qp, self._queue[0]
        psn = response.psn
        fields = {"syndrome": response.syndrome, "msn": response.msn & MASK}
        payload = b""
        if response.kind == "ACK":
            opcode = _ACKNOWLEDGE
        elif response.kind == "ATOMIC_ACK":
            opcode = _ATOMIC_ACK
            fields["original"] = response.original
        else:
            opcode = _READ[response.position]
            if response.position == MIDDLE:  # it has no AETH
                fields = {}
            if response.source is not None:
                payload = bytes(response.source[: qp.path_mtu])
                response.source = response.source[qp.path_mtu :]
        response.begun = True
        response.psn += 1
        if response.psn > response.last_psn:
            self._queue.popleft()
        if qp.reply_flow is not None:
            qp.reply_flow.sent(
                response.kind,
                psn,
                now,
                fields.get("syndrome"),
                response.msn if fields else None,
            )
        return build_transport(opcode, payload, dest_qpn=qp.dest_qpn, psn=psn & MASK, **fields)
