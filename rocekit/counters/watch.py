"""What predictions of counters need of each packet to or from the devices whose counters are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.flows.scopes import FlowKey
from rocekit.flows.sent_by import FlowKeys
from rocekit.packets import ICRC_INVALID

if TYPE_CHECKING:
    from rocekit.packets import Packets

Ints = NDArray[np.int64]

#: Packets kept of a capture in files.
MOST: Final = 5_000_000
_COLUMNS: Final = {
    "time_ns": np.int64,
    "src": np.int32,
    "dst": np.int32,
    "flow": np.int32,
    "dest_qpn": np.int32,
    "src_qpn": np.int32,
    "psn": np.int32,
    "opcode": np.int16,
    "syndrome": np.uint8,
    "dma_length": np.uint32,
    "payload_length": np.int32,
    "ip_id": np.uint16,
    "ecn": np.uint8,
    "wrong": np.bool_,
}
_UD: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].transport == "UD" for v in range(257)])


@dataclass(frozen=True)
class PacketRows:
    """Packets as columns, in the order of one capture.

    Attributes:
        columns: ``time_ns``, ``psn`` …; ``wrong``: the ICRC is wrong or the packet is malformed.
        addresses: which ``src`` and ``dst`` index.
        keys: of the flows (see ``flows.sent_by``).
    """

    columns: dict[str, NDArray[Any]]
    addresses: list[str]
    keys: list[FlowKey | None]

    def __len__(self) -> int:
        return len(self.columns["time_ns"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def earlier(self, ns: int) -> PacketRows:
        """The same packets with earlier times: by another clock."""
        times = {"time_ns": self.columns["time_ns"] - ns}
        return PacketRows(self.columns | times, self.addresses, self.keys)

    def indices(self, addresses: Iterable[str]) -> Ints:
        """The places of these addresses."""
        wanted = set(addresses)
        return np.array([i for i, name in enumerate(self.addresses) if name in wanted], np.int64)


class CounterWatch:
    """Keeps what the prediction of counters needs, of each capture by itself.

    Args:
        addresses: those of all devices that snapshots are of.
        most: packets to keep; of more nothing is predicted.

    Attributes:
        cut: whether the snaplen, or a mirror, cut headers off.
    """

    def __init__(self, addresses: Iterable[str], most: int = MOST) -> None:
        self.addresses = frozenset(addresses)
        self._most = most
        self._known: list[bool] = []
        self._parts: dict[int, dict[str, list[NDArray[Any]]]] = {}
        self._keys = FlowKeys()
        self._addresses: list[str] = []
        self._kept = 0
        self.cut = False

    @property
    def overflowed(self) -> bool:
        """Whether there were too many packets."""
        return self._kept > self._most

    def give_up(self) -> None:
        """As after too many packets."""
        self._kept = self._most + 1
        self._parts.clear()

    def feed(self, packets: Packets, file: int = 0) -> None:
        """Add a batch of a capture's packets."""
        if not len(packets) or not self.addresses or self.overflowed:
            return
        self._addresses = packets.addresses
        self._known += [name in self.addresses for name in self._addresses[len(self._known) :]]
        known = np.array(self._known)
        own = known[packets.src] | known[packets.dst]
        self.cut = self.cut or bool((own & packets.truncated & (packets.opcode < 0)).any())
        self.cut = self.cut or bool(own[packets.lacking()].any())
        own &= packets.opcode >= 0
        if not own.any():
            return
        if not own.all():
            packets = packets.where(own)
        self._kept += len(packets)
        if self._kept > self._most:
            self._parts.clear()
            return
        self._keys.feed(packets)
        parts = self._parts.setdefault(file, defaultdict(list))
        for name, kind in _COLUMNS.items():
            if name == "wrong":
                column = (packets.icrc_state == ICRC_INVALID) | (packets.malformed != 0)
            elif name == "src_qpn":
                column = np.where(_UD[packets.opcode], packets.src_qpn, -1)
            else:
                column = packets[name]
            parts[name].append(column.astype(kind, copy=True))

    @cached_property
    def _rows(self) -> dict[int, PacketRows]:
        keys = self._keys.names()
        return {
            file: PacketRows({n: np.concatenate(p) for n, p in parts.items()}, self._addresses, keys)
            for file, parts in self._parts.items()
        }

    def rows(self, file: int) -> PacketRows | None:
        """A capture's packets; None if it has none of them. After the last batch."""
        return self._rows.get(file)
