"""Hosts that talk to each other, of which the capture has one direction only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rocekit.flows.table import reversed_ways
from rocekit.packets.flow_numbers import ADDRESS_BITS
from rocekit.track.connections import END_COLUMNS, RESPONDS, A, B, ends_of
from rocekit.wire.sorting import first_of_each, is_among

if TYPE_CHECKING:
    from rocekit.flows.observer import Observer
    from rocekit.track.connections import Connection


def silent_ways(
    connections: list[Connection], observer: Observer, numbers: Callable[[], dict[str, int]] | None = None
) -> list[tuple[str, str]]:
    """The ways (source, destination) without a packet, though a connection has some of the opposite way.

    Args:
        numbers: gives the numbers of the observer's addresses, where somebody else needs them, too.
    """
    seen = observer.ways()
    alone = seen[~is_among(reversed_ways(seen), seen)]
    if not len(alone):  # of most captures there are both directions everywhere
        return []
    names = observer.addresses
    ends = np.empty((len(connections), END_COLUMNS), np.int64)
    ends_of(
        connections, dict(zip(names, range(len(names)), strict=True)) if numbers is None else numbers(), ends
    )
    ends = ends[(ends[:, A] >= 0) & (ends[:, B] >= 0) & (ends[:, RESPONDS] != 0)]
    there = ends[:, A] << ADDRESS_BITS | ends[:, B]
    back = reversed_ways(there)
    silent = np.where(is_among(there, alone), back, np.where(is_among(back, alone), there, -1))
    ways, first = first_of_each(silent[silent >= 0])
    ways = ways[np.argsort(first)]
    src, dst = (ways >> ADDRESS_BITS).tolist(), (ways & (1 << ADDRESS_BITS) - 1).tolist()
    return list(zip(map(names.__getitem__, src), map(names.__getitem__, dst), strict=True))
