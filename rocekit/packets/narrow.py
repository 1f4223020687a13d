"""All packets of a capture, kept while they are read: each column in the narrowest type.

A column in which all packets are alike, as most are, is one number. So a packet takes some 50 bytes, a third
of what ``Packets.concat`` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rocekit.machine.memory import give_back_freed_memory
from rocekit.packets import FIELD_HOMES, HAS, KEPT, PLACE_WORDS, Column, Packets, alike
from rocekit.packets.wrapping import Wrapping
from rocekit.wire import BTH, Field
from rocekit.wire.sorting import distinct

#: Types of columns that are wide only for the tracker.
_NARROWER: Final[dict[str, Any]] = {"src": np.int32, "dst": np.int32, "flow": np.int32, "opcode": np.int16}
#: Columns that follow from others.
_DERIVED: Final[dict[str, Any]] = {"vni": np.int64, "dscp": np.uint8, "ecn": np.uint8}


#: From so many packets on, columns are so large that what is freed of them goes back.
_MANY: Final = 2_000_000
#: Columns whose numbers are mostly far below what their types can hold.
_SHRUNK: Final = frozenset(
    {"frame", "src", "dst", "flow", "payload_length", "dest_qpn", "msn", "dma_length", "rkey"}
)
_UNSIGNED: Final = ((8, np.uint8), (16, np.uint16), (32, np.uint32), (64, np.uint64))
_FIELDS: Final = {
    name: next(kind for bits, kind in _UNSIGNED if homes[0][1].bits <= bits)
    for name, homes in FIELD_HOMES.items()
    if name not in KEPT
}
NARROW_TYPES: Final = {**KEPT, **_NARROWER, **_DERIVED, **_FIELDS}
_BITS: Final = {name: sum(HAS[header.name] for header, _ in homes) for name, homes in FIELD_HOMES.items()}


class Narrow:
    """Keeps the packets of a capture: to be called with every batch (``analyze(watch=…)``).

    Args:
        closely: keep each batch in types that are as narrow as its own numbers allow. (Those of batches that
            are joined, and calculated with, are of their columns.)
    """

    def __init__(self, *, closely: bool = False) -> None:
        self._closely = closely
        self.restart()

    def restart(self) -> None:
        """Forget what was kept: the capture is read again, in another order."""
        self._parts: dict[str, list[Column]] = {name: [] for name in NARROW_TYPES}
        self._count = self._last_frame = 0
        self._counts: list[int] = []
        self._addresses: list[str] = []
        self._wrappings: Sequence[Wrapping] = ()
        self._in_order = True

    def __call__(self, packets: Packets) -> None:
        if not len(packets) or not self._in_order:
            return
        frame = packets.frame
        if frame[0] <= self._last_frame or (packets.file != 0).any() or (frame[1:] <= frame[:-1]).any():
            self.restart()
            self._in_order = False
            return
        self._last_frame = int(frame[-1])
        self.add(packets)

    def add(self, packets: Packets) -> None:
        """Keep the packets of a batch, in whatever order."""
        if not len(packets):
            return
        self._count += len(packets)
        self._counts.append(len(packets))
        self._addresses = packets.addresses
        self._wrappings = max(self._wrappings, packets.wrappings, key=len)
        fields = _Fields(packets)
        for name, kind in NARROW_TYPES.items():
            column = fields.column(name, kind) if name in _FIELDS else packets[name].astype(kind)
            first = column[:1]
            is_one = len(column) == 1 or bool((column == first).all())
            if not is_one and self._closely and name in _SHRUNK:
                column = _shrunk(column)
            self._parts[name].append(np.broadcast_to(first.copy(), len(packets)) if is_one else column)

    def blocks(self) -> list[Packets]:
        """The packets, once, a block a batch."""
        blocks = []
        for number, count in enumerate(self._counts):
            columns = {name: parts[number] for name, parts in self._parts.items()}
            blocks.append(self._made(columns, count))
        self.restart()
        return blocks

    def packets(self) -> Packets | None:
        """The packets, once; None if there are none, or they did not come in the order of one file."""
        if not self._count:
            return None
        columns, is_large = {}, self._count > _MANY
        for name in [*self._parts]:
            columns[name] = _joined(self._parts.pop(name))
            if is_large and not alike(columns[name]):
                give_back_freed_memory()  # a column does not fit where its parts were
        count, self._count = self._count, 0
        return self._made(columns, count)

    def _made(self, columns: dict[str, Column], count: int) -> Packets:
        own = {name: columns.pop(name) for name in KEPT}
        places = np.broadcast_to(np.full(1, -1, np.int64), count)
        words = np.empty((count, 0), np.uint32)
        return Packets(own, words, self._addresses, None, places, columns, self._wrappings)


def _shrunk(column: Column) -> Column:
    """A column in the narrowest type that has its numbers."""
    if column.min() < 0:
        return column
    most = int(column.max())
    return column.astype(next(kind for bits, kind in _UNSIGNED if most < 1 << bits), copy=False)


class _Fields:
    """The fields of a batch's headers, as ``Packets`` has them, but in narrow types.

    Which packets have a header, and where, is looked up once for all of its fields.
    """

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._has = int(np.bitwise_or.reduce(packets.has))
        self._words: dict[int, Column] = {}
        self._places: dict[str, list[tuple[int, Column | slice]]] = {BTH.name: [(0, slice(None))]}

    def column(self, name: str, kind: Any) -> Column:
        """A field; a single 0 if no packet has it."""
        if not self._has & _BITS[name]:
            return np.zeros(1, kind)
        homes = FIELD_HOMES[name]
        if homes[0][0] is BTH:
            return self._cut_out(0, homes[0][1], slice(None)).astype(kind)
        values: Column = np.zeros(len(self._packets), kind)
        for header, field in homes:
            for place, rows in self._places_of(header.name):
                values[rows] = self._cut_out(place, field, rows)
        return values

    def _places_of(self, header: str) -> list[tuple[int, Column | slice]]:
        """Where packets have a header, in words from the BTH, and the rows that have it there."""
        found = self._places.get(header)
        if found is None:
            rows = np.flatnonzero(self._packets.has & HAS[header])
            places = PLACE_WORDS[header][self._packets.opcode[rows]]
            found = self._places[header] = [(p, rows[places == p]) for p in distinct(places).tolist()]
        return found

    def _cut_out(self, place: int, field: Field, rows: Column | slice) -> Column:
        at, bit = divmod(field.offset, 32)
        word = self._word(place + at)[rows]
        if field.bits == 64:
            return word.astype(np.uint64) << np.uint64(32) | self._word(place + at + 1)[rows]
        if field.bits == 32:
            return word
        return word >> (32 - bit - field.bits) & ((1 << field.bits) - 1)

    def _word(self, at: int) -> Column:
        if at not in self._words:
            self._words[at] = np.ascontiguousarray(self._packets.words[:, at])
        return self._words[at]


def _joined(parts: list[Column]) -> Column:
    """The column of several batches."""
    if all(alike(part) and part[0] == parts[0][0] for part in parts):
        return np.broadcast_to(parts[0][:1].copy(), sum(map(len, parts)))
    return np.concatenate(parts)
