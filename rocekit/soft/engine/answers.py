"""What an RC responder has to say and has not said yet: acknowledgements, NAKs, READ responses, atomics'
results.

Answers leave in the order of their requests; an acknowledgement that still waits gives way to the next one
(coalescing, 9.7.5.1.2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocekit.soft.engine.packet import build_transport
from rocekit.wire import ACK, FIRST, LAST, MIDDLE, ONLY, OPCODE_NAMES, OPCODES, syndrome_kind
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.soft.engine.qp import Qp

_ACKNOWLEDGE: Final = OPCODE_NAMES["RC_ACKNOWLEDGE"]
_ATOMIC_ACK: Final = OPCODE_NAMES["RC_ATOMIC_ACKNOWLEDGE"]
_READ: Final = {
    op.position: op.value
    for op in OPCODES.values()
    if op.transport == "RC" and op.operation == "READ_RESPONSE"
}


@dataclass(slots=True)
class Answer:
    """A response that waits to be sent.

    Attributes:
        kind: ``ACK`` (also NAKs), ``READ_RESPONSE``, ``ATOMIC_ACK``.
        psn: of its next packet; ``last_psn`` of its last.
        source: a READ's bytes that are still to send.
        fresh: whether it answers a request for the first time.
    """

    kind: str
    psn: int
    last_psn: int
    syndrome: int
    msn: int
    source: memoryview | None = None
    original: int = 0
    begun: bool = False
    fresh: bool = True

    @property
    def position(self) -> str:
        """The place of a READ's next response packet among those of this answer."""
        ends = self.psn == self.last_psn
        if not self.begun:
            return ONLY if ends else FIRST
        return LAST if ends else MIDDLE


class AnswerQueue:
    """The answers of one queue pair, in order."""

    __slots__ = ("_qp", "_queue")

    def __init__(self, qp: Qp) -> None:
        self._qp = qp
        self._queue: deque[Answer] = deque()

    def clear(self) -> None:
        self._queue.clear()

    def append(self, answer: Answer) -> None:
        self._queue.append(answer)

    @property
    def due(self) -> int:
        """READs, atomics and their like that are not answered to the end for the first time."""
        return sum(a.fresh and a.kind != "ACK" for a in self._queue)

    @property
    def urgent(self) -> bool:
        """Whether the next one carries no data."""
        return bool(self._queue) and self._queue[0].kind != "READ_RESPONSE"

    def acknowledge(self, psn: int, syndrome: int, msn: int) -> None:
        """An acknowledgement of everything to ``psn``; the one that waits last, if any, becomes this one."""
        if self._queue:
            last = self._queue[-1]
            if last.kind == "ACK" and syndrome_kind(last.syndrome) == ACK:
                last.psn = last.last_psn = psn
                last.syndrome, last.msn = syndrome, msn
                self._qp.device.counters.count("ack_deferred")
                return
        self._queue.append(Answer("ACK", psn, psn, syndrome, msn))

    def next_packet(self, now: int) -> bytes | None:
        """The transport bytes of the next answer, or None."""
        if not self._queue:
            return None
        qp, answer = self._qp, self._queue[0]
        psn = answer.psn
        fields = {"syndrome": answer.syndrome, "msn": answer.msn & MASK}
        payload = b""
        if answer.kind == "ACK":
            opcode = _ACKNOWLEDGE
        elif answer.kind == "ATOMIC_ACK":
            opcode = _ATOMIC_ACK
            fields["original"] = answer.original
        else:
            opcode = _READ[answer.position]
            if answer.position == MIDDLE:  # it has no AETH
                fields = {}
            if answer.source is not None:
                payload = bytes(answer.source[: qp.path_mtu])
                answer.source = answer.source[qp.path_mtu :]
        answer.begun = True
        answer.psn += 1
        if answer.psn > answer.last_psn:
            self._queue.popleft()
        if qp.reply_flow is not None:
            qp.reply_flow.sent(
                answer.kind,
                psn,
                now,
                fields.get("syndrome"),
                answer.msn if fields else None,
            )
        return build_transport(opcode, payload, dest_qpn=qp.dest_qpn, psn=psn & MASK, **fields)
