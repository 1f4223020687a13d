"""The packets of a capture as the blocks in which they came, and packets of several captures taken from them.

Nothing is put together as a whole: a column is joined where it is asked for, and a block is let go when the
last of its packets was taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import FIELD_TYPES, KEPT, Column, Packets, alike, as_type
from rocekit.packets.narrow import NARROW_TYPES
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.packets.wrapping import Wrapping

_TYPES: Final = {**KEPT, **FIELD_TYPES}


class Blocks:
    """Narrow packets of one capture (see ``narrow``), in blocks; a column is that of all of them.

    Args:
        blocks: at least one, which may be without packets.
    """

    def __init__(self, blocks: Sequence[Packets]) -> None:
        self.blocks = list(blocks)
        self._count = sum(map(len, blocks))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Column:
        return as_type(_joined([block[name] for block in self.blocks]), NARROW_TYPES[name])

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    @cached_property
    def time_ns(self) -> NDArray[np.int64]:
        """The column that is asked for most."""
        return self["time_ns"]

    def packets(self) -> Packets:
        """All packets as one block; uses up the others."""
        return Packets.used_up(self.blocks)

    def let_go(self) -> list[Packets]:
        """The blocks, of which this has none afterwards."""
        self.__dict__.pop("time_ns", None)
        blocks, self.blocks = self.blocks, []
        return blocks


#: The packets of a capture, whole or in blocks.
Captured = Packets | Blocks


def _joined(columns: list[Column]) -> Column:
    filled = [column for column in columns if len(column)] or columns[:1]
    if all(alike(column) and column[0] == filled[0][0] for column in filled):
        return np.broadcast_to(filled[0][:1], sum(map(len, filled)))
    return filled[0] if len(filled) == 1 else np.concatenate(filled)


def taken(captures: Sequence[Blocks], rows: NDArray[Any], at_once: int) -> Iterator[Packets]:
    """Some packets of captures in a given order, so many at once, in wide columns; uses up the captures.

    Args:
        rows: indices into the packets of all captures, one capture behind the other.
    """
    blocks: list[Packets | None] = [block for capture in captures for block in capture.let_go()]
    sizes = [0 if block is None else len(block) for block in blocks]
    model = blocks[int(np.argmax(sizes))]
    assert model is not None
    begins = np.cumsum([0, *sizes])
    of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[rows]
    last = np.full(len(sizes), -1, np.int32)
    last[of] = np.arange(len(of), dtype=np.int32) // at_once  # of several, the last one assigned stays
    for turn, begin in enumerate(range(0, max(len(rows), 1), at_once)):
        for number in np.flatnonzero(last < turn).tolist():
            blocks[number] = None
        here = of[begin : begin + at_once]
        pieces = []
        for number in distinct(here).tolist():
            block = blocks[number]
            assert block is not None
            places = np.flatnonzero(here == number)
            own = rows[begin + places] - begins[number]
            pieces.append((block, _as_slice(places), _as_slice(own)))
        yield _gathered(pieces, len(here), model.addresses, model.wrappings)


def _as_slice(places: Column) -> Column | slice:
    """Places that follow one another as a slice, which is copied at once."""
    follow = bool((places[1:] == places[:-1] + 1).all())
    return slice(int(places[0]), int(places[-1]) + 1) if follow else places


def _gathered(
    pieces: Sequence[tuple[Packets, Column | slice, Column | slice]],
    count: int,
    addresses: list[str],
    wrappings: Sequence[Wrapping],
) -> Packets:
    """Packets of some blocks: a block, the places of its packets in what is made, and in the block."""

    def gathered(name: str) -> Column:
        columns = [block[name] for block, _, _ in pieces]
        kind = _TYPES[name]
        if columns and all(alike(column) and column[0] == columns[0][0] for column in columns):
            return np.broadcast_to(columns[0][:1].astype(kind), count)
        values: Column = np.empty(count, kind)
        for column, (_, places, own) in zip(columns, pieces, strict=True):
            values[places] = column[own]
        return values

    words = np.empty((count, 0), np.uint32)
    nowhere = np.broadcast_to(np.full(1, -1, np.int64), count)
    columns, fields = ({name: gathered(name) for name in names} for names in (KEPT, FIELD_TYPES))
    return Packets(columns, words, addresses, None, nowhere, fields, wrappings)
