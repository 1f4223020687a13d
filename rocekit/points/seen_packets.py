"""What is kept of each packet of several captures while they are tracked, in little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.packets import as_type
from rocekit.packets.slim import SlimColumn

if TYPE_CHECKING:
    from rocekit.packets import Packets

_TYPES: Final[dict[str, Any]] = {
    "src": np.int32,
    "dst": np.int32,
    "dest_qpn": np.int32,
    "src_qpn": np.int32,
    "psn": np.int32,
    "scope": np.int32,
    "opcode": np.int16,
    "ip_id": np.uint16,
    "icrc_state": np.uint8,
}
_SYNDROME: Final = "syndrome"


class SeenPackets:
    """Columns of the packets of several captures, each packet once, added batch by batch."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._columns = {name: SlimColumn(kind) for name, kind in _TYPES.items()}
        self._columns[_SYNDROME] = SlimColumn(np.uint8)

    def add(self, packets: Packets) -> None:
        """Add the packets of a batch."""
        self.addresses = packets.addresses
        for name, kind in _TYPES.items():
            self._columns[name].add(as_type(packets[name], kind))
        self._columns[_SYNDROME].add(as_type(packets.syndromes(), np.uint8))

    def column(self, name: str) -> SlimColumn:
        """A column of all packets."""
        return self._columns[name]
