"""Flows that are one, though captures show them in different tunnels or VLANs.

A host's capture may show a packet without the tag or the tunnel in which a switch's capture shows it. Two
flows that have a packet in common are one flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.packets.blocks import Captured

Ints = NDArray[np.int64]


def one_scope(
    parts: Sequence[Captured], order: NDArray[np.int32], row: NDArray[np.int32]
) -> tuple[Ints, NDArray[np.int32]]:
    """The flow of each merged packet, and what is around it, the same for all packets of a flow.

    Args:
        parts: the packets of the captures.
        order: the merged packets, as indices into the concatenated captures.
        row: of each packet of the concatenated captures, its place in ``order``.
    """
    every = np.concatenate([packets.flow for packets in parts])
    flow = every[order]
    if not any(packets.encapsulation.any() for packets in parts):
        return flow, np.broadcast_to(np.zeros(1, np.int32), len(order))
    around = np.concatenate([packets.encapsulation for packets in parts])
    encapsulation = around[order]
    pairs = np.unique(np.stack([every, flow[row]], axis=1), axis=0)
    leader = np.arange(int(every.max(initial=0)) + 1)

    def first_of(number: int) -> int:
        while leader[number] != number:
            number = int(leader[number])
        return number

    for one, other in pairs[pairs[:, 0] != pairs[:, 1]].tolist():
        a, b = first_of(one), first_of(other)
        leader[max(a, b)] = min(a, b)
    merged = np.array([first_of(number) for number in range(len(leader))], np.int64)
    flow = merged[flow]
    moved = merged != np.arange(len(merged))
    if moved.any():
        # All packets of flows that are one have what the first of them has around it.
        joined = np.isin(flow, merged[moved])
        _, first, place = np.unique(flow[joined], return_index=True, return_inverse=True)
        encapsulation[joined] = encapsulation[joined][first][place]
    return flow, encapsulation
