"""All packets of a capture, kept while they are read: each column in the narrowest type.

A column in which all packets are alike, as most are, is one number. So a packet takes some 50 bytes, a third
of what ``Packets.concat`` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from rocekit.packets import FIELD_HOMES, HAS, KEPT, Column, Packets, alike
from rocekit.packets.wrapping import Wrapping
from rocekit.wire import BTH, Field

#: Types of columns that are wide only for the tracker.
_NARROWER: Final[dict[str, Any]] = {"src": np.int32, "dst": np.int32, "flow": np.int32, "opcode": np.int16}
#: Columns that follow from others.
_DERIVED: Final[dict[str, Any]] = {"vni": np.int64, "dscp": np.uint8, "ecn": np.uint8}


_UNSIGNED: Final = ((8, np.uint8), (16, np.uint16), (32, np.uint32), (64, np.uint64))
_FIELDS: Final = {
    name: next(kind for bits, kind in _UNSIGNED if homes[0][1].bits <= bits)
    for name, homes in FIELD_HOMES.items()
    if name not in KEPT
}
_TYPES: Final = {**KEPT, **_NARROWER, **_DERIVED, **_FIELDS}
_BITS: Final = {name: sum(HAS[header.name] for header, _ in homes) for name, homes in FIELD_HOMES.items()}


class Narrow:
    """Keeps the packets of a capture: to be called with every batch (``analyze(watch=…)``)."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget what was kept: the capture is read again, in another order."""
        self._parts: dict[str, list[Column]] = {name: [] for name in _TYPES}
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
        has = int(np.bitwise_or.reduce(packets.has))
        words = [np.ascontiguousarray(packets.words[:, i]) for i in range(BTH.length // 4)]
        for name, kind in _TYPES.items():
            homes = FIELD_HOMES.get(name, ())
            if homes and name != "opcode" and homes[0][0] is BTH:
                column = _cut_out(words, homes[0][1], kind)
            elif name in _FIELDS and not has & _BITS[name]:
                column = np.zeros(1, kind)
            else:
                column = packets[name].astype(kind)
            first = column[:1]
            is_one = len(column) == 1 or bool((column == first).all())
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
        columns = {name: _joined(self._parts.pop(name)) for name in [*self._parts]}
        count, self._count = self._count, 0
        return self._made(columns, count)

    def _made(self, columns: dict[str, Column], count: int) -> Packets:
        own = {name: columns.pop(name) for name in KEPT}
        places = np.broadcast_to(np.full(1, -1, np.int64), count)
        words = np.empty((count, 0), np.uint32)
        return Packets(own, words, self._addresses, None, places, columns, self._wrappings)


def _cut_out(words: list[Column], field: Field, kind: Any) -> Column:
    """A field of the BTH."""
    at, bit = divmod(field.offset, 32)
    return (words[at] >> (32 - bit - field.bits) & ((1 << field.bits) - 1)).astype(kind)


def _joined(parts: list[Column]) -> Column:
    """The column of several batches."""
    if all(alike(part) and part[0] == parts[0][0] for part in parts):
        return np.broadcast_to(parts[0][:1].copy(), sum(map(len, parts)))
    return np.concatenate(parts)
