"""What is kept of each packet of several captures while they are tracked, in the narrowest types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.packets import Column, alike

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
        self._parts: dict[str, list[Column]] = {name: [] for name in (*_TYPES, _SYNDROME)}

    def add(self, packets: Packets) -> None:
        self.addresses = packets.addresses
        for name, kind in _TYPES.items():
            self._parts[name].append(_narrow(packets[name], kind))
        self._parts[_SYNDROME].append(_narrow(packets.syndromes(), np.uint8))

    def column(self, name: str) -> Column:
        """A column of all packets, once."""
        parts = self._parts.pop(name)
        if all(alike(part) and part[0] == parts[0][0] for part in parts):
            return np.broadcast_to(parts[0][:1], sum(map(len, parts)))
        return np.concatenate(parts)


def _narrow(column: Column, kind: Any) -> Column:
    """A column in another type; one number if all are alike."""
    first = column[:1].astype(kind)
    if alike(column) or (len(column) and (column == column[0]).all()):
        return np.broadcast_to(first, len(column))
    return column.astype(kind)
