"""Rows of bytes from many places of a buffer, and back to them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


def gather(buffer: Bytes, at: Ints, width: int) -> Bytes:
    """``width`` bytes from each place in ``at``: an array (len(at), width), zero behind the buffer's end."""
    # With an item of ``width`` bytes NumPy copies whole rows, many times faster than byte by byte.
    if not len(at):
        return np.zeros((0, width), np.uint8)
    last = len(buffer) - width
    if last >= 0 and int(at.max()) <= last:
        return _windows(buffer, width)[at].view(np.uint8).reshape(len(at), width)
    inside = at <= last
    rows = np.zeros((len(at), width), np.uint8)
    if inside.any():
        rows[inside] = gather(buffer, at[inside], width)
    for i in np.flatnonzero(~inside):  # a frame or two at the very end of the buffer
        rest = buffer[int(at[i]) :]
        rows[i, : len(rest)] = rest[:width]
    return rows


def scatter(buffer: Bytes, at: Ints, rows: Bytes) -> None:
    """Write ``rows`` (as from :func:`gather`) back to their places, which must lie inside the buffer."""
    width = rows.shape[1]
    _windows(buffer, width)[at] = np.ascontiguousarray(rows).view(f"V{width}")[:, 0]


def _windows(buffer: Bytes, width: int) -> NDArray[Any]:
    """The buffer as overlapping items of ``width`` bytes, one from each byte on."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
