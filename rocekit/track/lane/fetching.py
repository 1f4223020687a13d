# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Records of many connections, read shortly before their packets are tracked.

With thousands of connections each packet needs records that are in no cache, and would wait for one after the
other. Read for some packets together, those of all of them come at the same time. Nothing is changed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit.track.lane.row_layout import ANNOUNCED

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.lane.clean_side import CleanSide


#: From so many flows on, records are read for so many packets together.
MANY: Final = 1024
_AHEAD: Final = 32
_SLOTS: Final = 7
_touched = 0


def fetch(sides: list[CleanSide | None], words: Any, r: Rows, start: int) -> int:
    """Read what the clean lane needs for some rows; gives the first for which it is not read.

    Args:
        sides: by flow.
        words: the table of transfers.
    """
    global _touched  # so that no compiler leaves out what only reads
    touched, end = 0, min(start + _AHEAD, len(r))
    for i in range(start, end):
        side = sides[r.flow[i]]
        if side is not None:
            touched ^= side.building ^ side.at
    for i in range(start, end):
        side = sides[r.flow[i]]
        if side is not None and side.on:
            touched ^= side.progress.expected ^ side.recent.last_tx_ns
            if side.building >= 0:
                touched ^= words[side.building] ^ words[side.building + ANNOUNCED]
    for i in range(start, end):
        side = sides[r.flow[i]]
        if side is not None and side.on:
            recent = side.recent
            touched ^= recent._few[(side.progress.expected & recent._mask & _SLOTS) * 2]
    _touched = touched
    return end


def fetch_counts(touched_sides: list[CleanSide], start: int) -> int:
    """Read what is counted of some sides; gives the first of which it is not read."""
    global _touched
    touched, end = 0, min(start + _AHEAD, len(touched_sides))
    for n in range(start, end):
        side = touched_sides[n]
        touched ^= side.packets
    for n in range(start, end):
        side = touched_sides[n]
        touched ^= side.connection.packets
        if side.other is not None:
            touched ^= side.other.packets
    _touched = touched
    return end
