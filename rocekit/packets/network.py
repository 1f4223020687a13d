"""Where the RoCE packets of a batch lie in its frames, for what changes or sends frames again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import FrameBatch
from rocekit.packets.dissect import Dissector
from rocekit.wire import ICRC_BYTES
from rocekit.wire.link import ETHERTYPE_MAC_CONTROL, gather

_PAUSE_OPCODES: Final = (0x0001, 0x0101)  # 802.3 PAUSE, 802.1Qbb PFC

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Network:
    """Where things lie in a batch of frames, as the dissector found it. Offsets are places in its buffer.

    Attributes, one value a RoCE packet, in the order of the frames:
        index: which frame of the batch.
        start: the first byte of the IP header or GRH.
        bth: the first byte of the BTH.
        end: behind the ICRC, as the packet's own lengths say.
        limit: behind the last captured byte.
        truncated: whether the snaplen cut the packet.
        ip_version: 4 or 6 (a GRH counts as 6); roce_version: 1 or 2.
        fragment: a first fragment: the headers are there, the ICRC is not.

    Attributes, one value a frame:
        layer: where its network layer begins; ethertype: 0 where there is none, or it is cut before it.
    """

    index: Ints
    start: Ints
    bth: Ints
    end: Ints
    limit: Ints
    truncated: Bools
    ip_version: NDArray[np.uint8]
    roce_version: NDArray[np.uint8]
    fragment: Bools
    layer: Ints
    ethertype: Ints

    @classmethod
    def of(cls, dissector: Dissector) -> Network:
        """What a dissector found in the batch that it took last."""
        columns: dict[str, Any] = {name: dissector.columns[name] for name in cls.__slots__}
        for name in ("truncated", "fragment"):
            columns[name] = columns[name].view(np.bool_)
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.index)


def pauses(batch: FrameBatch, layer: Ints, ethertype: Ints) -> Ints:
    """The PAUSE (802.3 annex 31B) and PFC frames (802.1Q clause 36; annex 31D) of a batch.

    A row each: index in the batch, the priorities paused as a bit mask (all of them for 802.3 PAUSE), the
    longest pause in quanta of 512 bit times.
    """
    index = np.flatnonzero(ethertype == ETHERTYPE_MAC_CONTROL)
    start, limit = layer[index], (batch.offset + batch.caplen)[index]
    head = gather(batch.buffer, start, 20).view(">u2").astype(np.int64)
    for word in range(head.shape[1]):
        head[start + 2 * word + 2 > limit, word] = 0
    by_class = head[:, 0] == _PAUSE_OPCODES[1]
    enabled = np.where(by_class, head[:, 1] & 0xFF, 0xFF)
    asked = np.where((enabled[:, None] >> np.arange(8) & 1) != 0, head[:, 2:10], 0)
    quanta = np.where(by_class, asked.max(axis=1), head[:, 1])
    rows: Ints = np.stack([index, enabled, quanta], axis=1)[np.isin(head[:, 0], _PAUSE_OPCODES)]
    return rows


def least_end(network: Network) -> Ints:
    """Where the bytes end that can be read as headers: before the ICRC, and before the capture's cut."""
    return np.minimum(network.limit, network.end - ICRC_BYTES)
