"""Frames to packet columns: one row a RoCE packet, one NumPy column a field of the wire.

    from rocekit.capture import open_capture
    from rocekit.decode import Decoder

    decoder = Decoder()
    with open_capture("x.pcapng") as capture:
        for batch in capture:
            packets = decoder.decode(batch)

The code is in :mod:`rocekit.packets`.
"""

from __future__ import annotations

from rocekit.packets import (
    COLUMNS,
    FIELD_HOMES,
    HAS,
    ICRC_INVALID,
    ICRC_STATES,
    ICRC_UNCHECKED,
    ICRC_VALID,
    NO_OPCODE,
    Packets,
    Row,
    empty_packets,
)
from rocekit.packets.decoder import Counts, Decoder
from rocekit.packets.malformed import MALFORMED
from rocekit.packets.pauses import Pause

__all__ = [
    "Decoder",
    "Counts",
    "Pause",
    "Packets",
    "Row",
    "empty_packets",
    "COLUMNS",
    "FIELD_HOMES",
    "HAS",
    "ICRC_VALID",
    "ICRC_INVALID",
    "ICRC_UNCHECKED",
    "ICRC_STATES",
    "MALFORMED",
    "NO_OPCODE",
]
