"""The place at which each packet was captured: what differs between the copies that a mirror has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import LINKTYPE_ETHERNET
from rocekit.wire.byte_rows import gather

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.packets import Packets

Ints = NDArray[np.int64]

_MAC_BYTES: Final = 12


class PlaceTable:
    """The place of each packet.

    Args:
        macs: numbers for the MAC addresses of all packets, in parts, which are used up.
    """

    def __init__(self, packets: Packets, macs: list[Ints]) -> None:
        self._columns = packets.hop_limit, packets.vlan, packets.encapsulation, np.concatenate(macs)
        macs.clear()

    def of(self, rows: Ints) -> Ints:
        """The places of some packets: a row each, with hop limit, VLAN, encapsulation, MACs."""
        return np.stack([column[rows].astype(np.int64) for column in self._columns], axis=1)


def mac_numbers(batch: FrameBatch, packets: Packets) -> Ints:
    """A number for the MAC addresses of each frame; 0 where its link has none."""
    rows = np.searchsorted(batch.number, packets.frame)
    found = np.zeros(len(packets), np.int64)
    own = np.flatnonzero((batch.linktype[rows] == LINKTYPE_ETHERNET) & (batch.caplen[rows] >= _MAC_BYTES))
    if len(own):
        data = gather(batch.buffer, batch.offset[rows[own]], _MAC_BYTES)
        if (data == data[0]).all():  # most captures have few pairs of addresses, and a flood has one
            data = data[:1]
        value = np.zeros(len(data), np.int64)
        for byte in range(_MAC_BYTES):
            value = value * 1_000_003 + data[:, byte].astype(np.int64) + 1
        found[own] = value
    return found
