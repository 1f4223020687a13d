"""The payload bytes of many packets at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rocekit.packets import Packets

Ints = NDArray[np.int64]


def payloads(packets: Packets, rows: Ints, most: int) -> list[bytes]:
    """At most so many bytes of the payload of each of these packets. See :meth:`Packets.payload`."""
    buffer, start, stop = packets.payload_bounds(rows)
    data, stop = buffer.data, np.minimum(stop, start + most)
    return [data[a:b].tobytes() for a, b in zip(start.tolist(), stop.tolist(), strict=True)]


def first_bytes(packets: Packets, rows: Ints) -> Ints:
    """The first captured payload byte of these packets; −1 where there is none."""
    buffer, start, stop = packets.payload_bounds(rows)
    there = start < stop
    return np.where(there, buffer[np.where(there, start, 0)], np.int64(-1))
