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
    from rocekit.packets.merging.outline import Outline
    from rocekit.packets.slim import SlimColumn

Ints = NDArray[np.int64]


def one_scope(
    outlines: Sequence[Outline], order: SlimColumn, numbers: Sequence[SlimColumn]
) -> tuple[Ints, NDArray[np.int32]] | None:
    """The flow of each merged packet, and what is around it, the same for all packets of a flow.

    None if nothing is around any packet.

    Args:
        order: the merged packets, as indices into the concatenated captures.
        numbers: of the packets of each capture, the same for a packet's copies.
    """
    if not any(piece.any() for outline in outlines for _, piece in outline.encapsulation.pieces()):
        return None
    every = np.concatenate([outline.flow.whole() for outline in outlines])
    first = order.whole()
    row = np.concatenate([of.whole() for of in numbers])
    place = np.empty(int(row.max(initial=-1)) + 1, np.int32)
    place[row[first]] = np.arange(len(first), dtype=np.int32)
    row = place[row]
    flow = every[first]
    around = np.concatenate([outline.encapsulation.whole() for outline in outlines])
    encapsulation = around[first]
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
        _, begin, which = np.unique(flow[joined], return_index=True, return_inverse=True)
        encapsulation[joined] = encapsulation[joined][begin][which]
    return flow, encapsulation
