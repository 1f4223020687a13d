"""Which packets of the second of two places in one file are copies of those of the first one."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: A copy is as far behind its packet as copies usually are, more or less by this.
_NEAR_NS: Final = 1_000_000


def at_both(identity: NDArray[np.uint64], times: Ints, first: Ints, second: Ints) -> NDArray[np.bool_]:
    """Which packets of the second place are at the first one, too.

    Of equal packets (a requester sent them again) that the second place has more of, those are that have one
    of the first place beside them in time.

    Args:
        identity, times: of all packets; first, second: the rows of those at each place.
    """
    _, same = np.unique(identity[np.concatenate([first, second])], return_inverse=True)
    same = same.reshape(-1)
    here, there = same[: len(first)], same[len(first) :]
    most = int(same.max(initial=-1)) + 1
    often, again = np.bincount(here, minlength=most), np.bincount(there, minlength=most)
    found: NDArray[np.bool_] = (again <= often)[there]
    left = np.flatnonzero(~found & (often[there] > 0))
    if not len(left):
        return found
    # The usual way between the places is not told from the few packets that are left.
    once = (often == 1) & (again == 1)
    ahead = np.zeros(most, np.int64)
    ahead[here] = times[first]
    took = (times[second] - ahead[there])[once[there]]
    usual = int(np.median(took)) if len(took) else 0
    kept = np.flatnonzero((again > often)[here])
    which = np.concatenate([here[kept], there[left]])
    when = np.concatenate([times[first[kept]] + usual, times[second[left]]])
    order = np.lexsort((when, which))
    is_second = order >= len(kept)
    beside = (np.diff(which[order]) == 0) & (np.diff(when[order]) < _NEAR_NS) & (np.diff(is_second) != 0)
    has = np.append(beside, False) | np.append(False, beside)
    found[left[order[has & is_second] - len(kept)]] = True
    return found
