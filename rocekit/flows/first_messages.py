"""The first messages of each one-way flow, and what they say of the application.

A flow is looked at while it is new: in its first packets by the capture's count. Later packets cost nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets import ICRC_INVALID
from rocekit.packets.payloads import first_bytes, payloads
from rocekit.wire.memory_messages import NCCL_BYTES, RPING_TEXT

# The table of applications is loaded when a message comes whose bytes may say something.
if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.track.pairs.handshake import Offer
    from rocekit.wire.applications.said import Said

Ints = NDArray[np.int64]
Flow = tuple[str, str, int]

#: A flow is new for so many packets of the capture.
NEW_FOR: Final = 1 << 16
#: Messages of a flow looked at; flows kept.
MOST_MESSAGES: Final = 2
MOST_FLOWS: Final = 1 << 16
_MOST_QPS: Final = 8
_OPERATIONS: Final = frozenset({"SEND", "WRITE", "READ_RESPONSE"})


def _starts(value: int) -> bool:
    """Whether packets with this opcode start a message whose bytes may say something."""
    opcode = wire.OPCODES.get(value)
    if opcode is None or opcode.transport not in ("RC", "UC", "XRC"):
        return False
    return opcode.operation in _OPERATIONS and opcode.position in (wire.FIRST, wire.ONLY)


_OPERATION: Final = {value: opcode.operation for value, opcode in wire.OPCODES.items()}
_ONLY: Final = {value: opcode.position == wire.ONLY for value, opcode in wire.OPCODES.items()}
#: By opcode; the last is for unknown ones, −1.
_STARTS: Final = np.array([*(_starts(value) for value in range(256)), False])
_IS_SEND: Final = np.array([_OPERATION.get(value) == "SEND" for value in range(257)])


class FirstMessages:
    """What the first messages of all flows say.

    Attributes:
        said: by flow, when they passed and what they say, with what counts on the application's port only.
        opened: the flows of which a SEND was looked at, as far as parsers want to.
        offers: whose text or struct over TCP named a QP, by (address, QPN).
    """

    def __init__(self) -> None:
        self.said: dict[Flow, list[tuple[int, Said]]] = {}
        self.opened: set[Flow] = set()
        self.offers: dict[tuple[str, int], str] = {}
        self._looked_at = np.zeros(0, np.uint8)  # messages, by flow number
        self._flows = 0  # of which messages were looked at
        self._indexes: dict[Flow, int] = {}  # the last one of NCCL's FIFO
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
        if self._new_from < self._known and self._flows < MOST_FLOWS:
            self._look(packets)
            if not self._marks or self._marks[-1][1] != self._known:
                self._marks.append((self._packets, self._known))

    def begin_anew(self) -> None:
        """From now on the numbers of flows are others; what was found stays."""
        self._looked_at = np.zeros(0, np.uint8)
        self._known = self._new_from = self._packets = 0
        self._marks.clear()

    def note_offers(self, *ends: Offer) -> None:
        """Two programs named their QPs over TCP."""
        for end in ends:
            self.offers[end.ip, end.qpn] = end.program

    def _look(self, packets: Packets) -> None:
        usable = _STARTS[packets.opcode] & (packets.flow >= self._new_from) & (packets.malformed == 0)
        wrong = packets.icrc_state == ICRC_INVALID
        if int(wrong.sum()) * 2 < len(packets):  # else all ICRCs here are wrong: see the rule icrc-bad
            usable &= ~wrong
        if len(self._looked_at) < self._known:
            self._looked_at = np.append(self._looked_at, np.zeros(max(self._known, 1024), np.uint8))
        rows = np.flatnonzero(usable)
        rows = rows[self._looked_at[packets.flow[rows]] < MOST_MESSAGES]
        first, length = first_bytes(packets, rows), packets.payload_length[rows]
        here = (first >= 0) | (length == 0)
        rows, first, length = rows[here], first[here], length[here]
        chosen = _first_ones(packets.flow[rows], self._looked_at)
        flow = packets.flow[rows[chosen]]
        self._flows += int(np.count_nonzero(self._looked_at[flow] == 0))
        np.add.at(self._looked_at, flow, 1)
        may_say = _IS_SEND[packets.opcode[rows]] | (length == NCCL_BYTES) | (first == RPING_TEXT[0])
        rows = rows[chosen[may_say[chosen]]]
        if len(rows):
            self._take(packets, rows)

    def _take(self, packets: Packets, rows: Ints) -> None:
        names = packets.addresses
        is_empty = packets.payload_length[rows] == 0
        if is_empty.any():  # nothing to parse: a flood has many
            empty = rows[is_empty & _IS_SEND[packets.opcode[rows]]]
            ends = (column[empty].tolist() for column in (packets.src, packets.dst, packets.dest_qpn))
            src, dst, qpn = ends
            self.opened.update(
                zip(map(names.__getitem__, src), map(names.__getitem__, dst), qpn, strict=True)
            )
            rows = rows[~is_empty]
            if not len(rows):
                return
        from rocekit.wire.applications import OF_MESSAGES
        from rocekit.wire.applications.programs import NCCL
        from rocekit.wire.applications.said import MOST_BYTES, FirstMessage

        columns = (
            packets.src,
            packets.dst,
            packets.dest_qpn,
            packets.opcode,
            packets.payload_length,
            packets.time_ns,
        )
        for data, src, dst, qpn, code, length, time_ns in zip(
            payloads(packets, rows, MOST_BYTES), *(column[rows].tolist() for column in columns), strict=True
        ):
            flow, operation = (names[src], names[dst], qpn), _OPERATION[code]
            # Nothing of what parsers want is cut off.
            if operation == "SEND" and len(data) == min(length, MOST_BYTES):
                self.opened.add(flow)
            if not data:
                continue
            message = FirstMessage(operation, data, length, _ONLY[code])
            for parse in OF_MESSAGES[operation]:
                said = parse(message)
                if said is not None and (said.application != NCCL or self._counts_up(flow, said)):
                    self.said.setdefault(flow, []).append((time_ns, said))

    def _counts_up(self, flow: Flow, said: Said) -> bool:
        """Whether the index of NCCL's FIFO follows that of the message before; other QPs may have some."""
        index = int(said.details["index"])
        before = self._indexes.get(flow, index)
        self._indexes[flow] = index
        return before < index <= before + _MOST_QPS


def _first_ones(flow: Ints, looked_at: NDArray[np.uint8]) -> Ints:
    """Which of the rows are among the first ``MOST_MESSAGES`` of their flow, in order.

    Args:
        looked_at: how many there were before, by flow.
    """
    order = np.argsort(flow, kind="stable")
    ordered = flow[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1) != 0) if len(ordered) else ordered
    rank = np.arange(len(ordered)) - np.repeat(begins, np.diff(np.append(begins, len(ordered))))
    return np.sort(order[rank + looked_at[ordered] < MOST_MESSAGES])
