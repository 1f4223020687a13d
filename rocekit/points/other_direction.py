"""Captures of one direction of the connections that have the CM messages of both.

Of what the other direction sent such a capture has nothing else, so that it looks as if all of it was lost on
the way there. What the capture has of its own direction does not prove that it would have the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.packets.slim import PIECE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rocekit.points.sightings import Sightings

_QP1: Final = 1


def has_other_only(sightings: Sightings, src: str, dst: str, file: int) -> bool:
    """Whether a capture has packets of connections from ``dst`` to ``src``, and none the other way."""
    return not _has_data(sightings, sightings.rows_of(src, dst), file) and _has_data(
        sightings, sightings.rows_of(dst, src), file
    )


def _has_data(sightings: Sightings, rows: NDArray[np.int32], file: int) -> bool:
    """Whether a capture has one of the packets that is no CM message."""
    frames = sightings.frames[file]
    for at in range(0, len(rows), PIECE):
        own = rows[at : at + PIECE]
        if ((frames[own] != 0) & (sightings.qpn[own] != _QP1)).any():
            return True
    return False
