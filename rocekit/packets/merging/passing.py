"""When a packet passed a capture point that missed it, by the captures that have it.

A packet that only the second capture point on its way has would stand too late among the others, as if they
had overtaken it: it passed the first point earlier, by the usual delay, and between the same neighbours.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Fewer packets that two captures share do not show the usual delay between them.
_LEAST: Final = 4
#: The delay of a packet is the median of so many before it and as many behind it.
_NEAR: Final = 4


def passed(seen_ns: Ints, unseen: int, flow: Ints, is_copy: NDArray[np.bool_]) -> Ints:
    """When each packet passed the first capture point on its way, measured or estimated.

    Args:
        seen_ns: by packet and capture, the aligned time at which the capture has it, or ``unseen``.
        flow: by packet, its one-way flow.
        is_copy: whether it may have been made behind the first point: another packet is equal, or it is
        corrupted.
    """
    has = seen_ns != unseen
    passed_ns = np.full(len(seen_ns), _NEVER)
    for seen, own in zip(seen_ns.T, has.T, strict=True):
        np.minimum(passed_ns, seen, out=passed_ns, where=own)
    partly = ~has.all(axis=1) & ~is_copy
    for number in np.unique(flow[partly]).tolist():
        rows = np.flatnonzero(flow == number)
        for first in range(seen_ns.shape[1]):
            for second in range(seen_ns.shape[1]):
                if first != second:
                    _estimate(passed_ns, rows, seen_ns[rows, first], seen_ns[rows, second], unseen, partly)
    return passed_ns


_NEVER: Final = np.iinfo(np.int64).max


def _estimate(
    passed_ns: Ints, rows: Ints, first_ns: Ints, second_ns: Ints, unseen: int, partly: NDArray[np.bool_]
) -> None:
    """Estimate when packets that only the second point has passed the first one."""
    both = np.flatnonzero((first_ns != unseen) & (second_ns != unseen))
    missed = np.flatnonzero((first_ns == unseen) & (second_ns != unseen) & partly[rows])
    if len(both) < _LEAST or not len(missed):
        return
    both = both[np.argsort(second_ns[both], kind="stable")]
    delay_ns = second_ns[both] - first_ns[both]
    if np.median(delay_ns) <= 0:
        return
    at = np.searchsorted(second_ns[both], second_ns[missed])
    near = np.clip(at[:, None] + np.arange(-_NEAR, _NEAR)[None, :], 0, len(both) - 1)
    guess = second_ns[missed] - np.median(delay_ns[near], axis=1).astype(np.int64)
    before = first_ns[both][np.clip(at - 1, 0, len(both) - 1)]
    behind = first_ns[both][np.clip(at, 0, len(both) - 1)]
    inside = (at > 0) & (at < len(both)) & (before <= behind)
    guess = np.where(inside, np.clip(guess, before, behind), guess)
    passed_ns[rows[missed]] = np.minimum(passed_ns[rows[missed]], guess)
