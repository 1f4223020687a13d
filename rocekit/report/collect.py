"""What of every packet graphs need, kept while an analysis reads it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets import ICRC_INVALID
from rocekit.transfers import FRAME_BITS

if TYPE_CHECKING:
    from rocekit.packets import Packets

#: Bits of ``Lanes.flags``.
RESPONSE, CE, DUPLICATE, LATE, LOST = 1, 2, 4, 8, 16
_ECN_CE: Final = 3  # RFC 3168

#: Kinds of packets, as graphs tell them apart; those between ``ACK`` and ``ATOMIC_ACK`` answer something.
_KINDS: Final = ("", "ACK", "READ_RESPONSE", "ATOMIC_ACK", "READ", "ATOMIC", "CNP", "REQUEST")
ACK, READ_RESPONSE, ATOMIC_ACK, READ, ATOMIC, CNP_PACKET, REQUEST = range(1, 8)


def _kinds() -> NDArray[np.uint8]:
    table = np.zeros(256, np.uint8)
    for value, opcode in wire.OPCODES.items():
        name = "ATOMIC" if opcode.operation in ("FETCH_ADD", "CMP_SWAP") else opcode.operation
        table[value] = _KINDS.index(name) if name in _KINDS else REQUEST
    return table


#: The kind of each opcode.
KIND: Final = _kinds()
_UD: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].transport == "UD" for v in range(256)])


class Collector:
    """Keeps of every packet that passes what graphs need: ``analyze(…, watch=collector)``."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
        self.addresses: list[str] = []

    def __call__(self, packets: Packets) -> None:
        self.addresses = packets.addresses
        qpn = packets.dest_qpn
        sound = (packets.malformed == 0) & (packets.opcode >= 0) & (qpn > max(wire.MAD_QPNS))
        if not sound.all():
            packets = packets.where(sound)
            qpn = packets.dest_qpn
        if not len(packets):
            return
        opcode = packets.opcode.astype(np.uint8)
        is_ud = _UD[opcode]
        columns = {
            "frame": packets.frame + (packets.file.astype(np.int64) << FRAME_BITS),
            "time_ns": packets.time_ns,
            "flow": (packets.src.astype(np.int64) << 20 | packets.dst) << 24 | qpn,
            "src_qpn": np.where(is_ud, packets.src_qpn, -1).astype(np.int32)
            if is_ud.any()
            else np.full(len(opcode), -1, np.int32),
            "opcode": opcode,
            "psn": packets.psn.astype(np.int32),
            "bytes": packets.payload_length,
            "asked": np.where(KIND[opcode] == READ, packets.dma_length, 0).astype(np.uint32),
            "syndrome": packets.syndrome.astype(np.uint8),
            "ce": packets.ecn == _ECN_CE,
            "bad": packets.icrc_state == ICRC_INVALID,
        }
        for name, column in columns.items():
            self._parts[name].append(column.copy() if column.base is not None else column)

    def columns(self) -> dict[str, NDArray[Any]]:
        """What was kept, in the order in which it came; no names at all where nothing was."""
        return {name: np.concatenate(parts) for name, parts in self._parts.items()}
