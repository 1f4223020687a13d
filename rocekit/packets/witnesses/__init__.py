"""Frames that are no RoCE packets and say what happened to them: ICMP errors, and ARP and ND."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frame_names import frame_reference
from rocekit.files.frames import FrameBatch
from rocekit.wire.network import ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMPV4, ICMPV6

# What reads them is loaded when the first of them comes.
if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.packets.witnesses.icmp import IcmpError, NeighbourMessage
    from rocekit.packets.witnesses.neighbours import Neighbours

Ints = NDArray[np.int64]

#: ICMP errors kept one by one; more are only counted.
MAX_KEPT: Final = 10_000
_PROTOCOL_AT, _NEXT_HEADER_AT = 9, 6


class Witnesses:
    """Collects them from batches of frames.

    Attributes:
        icmp: ICMP errors that quote packets to UDP port 4791; icmp_count: how many there are.
        neighbours: ARP and ND requests without a reply; None before the first ARP or ND message.
    """

    def __init__(self) -> None:
        self.icmp: list[IcmpError] = []
        self.icmp_count = 0
        self.neighbours: Neighbours | None = None

    @property
    def is_full(self) -> bool:
        """Whether there are more ICMP errors than are kept."""
        return self.icmp_count > len(self.icmp)

    def feed(self, batch: FrameBatch, others: Ints, layer: Ints, ethertype: Ints) -> None:
        """Add the frames of a batch that are no RoCE packets.

        Args:
            others: indices of these frames in the batch.
            layer, ethertype: of every frame of the batch, as the dissector found them.
        """
        kind, limit = ethertype[others], batch.offset + batch.caplen
        arp = others[kind == ETHERTYPE_ARP]
        if len(arp):
            from rocekit.packets.witnesses.neighbours import arp_messages

            self._take_neighbours(batch, arp_messages(batch.buffer, arp, layer, limit))
        for version, wanted, at, protocol in (
            (4, ETHERTYPE_IPV4, _PROTOCOL_AT, ICMPV4),
            (6, ETHERTYPE_IPV6, _NEXT_HEADER_AT, ICMPV6),
        ):
            rows = others[kind == wanted]
            rows = rows[layer[rows] + at < limit[rows]]
            rows = rows[batch.buffer[layer[rows] + at] == protocol]
            if len(rows):
                self._take_icmp(batch, rows, layer, limit, version)

    def _take_icmp(self, batch: FrameBatch, rows: Ints, layer: Ints, limit: Ints, version: int) -> None:
        from rocekit.packets.witnesses.icmp import IcmpError, find_icmp_errors, find_neighbour_messages

        for index, message in find_icmp_errors(batch.buffer, rows, layer, limit, version):
            self.icmp_count += 1
            if len(self.icmp) < MAX_KEPT:
                file, number, time_ns = self._place(batch, index)
                self.icmp.append(IcmpError(frame_reference(file, number), time_ns, *message))
        if version == 6:
            self._take_neighbours(batch, find_neighbour_messages(batch.buffer, rows, layer, limit))

    def _take_neighbours(self, batch: FrameBatch, messages: Iterable[tuple[int, NeighbourMessage]]) -> None:
        for index, message in messages:
            if self.neighbours is None:
                from rocekit.packets.witnesses.neighbours import Neighbours

                self.neighbours = Neighbours()
            self.neighbours.take(message, *self._place(batch, index))

    @staticmethod
    def _place(batch: FrameBatch, index: int) -> tuple[int, int, int]:
        """A frame's file, number and time."""
        return batch.file, int(batch.number[index]), int(batch.time_ns[index])
