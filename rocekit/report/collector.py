"""Keeps the columns of packets that graphs need, while an analysis reads them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frame_names import FRAME_BITS
from rocekit.flows.scopes import FlowKey
from rocekit.flows.sent_by import FlowKeys
from rocekit.packets import ICRC_INVALID
from rocekit.wire.network import ECN_CE

if TYPE_CHECKING:
    from rocekit.packets import Packets

#: Bits of ``Lanes.flags``.
RESPONSE, CE, DUPLICATE, LATE, LOST = 1, 2, 4, 8, 16

#: Kinds of packets in graphs; those from ``ACK`` to ``ATOMIC_ACK`` are responses.
_KINDS: Final = ("", "ACK", "READ_RESPONSE", "ATOMIC_ACK", "READ", "ATOMIC", "CNP", "REQUEST")
ACK, READ_RESPONSE, ATOMIC_ACK, READ, ATOMIC, CNP_PACKET, REQUEST = range(1, 8)


def _kinds() -> NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for value, opcode in wire.OPCODES.items():
        name = "ATOMIC" if opcode.operation in wire.ATOMICS else opcode.operation
        table[value] = _KINDS.index(name) if name in _KINDS else REQUEST
    return table


#: The kind of each opcode.
KIND: Final = _kinds()
_UD: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].transport == "UD" for v in range(256)])


class Collector:
    """Keeps what graphs need of every packet: ``analyze(…, watch=collector)``."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all packets: they come again, in another order."""
        self._parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self._ways = FlowKeys()

    def __call__(self, packets: Packets) -> None:
        sound = (packets.malformed == 0) & (packets.opcode >= 0) & (packets.dest_qpn > max(wire.MAD_QPNS))
        if not sound.all():
            packets = packets.where(sound)
        n = len(packets)
        if not n:
            return
        opcode, flow = packets.opcode.astype(np.uint8), packets.flow
        self._ways.feed(packets)
        is_ud, reads = _UD[opcode], KIND[opcode] == READ
        file, reference = packets.file, packets.frame
        columns: dict[str, NDArray[Any] | None] = {
            "frame": reference + (file.astype(np.int64) << FRAME_BITS) if file.any() else reference,
            "time_ns": packets.time_ns,
            "flow": flow.astype(np.int32),
            "src_qpn": np.where(is_ud, packets.src_qpn, -1).astype(np.int32) if is_ud.any() else None,
            "opcode": opcode,
            "psn": packets.psn.astype(np.int32),
            "bytes": packets.payload_length,
            "requested": np.where(reads, packets.dma_length, 0).astype(np.uint32) if reads.any() else None,
            "syndrome": packets.syndromes().astype(np.uint8),
            "ce": packets.ecn == ECN_CE,
            "bad": packets.icrc_state == ICRC_INVALID,
        }
        for name, column in columns.items():
            if column is None:
                column = np.broadcast_to(_NOTHING[name], n)
            self._parts[name].append(
                column if column.base is None or not any(column.strides) else column.copy()
            )

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of the packets, in order; empty without packets.

        A column with one value takes no memory. Can be called once.
        """
        return {name: _joined(self._parts.pop(name)) for name in list(self._parts)}

    def ways(self) -> list[FlowKey | None]:
        """The addresses and destination QPN of each flow (see ``senders``)."""
        return self._ways.names()


#: The value of columns that are empty in many captures.
_NOTHING: Final = {"src_qpn": np.int32(-1), "requested": np.uint32(0)}


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    if any(any(part.strides) for part in parts):
        return np.concatenate(parts)
    return np.broadcast_to(parts[0][0], sum(map(len, parts)))
