"""Where the RoCE packets of a batch are in its frames, for code that changes or replays frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.dissect import Dissector
from rocekit.wire import ICRC_BYTES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True, eq=False, repr=False)
class Locations:
    """Where the RoCE packets of a batch start and end; all but ``index`` are offsets in its buffer.

    Attributes, one value a RoCE packet, in the order of the frames:
        index: which frame of the batch.
        start: the first byte of the IP header or GRH.
        bth: the first byte of the BTH.
        end: behind the ICRC, by the lengths in the packet's headers.
        limit: behind the last captured byte.
        truncated: whether the snaplen cut the packet.
        ip_version: 4 or 6 (a GRH counts as 6); roce_version: 1 or 2.
        fragment: a first fragment, which has headers but no ICRC.

    Attributes, one value a frame:
        layer: where its network layer starts.
        ethertype: 0 if there is none, or the frame is cut before it.
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
    def of(cls, dissector: Dissector) -> Locations:
        """Those of the batch that a dissector took last."""
        columns: dict[str, Any] = {name: dissector.columns[name] for name in cls.__slots__}
        for name in ("truncated", "fragment"):
            columns[name] = columns[name].view(np.bool_)
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.index)


def least_end(network: Locations) -> Ints:
    """Where the captured bytes before the ICRC end."""
    return np.minimum(network.limit, network.end - ICRC_BYTES)
