"""The columns that the dissector makes of a batch, and their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frames import USUAL_LINKTYPES
from rocekit.packets import BLOCK_WORDS, FIELD_HOMES, HEADERS_BYTES, PLACE_WORDS
from rocekit.packets.rows import COMPILED

#: What is known of each frame: where its network layer begins, and its EtherType.
FRAME_COLUMNS: Final[Mapping[str, Any]] = {"layer": np.int64, "ethertype": np.int64}
#: What is known of each RoCE packet; see ``locations.Locations`` and ``packets.Packets``.
PACKET_COLUMNS: Final[Mapping[str, Any]] = {
    "index": np.int64,
    "start": np.int64,
    "bth": np.int64,
    "end": np.int64,
    "limit": np.int64,
    "truncated": np.uint8,
    "ip_version": np.uint8,
    "roce_version": np.uint8,
    "tclass": np.uint8,
    "hop_limit": np.uint8,
    "flow_label": np.int32,
    "ip_id": np.uint16,
    "udp_sport": np.uint16,
    "vlan": np.int32,
    "priority": np.uint8,
    "source_high": np.uint64,
    "source_low": np.uint64,
    "destination_high": np.uint64,
    "destination_low": np.uint64,
    "fragment": np.uint8,
    "malformed": np.uint8,
    "checkable": np.uint8,
    "opcode": np.int64,
    "has": np.uint16,
    "payload_length": np.int32,
    "payload_at": np.int64,
    "dest_qpn": np.int64,
    "psn": np.int64,
    "syndrome": np.int64,
    "remote_va": np.uint64,
    "rkey": np.int64,
    "dma_length": np.int64,
}
#: Of each packet that has something around it: its row, and what (see ``walk``).
AROUND: Final[Mapping[str, Any]] = {"wrapped_row": np.int64, "chain": np.uint64, "scope": np.uint64}


def table(values: Any) -> Any:
    """Numbers as a loop reads them fast: compiled, an array; else a list."""
    values = np.ascontiguousarray(values, np.int64)
    return values if COMPILED else values.tolist()


def link_numbers(linktype: NDArray[np.uint16]) -> Any:
    """Link types for the loop: those of links that are not usual with all bits turned."""
    numbers = linktype.astype(np.int64)
    if numbers[0] not in USUAL_LINKTYPES or (numbers != numbers[0]).any():
        numbers = np.where(np.isin(numbers, USUAL_LINKTYPES), numbers, ~numbers)
    return table(numbers)


def word_of(name: str) -> Any:
    """By opcode: the word of the block that a field starts in; −1 for opcodes without the field."""
    words = np.full(len(HEADERS_BYTES), -1, np.int64)
    for header, field in FIELD_HOMES[name]:
        place = PLACE_WORDS[header.name].astype(np.int64)
        words = np.where(place >= 0, place + field.offset // 32, words)
    return table(words)


def new_columns(frames: int) -> dict[str, Any]:
    """Columns for so many frames, and for as many packets; ``words`` has a row a packet, end to end."""
    columns: dict[str, Any] = {}
    for name, kind in {**FRAME_COLUMNS, **PACKET_COLUMNS, **AROUND}.items():
        columns[name] = np.empty(frames, kind) if COMPILED else [0] * frames
    room = frames * BLOCK_WORDS
    columns["words"] = np.zeros(room, np.uint32) if COMPILED else list(bytes(room))
    return columns


def trim(columns: dict[str, Any], frames: int, n: int, wrapped: int) -> None:
    """Make arrays of columns, cut to the frames, packets and wrapped packets there are."""
    for kinds, length in ((FRAME_COLUMNS, frames), (PACKET_COLUMNS, n), (AROUND, wrapped)):
        for name, kind in kinds.items():
            columns[name] = np.asarray(columns[name][:length], kind)
    words = np.asarray(columns["words"][: n * BLOCK_WORDS], np.uint32)
    columns["words"] = words.reshape(n, BLOCK_WORDS)
