"""Whether a capture may have packets twice, from what the tracker counted (see ``points.doubled``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.flow_numbers import MIXER
from rocekit.track.connections import came_again, mixed_ends
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.track.connections import Connection

Words = NDArray[np.uint64]

#: Fewer packets than this in both places are no sign of two places.
LEAST: Final = 8
#: One packet in so many came before: then it is worth to look at all of them.
OFTEN: Final = 5


def may_be_doubled(connections: Iterable[Connection], again: int = 0) -> bool:
    """Whether so much came twice, or in two scopes, that the capture may have two capture points.

    Args:
        again: how many records stand right behind one with the same time and packet (``overlapping``).
    """
    every = list(connections)
    return again >= LEAST or came_again(every, LEAST, OFTEN) or _has_ends_twice(every)


def _has_ends_twice(connections: list[Connection]) -> bool:
    """Whether two connections have the same ends, in one scope or in two that both have packets enough."""
    ends, found = np.empty(len(connections), np.uint64), np.empty((len(connections), 4), np.uint64)
    mixed_ends(connections, ends, found)
    if len(distinct(ends)) == len(ends):
        return False
    hosts, scopes, packets = found[:, 0], found[:, 1:3], found[:, 3]
    if len(distinct(_mixed(_mixed(ends, scopes[:, 0]), scopes[:, 1]))) < len(ends):
        return True
    # Of a host pair: two scopes with packets enough. Where the sides differ, all may be of either.
    differs = scopes[:, 0] != scopes[:, 1]
    hosts = np.concatenate([hosts, hosts[differs]])
    ways, which = np.unique(_mixed(hosts, np.append(scopes[:, 0], scopes[differs, 1])), return_inverse=True)
    counts = np.zeros(len(ways), np.uint64)
    np.add.at(counts, which, np.append(packets, packets[differs]))
    of_hosts = np.zeros(len(ways), np.uint64)
    of_hosts[which] = hosts
    often = of_hosts[counts >= LEAST]
    return len(distinct(often)) < len(often)


def _mixed(numbers: Words, more: Words) -> Words:
    return (numbers ^ more) * np.uint64(MIXER)
