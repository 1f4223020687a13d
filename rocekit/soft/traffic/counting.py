"""What happened to each flow's packets, counted by the names of the Open Traffic Generator's results."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from rocekit.wire import (
    ACK,
    AETH,
    BTH,
    CNP_OPCODE,
    FIRST,
    LAST,
    ONLY,
    OPCODES,
    syndrome_kind,
)
from rocekit.wire.psn import MASK

_HALF: Final = (MASK + 1) // 2
_UDP_BYTES: Final = 8
_DATA, _ACK, _READ_REQUEST, _CNP, _OTHER = range(5)


def _kind(opcode: int) -> int:
    op = OPCODES.get(opcode)
    if opcode == CNP_OPCODE:
        return _CNP
    if op is None:
        return _OTHER
    if op.operation in ("ACK", "ATOMIC_ACK"):
        return _ACK
    return _READ_REQUEST if op.operation == "READ" else _DATA


_KINDS: Final = tuple(_kind(opcode) for opcode in range(256))
_STARTS: Final = frozenset(v for v, op in OPCODES.items() if op.position in (FIRST, ONLY))
#: What a flow's destination sends: responses and CNPs.
ANSWERS: Final = frozenset({CNP_OPCODE, *(v for v, op in OPCODES.items() if op.response)})
_ENDS: Final = frozenset(v for v, op in OPCODES.items() if op.position in (LAST, ONLY))
_HEADERS: Final = tuple(OPCODES[v].headers_length if v in OPCODES else BTH.length for v in range(256))
_AETH_AT: Final = BTH.length
_HAS_AETH: Final = frozenset(
    v for v, op in OPCODES.items() if AETH in op.headers and op.headers.index(AETH) == 0
)


@dataclass(slots=True)
class FlowCounts:
    """A flow's results. "Data frames" carry its messages: requests, or the responses of READs.

    Attributes:
        tx_bytes, rx_bytes: payload.
        latency_ns: of data frames that arrived, from the first bit sent to the last bit received: sum, least,
            most.
        message_fail: work requests whose completion is an error.
        first_ns, last_ns: the first frame of a message sent, and the last data frame or answer that arrived.
        reliable: whether what is missing is sent again.
    """

    data_frames_tx: int = 0
    data_frames_rx: int = 0
    data_frames_retransmitted: int = 0
    frame_sequence_error: int = 0
    tx_bytes: int = 0
    rx_bytes: int = 0
    message_tx: int = 0
    message_complete_rx: int = 0
    message_fail: int = 0
    ecn_ce_rx: int = 0
    cnp_tx: int = 0
    cnp_rx: int = 0
    ack_tx: int = 0
    ack_rx: int = 0
    nak_tx: int = 0
    nak_rx: int = 0
    frames_lost: int = 0
    frames_held: int = 0
    held_ns: int = 0
    latency_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    first_ns: int | None = None
    first_tx_ns: int | None = None
    last_tx_ns: int | None = None
    first_rx_ns: int | None = None
    last_rx_ns: int | None = None
    last_ns: int | None = None
    reliable: bool = True
    _broken: bool = False
    _sent_to: int | None = None
    _expected: int | None = None

    def as_counts(self) -> dict[str, int]:
        """The counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type == "int"}

    def sent(self, now: int, opcode: int, psn: int, payload: int, syndrome: int | None) -> None:
        """A frame of the flow, or an answer to it, was sent."""
        kind = _KINDS[opcode]
        if kind == _DATA:
            self.data_frames_tx += 1
            self.tx_bytes += payload
            self.last_tx_ns = now
            if self.first_tx_ns is None:
                self.first_tx_ns = now
            if self.first_ns is None:
                self.first_ns = now
            if self._sent_to is None or 0 <= (psn - self._sent_to & MASK) < _HALF:
                self._sent_to = psn + 1 & MASK
                self.message_tx += opcode in _ENDS
            else:
                self.data_frames_retransmitted += 1
        elif kind == _READ_REQUEST and self.first_ns is None:
            self.first_ns = now
        elif kind == _CNP:
            self.cnp_tx += 1
        elif kind == _ACK:
            if syndrome is None or syndrome_kind(syndrome) == ACK:
                self.ack_tx += 1
            else:
                self.nak_tx += 1

    def delivered(
        self, now: int, opcode: int, psn: int, payload: int, syndrome: int | None, marked: bool, sent_ns: int
    ) -> None:
        """A frame of the flow, or an answer to it, arrived."""
        kind = _KINDS[opcode]
        if kind == _CNP:
            self.cnp_rx += 1
            return
        self.last_ns = now
        self.ecn_ce_rx += marked
        if kind == _DATA:
            self._data(now, opcode, psn, payload, now - sent_ns)
        elif kind == _ACK:
            if syndrome is None or syndrome_kind(syndrome) == ACK:
                self.ack_rx += 1
            else:
                self.nak_rx += 1

    def _data(self, now: int, opcode: int, psn: int, payload: int, latency: int) -> None:
        total, least, most = self.latency_ns
        first = self.data_frames_rx == 0
        self.latency_ns = [total + latency, latency if first else min(least, latency), max(most, latency)]
        self.data_frames_rx += 1
        self.rx_bytes += payload
        self.last_rx_ns = now
        if self.first_rx_ns is None:
            self.first_rx_ns = now
        ahead = 0 if self._expected is None else psn - self._expected & MASK
        if 0 < ahead < _HALF:
            self.frame_sequence_error += 1
            self._broken = True
        if ahead == 0 or (not self.reliable and ahead < _HALF):
            self._broken = self._broken and not self.reliable and opcode not in _STARTS
            self._expected = psn + 1 & MASK
            self.message_complete_rx += opcode in _ENDS and not self._broken


class Fields:
    """The fields of a datagram that are counted: those of its BTH, its payload and its syndrome."""

    __slots__ = ("dest_qpn", "key", "marked", "opcode", "payload", "psn", "syndrome")

    def __init__(self, data: bytes) -> None:
        if data[0] >> 4 == 4:
            start, ends, ecn = 20, data[12:20], data[1]
        else:
            start, ends, ecn = 40, data[8:40], data[1] >> 4
        start += _UDP_BYTES
        self.opcode = data[start]
        qpn = data[start + 5 : start + 8]
        self.dest_qpn = int.from_bytes(qpn, "big")
        self.psn = int.from_bytes(data[start + 9 : start + 12], "big")
        pad = data[start + 1] >> 4 & 3
        self.payload = len(data) - start - _HEADERS[self.opcode] - 4 - pad
        self.syndrome = data[start + _AETH_AT] if self.opcode in _HAS_AETH else None
        self.marked = ecn & 3 == 3
        self.key = ends + qpn
