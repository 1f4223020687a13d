"""An order of two capture points that the packets contradict: what the first one lacks was sent again.

Delays of both directions tell the order (see ``sightings``), unless each direction has a clock of its own, as
the two ports of a tap may, and these differ by more than the way takes. What a capture misses by itself does
not know what the network loses. So where nearly all packets that only the second point has were sent again,
and others were not, the network lost them between the two, and they passed the second point first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from rocekit.wire import QPN_BITS

if TYPE_CHECKING:
    from rocekit.packets.slim import SlimColumn

#: So many packets are needed, and nearly all of them sent again.
_LEAST: Final = 4
_NEARLY_ALL: Final = 0.9
#: By chance, among as many packets as were sent again at all, it is less probable than this.
_CHANCE: Final = 0.001

Rows = NDArray[np.int32]
Mask = NDArray[np.bool_]


class Captured(Protocol):
    """What several captures have of each packet (see ``sightings``)."""

    frames: list[SlimColumn]
    time_ns: Any
    qpn: Any
    psn: Any
    identity: Any

    @property
    def spans(self) -> list[tuple[int, int]]: ...

    def is_request(self, rows: Any) -> Mask: ...


def is_contradicted(sightings: Captured, rows: Rows, counts: Sequence[int], points: Sequence[int]) -> bool:
    """Whether packets of a way contradict an order of capture points.

    Args:
        rows: the way's packets; counts: by capture, how many of them it has.
    """
    for first, second in pairwise(points):
        if counts[first] == len(rows) or not (counts[first] and counts[second]):
            continue
        begin, end = (
            pick(sightings.spans[file][k] for file in (first, second)) for k, pick in enumerate((max, min))
        )
        times = sightings.time_ns[rows]
        own = rows[(times > begin) & (times < end)]  # both were running
        here, there = (sightings.frames[file][own] != 0 for file in (first, second))
        alone = np.flatnonzero(there & ~here)
        if len(alone) < _LEAST:
            continue
        # What the network doubled between the two is there once more behind it, and was not sent again.
        there[alone] = ~np.isin(sightings.identity[own[alone]], sightings.identity[own[here]])
        numbers = (sightings.qpn[own].astype(np.int64) << QPN_BITS | sightings.psn[own]) * 2
        if _is_lost_backwards(here, there, numbers + sightings.is_request(own)):
            return True
    return False


def _is_lost_backwards(first: Mask, second: Mask, packets: NDArray[np.int64]) -> bool:
    """Whether what the first point lacks was lost behind the second one.

    Args:
        packets: what tells a packet that is sent again by its number: it is that of the first one.
    """
    alone = second & ~first
    count = int(np.count_nonzero(alone))
    if count < _LEAST or int(np.count_nonzero(first & ~second)) * _LEAST > count:
        return False
    _, which, times = np.unique(packets, return_inverse=True, return_counts=True)
    again = times[which] > 1
    repeated = int(np.count_nonzero(again & alone))
    share = float(np.count_nonzero(again & ~alone)) / max(1, len(packets) - count)
    return repeated >= _NEARLY_ALL * count and share**repeated < _CHANCE
