"""Which packets a capture does not record: those of one direction, or the requests.

Of these it has nothing, so that it looks as if all of them were lost on the way there. What a capture has of
other packets does not prove that it would have these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.slim import PIECE

if TYPE_CHECKING:
    from rocekit.points.sightings import Sightings

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]
Mask = NDArray[np.bool_]

_QP1: Final = 1
ONLY_MADS, NO_REQUESTS = "only CM messages", "no requests"


def unrecorded(
    sightings: Sightings, src: str, dst: str, rows: Ints, missing: Mask, file: int, *, arrived: bool
) -> tuple[Mask, str]:
    """Which packets from one host to another a capture does not record, and what it has of them, in words.

    A capture with packets from ``dst`` to ``src`` that has only CM messages of this direction is one of the
    other direction. One without any request of which another one shows that it came has none of them.

    Args:
        rows, missing: packets, and which of these are missing in the capture ``file``.
        arrived: whether any request that it has not is known to have come.
    """
    if not missing.any():
        return missing, ""
    own = sightings.rows_of(src, dst)
    if not _has(sightings, own, file) and _has(sightings, sightings.rows_of(dst, src), file):
        return missing & (sightings.qpn[rows] != _QP1), ONLY_MADS
    if arrived and not _has(sightings, own, file, requests=True):
        return missing & (sightings.qpn[rows] != _QP1) & sightings.is_request(rows), NO_REQUESTS
    return np.zeros(len(missing), np.bool_), ""


def _has(sightings: Sightings, rows: Rows, file: int, *, requests: bool = False) -> bool:
    """Whether a capture has one of the packets that is no CM message, or that is a request and none."""
    frames = sightings.frames[file]
    for at in range(0, len(rows), PIECE):
        own = rows[at : at + PIECE]
        found = (frames[own] != 0) & (sightings.qpn[own] != _QP1)
        if requests:
            found &= sightings.is_request(own.astype(np.int64))
        if found.any():
            return True
    return False
