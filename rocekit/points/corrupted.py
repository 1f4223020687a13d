"""Which packets reached the next capture point with other bits than they had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID, ICRC_VALID

if TYPE_CHECKING:
    from rocekit.points.sightings import Sightings

Ints = NDArray[np.int64]

#: A corrupted packet arrives not more off the usual time than this, or twice as far as other late ones.
_NEAR_NS: Final = 20_000_000
#: More packets that only the second point has are not compared one by one.
_MOST: Final = 5_000
_FIELDS: Final = ("qpn", "psn", "opcode", "ip_id")


def corrupted(
    sightings: Sightings,
    missing: Ints,
    sent_ns: Ints,
    new: Ints,
    arrived_ns: Ints,
    usual_ns: int,
    late_ns: int = 0,
) -> list[tuple[int, int]]:
    """Pairs of a missing packet and its corrupted copy: places in ``missing`` and in ``new``.

    A copy differs by at most one bit in QPN, PSN, opcode and identification together, and its ICRC is wrong.
    Where the ICRC is not known, it differs by just one bit, of packets that have an identification.

    Args:
        missing: packets that only the first capture has, sent at ``sent_ns``.
        new: packets that only the second has.
        usual_ns: what packets take between the two; late_ns: how much more the slowest in a hundred take.
    """
    if not len(missing) or not 0 < len(new) <= _MOST:
        return []
    off, near_ns = sent_ns + usual_ns, max(_NEAR_NS, 2 * late_ns)
    order = np.argsort(off, kind="stable")
    ordered = off[order]
    free = np.ones(len(missing), np.bool_)
    found = []
    for place in np.argsort(arrived_ns, kind="stable").tolist():
        row, time = int(new[place]), int(arrived_ns[place])
        if sightings.icrc_state[row] == ICRC_VALID:
            continue  # it is as its sender made it
        first, last = np.searchsorted(ordered, (time - near_ns, time + near_ns)).tolist()
        near = order[first:last]
        near = near[free[near]]
        if not len(near):
            continue
        bits = np.zeros(len(near), np.int64)
        for name in _FIELDS:
            values = getattr(sightings, name)
            bits += np.bitwise_count(values[missing[near]].astype(np.int64) ^ int(values[row]))
        alike = near[bits <= 1]
        if sightings.icrc_state[row] != ICRC_INVALID:
            alike = alike[(bits[bits <= 1] == 1) & (sightings.ip_id[missing[alike]] > 0)]
        if len(alike):
            best = int(alike[np.argmin(np.abs(off[alike] - time))])
            free[best] = False
            found.append((best, place))
    return found
