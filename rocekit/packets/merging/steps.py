"""A clock that was set while two captures ran: from then on one is ahead of the other by so much more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.packets.merging.alike import RowNumbers
    from rocekit.packets.merging.outline import Outline

Ints = NDArray[np.int64]

#: Smaller steps are not looked for.
LEAST_NS: Final = 20_000_000
#: A step of one direction's packets may be a way that became longer; by so much none does.
_SURELY_NS: Final = 1_000_000_000
#: A step is so many times what the differences before it, and those behind it, are spread by.
_CLEAR: Final = 4
#: The two directions tell the same step but for so much, and a share of it: their ways may change, too.
_ALIKE_NS: Final = 1_000_000
_ALIKE: Final = 0.05
_FEWEST: Final = 3


def find_step(
    outline: Outline, rows: RowNumbers, ahead: Ints, ways: NDArray[np.integer[Any]]
) -> tuple[int, int] | None:
    """(how much more the capture is ahead from then on, from which of its times on); None: its clock ran on.

    Args:
        outline: the capture that may be ahead; rows: its packets that the other capture has, too.
        ahead: the time differences of these packets; ways: from which host to which they are sent.
    """
    if len(ahead) < 2 * _FEWEST or int(ahead.max()) - int(ahead.min()) < LEAST_NS:
        return None
    own = np.asarray(rows[:])
    when = outline.time_ns[own]
    order = np.argsort(when, kind="stable")
    in_turn = ahead[order]
    split = int(np.argmax(np.abs(np.diff(in_turn)))) + 1
    parts = order[:split], order[split:]
    if min(map(len, parts)) < _FEWEST:
        return None
    sizes = []
    for way in np.flatnonzero(np.bincount(ways)).tolist():
        before, behind = (ahead[part[ways[part] == way]] for part in parts)
        if not len(before) or not len(behind):
            continue
        size = float(np.median(behind) - np.median(before))
        spread = max(float(np.ptp(np.quantile(part, (0.05, 0.95)))) for part in (before, behind))
        if abs(size) < max(LEAST_NS, _CLEAR * spread):
            return None
        sizes.append(size)
    if not sizes:
        return None
    least, most = min(sizes), max(sizes)
    step = round((least + most) / 2)
    if most - least > _ALIKE_NS + _ALIKE * abs(step):
        return None
    if len(sizes) < 2 and abs(step) < _SURELY_NS:
        return None
    return step, _begin(outline, int(own[parts[0][-1]]), int(own[parts[1][0]]))


def _begin(outline: Outline, before: int, behind: int) -> int:
    """When the clock is another, between two packets: behind the longest time without any."""
    if behind <= before:
        return int(outline.time_ns[behind])
    times = outline.time_ns[np.arange(before, behind + 1)]
    return int(times[int(np.argmax(np.diff(times))) + 1])
