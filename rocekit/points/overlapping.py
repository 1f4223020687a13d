"""Records that a file has twice because it was made of files that overlap, as a ring of files gives them.

Both have the packets of the time that they share, with the same stamp. Put together by time, each such
record stands right behind its copy. A network copies single packets here and there; these come in stretches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.points.twice import LEAST

if TYPE_CHECKING:
    from rocekit.packets import Packets

#: What is said of such copies.
OVERLAP: Final = "with the same time, as where files overlap that were put together"
#: So many packets at least are in a stretch, and most between its ends have a copy.
_STRETCH: Final = 10
#: Packets that have a copy are of two stretches if they are further apart than so many.
_APART: Final = 8
_SAME: Final = ("time_ns", "psn", "dest_qpn", "opcode", "src", "ip_id")


def records_again(packets: Packets) -> int:
    """How many records stand right behind the same one. It is asked of each batch."""
    rows = np.arange(1, len(packets), dtype=np.int64)
    for name in _SAME:
        if not len(rows):
            return 0
        column = packets[name]
        rows = rows[column[rows] == column[rows - 1]]
    return len(rows)


def overlapping(packets: Packets, identity: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The rows of the copies that come in stretches: all but the first of each.

    What a network copied before a stretch or behind it stays.
    """
    time_ns = packets.time_ns
    # Of packets with the same stamp, copies may also stand behind others of that time.
    order = np.lexsort((time_ns, identity))
    value, when = identity[order], time_ns[order]
    again = np.append(False, (value[1:] == value[:-1]) & (when[1:] == when[:-1]))
    is_copy, has_copy = np.zeros((2, len(order)), np.bool_)
    is_copy[order] = again
    has_copy[order] = np.append(again[1:], False) & ~again
    original_ns = time_ns[~is_copy]
    rows = np.flatnonzero(is_copy)
    inside = np.zeros(len(rows), np.bool_)
    for first, last in _stretches(np.flatnonzero(has_copy[~is_copy])):
        within_ns = original_ns[first : last + 1]
        inside |= (time_ns[rows] >= within_ns.min()) & (time_ns[rows] <= within_ns.max())
    return rows[inside].astype(np.int64)


def _stretches(copied: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The first and the last place of each stretch, of packets that have a copy, by their places in order."""
    ends = np.flatnonzero(np.diff(copied) > _APART)
    begins = np.append(0, ends + 1)[: len(copied)]
    ends = np.append(ends, len(copied) - 1)[: len(begins)]
    count, span = ends - begins + 1, copied[ends] - copied[begins] + 1
    long = np.flatnonzero((count >= max(LEAST, _STRETCH)) & (count * 2 > span))
    return [(int(copied[begins[n]]), int(copied[ends[n]])) for n in long]
