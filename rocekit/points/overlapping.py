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
#: So many packets at least are in a stretch, on average.
_STRETCH: Final = 10
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
    """The rows of the copies, if they come in stretches: all but the first of each; else none."""
    time_ns = packets.time_ns
    again = np.append(False, (identity[1:] == identity[:-1]) & (time_ns[1:] == time_ns[:-1]))
    has_copy = np.append(again[1:], False)[~again]
    copied = int(np.count_nonzero(has_copy))
    begins = int(np.count_nonzero(has_copy[1:] & ~has_copy[:-1])) + bool(has_copy[:1].any())
    if copied < max(LEAST, begins * _STRETCH):
        return np.empty(0, np.int64)
    # Of packets with the same stamp, copies may also stand behind others of that time.
    order = np.lexsort((time_ns, identity))
    value, when = identity[order], time_ns[order]
    later = np.append(False, (value[1:] == value[:-1]) & (when[1:] == when[:-1]))
    return np.sort(order[later]).astype(np.int64)
