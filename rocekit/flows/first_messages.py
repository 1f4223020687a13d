"""The first messages of each one-way flow, and what they say of the application.

A flow is looked at while it is new: in its first packets by the capture's count. Later packets cost nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets import ICRC_INVALID
from rocekit.wire.applications import ULPS
from rocekit.wire.applications.programs import NCCL
from rocekit.wire.applications.said import MOST_BYTES, FirstMessage, Said

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.track.handshake import Offer

Ints = NDArray[np.int64]
Flow = tuple[str, str, int]

#: A flow is new for so many packets of the capture.
NEW_FOR: Final = 1 << 16
#: Messages of a flow looked at; flows kept.
MOST_MESSAGES: Final = 4
MOST_FLOWS: Final = 1 << 16
_MOST_QPS: Final = 8
_OPERATIONS: Final = frozenset({"SEND", "WRITE", "READ_RESPONSE"})


def _starts(value: int) -> bool:
    """Whether packets with this opcode start a message whose bytes may say something."""
    opcode = wire.OPCODES.get(value)
    if opcode is None or opcode.transport not in ("RC", "UC", "XRC"):
        return False
    return opcode.operation in _OPERATIONS and opcode.position in (wire.FIRST, wire.ONLY)


#: By opcode; the last is for unknown ones, −1.
_STARTS: Final = np.array([*(_starts(value) for value in range(256)), False])


@dataclass(slots=True)
class FlowStart:
    """What the first messages of a one-way flow say.

    Attributes:
        said: each once, with what counts on its application's port only.
        opened: whether a SEND was looked at, as far as parsers want to.
        messages: how many were looked at.
    """

    said: list[Said] = field(default_factory=list)
    opened: bool = False
    messages: int = 0
    _index: int = 0

    def take(self, message: FirstMessage, whole: bool) -> None:
        """Look at a message; ``whole``: nothing of what parsers want is cut off."""
        self.messages += 1
        self.opened = self.opened or (message.operation == "SEND" and whole)
        for ulp in ULPS:
            said = None if ulp.message is None else ulp.message(message)
            if said is None or said in self.said:
                continue
            if said.application != NCCL or self._counts_up(said):
                self.said.append(said)

    def _counts_up(self, said: Said) -> bool:
        """Whether the index of NCCL's FIFO follows that of the message before; other QPs may have some."""
        index = int(said.details["index"])
        before, self._index = self._index, index
        return 0 < before < index <= before + _MOST_QPS


class FirstMessages:
    """What the first messages of all flows say.

    Attributes:
        flows: by (source address, destination address, destination QPN).
        offers: whose text over TCP named a QP, by (address, QPN).
    """

    def __init__(self) -> None:
        self.flows: dict[Flow, FlowStart] = {}
        self.offers: dict[tuple[str, int], str] = {}
        self._known = 0
        self._new_from = 0
        self._packets = 0
        self._marks: deque[tuple[int, int]] = deque()

    def feed(self, packets: Packets) -> None:
        """Look at a batch of packets that have their payloads."""
        if not len(packets) or not packets.has_payload:
            return
        self._known = max(self._known, int(packets.flow.max()) + 1)
        self._packets += len(packets)
        while self._marks and self._packets - self._marks[0][0] > NEW_FOR:
            self._new_from = self._marks.popleft()[1]
        if self._new_from < self._known and len(self.flows) < MOST_FLOWS:
            self._look(packets)
            if not self._marks or self._marks[-1][1] != self._known:
                self._marks.append((self._packets, self._known))

    def note_offers(self, *ends: Offer) -> None:
        """Two programs named their QPs over TCP."""
        for end in ends:
            self.offers[end.ip, end.qpn] = end.program

    def _look(self, packets: Packets) -> None:
        usable = _STARTS[packets.opcode] & (packets.flow >= self._new_from) & (packets.malformed == 0)
        wrong = packets.icrc_state == ICRC_INVALID
        if int(wrong.sum()) * 2 < len(packets):  # else all ICRCs here are wrong: see the rule icrc-bad
            usable &= ~wrong
        rows = np.flatnonzero(usable)
        for row in rows[_first_of_each(packets.flow[rows], MOST_MESSAGES)].tolist():
            self._take(packets, row)

    def _take(self, packets: Packets, row: int) -> None:
        flow = (
            packets.addresses[int(packets.src[row])],
            packets.addresses[int(packets.dst[row])],
            int(packets.dest_qpn[row]),
        )
        start = self.flows.get(flow)
        if start is None:
            start = self.flows[flow] = FlowStart()
        if start.messages >= MOST_MESSAGES:
            return
        opcode = wire.OPCODES[int(packets.opcode[row])]
        length = int(packets.payload_length[row])
        data = packets.payload(row)[:MOST_BYTES]
        only = opcode.position == wire.ONLY
        whole = len(data) == min(length, MOST_BYTES)
        if data or not length:
            start.take(FirstMessage(opcode.operation, data, length, only), whole)


def _first_of_each(flow: Ints, most: int) -> Ints:
    """Which of the rows are among the first ``most`` of their flow, in order."""
    order = np.argsort(flow, kind="stable")
    ordered = flow[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1) != 0) if len(ordered) else ordered
    rank = np.arange(len(ordered)) - np.repeat(begins, np.diff(np.append(begins, len(ordered))))
    return np.sort(order[rank < most])
