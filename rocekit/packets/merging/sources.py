"""Where the packets of captures that are merged come from: kept in blocks, or read once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.errors import CaptureError
from rocekit.files.reader import open_capture
from rocekit.packets import FIELD_TYPES, KEPT, Column, Packets, alike, empty_packets, in_file_order
from rocekit.packets.decode_ahead import decoded
from rocekit.packets.narrow import Narrow

if TYPE_CHECKING:
    from rocekit.packets.decoder import Decoder
    from rocekit.packets.merging.outline import Outline, Outlines
    from rocekit.packets.slim import SlimColumn

Ints = NDArray[np.int64]

_TYPES: Final[dict[str, Any]] = {**KEPT, **FIELD_TYPES}
_NO_MORE: Final = 1 << 62
_NONE: Final[Ints] = np.empty(0, np.int64)


class RowSource:
    """The packets of a capture by row, in blocks that are asked for in turn and let go after their last row.

    Args:
        blocks: narrow packets of one decoder, in order.
    """

    def __init__(self, blocks: Iterable[Packets]) -> None:
        self._more = iter(blocks)
        self._begins: list[int] = []
        self._blocks: list[Packets] = []
        self._end = 0

    def pieces(self, rows: Ints) -> Iterator[tuple[Packets, Ints, Ints]]:
        """A block, places in ``rows``, and the rows of the block that belong there."""
        if not len(rows):
            return
        most = int(rows.max())
        while self._end <= most:
            block = next(self._more)
            self._begins.append(self._end)
            self._blocks.append(block)
            self._end += len(block)
        numbers = np.searchsorted(self._begins, rows, "right") - 1
        for number in range(int(numbers.min()), int(numbers.max()) + 1):
            places = np.flatnonzero(numbers == number)
            if len(places):
                yield self._blocks[number], places, rows[places] - self._begins[number]

    def let_go(self, before: int) -> None:
        """No row before this one is asked for any more."""
        gone = 0
        while gone < len(self._blocks) and self._begins[gone] + len(self._blocks[gone]) <= before:
            gone += 1
        del self._blocks[:gone], self._begins[:gone]


def taken(
    sources: Sequence[RowSource], sizes: Sequence[int], order: SlimColumn, at_once: int
) -> Iterator[Packets]:
    """Some packets of captures in a given order, so many at once, in wide columns; uses up the captures.

    Args:
        sizes: the packets of each capture; order: indices into the packets of all captures, one behind the
            other.
    """
    begins = np.cumsum([0, *sizes])
    turns = range(0, len(order), at_once)
    # By turn and capture, the first row that is asked for from this turn on.
    first = np.full((len(turns) + 1, len(sources)), _NO_MORE, np.int64)
    for turn, begin in enumerate(turns):
        rows = order[begin : begin + at_once]
        for file, (low, high) in enumerate(pairwise(begins)):
            own = rows[(rows >= low) & (rows < high)]
            first[turn, file] = int(own.min()) - low if len(own) else _NO_MORE
    first = np.minimum.accumulate(first[::-1], axis=0)[::-1]
    for turn, begin in enumerate(turns):
        rows = order[begin : begin + at_once]
        pieces = []
        for file, source in enumerate(sources):
            source.let_go(int(first[turn, file]))
            places = np.flatnonzero((rows >= begins[file]) & (rows < begins[file + 1]))
            for block, among, own in source.pieces(rows[places].astype(np.int64) - begins[file]):
                pieces.append((block, places[among], own))
        yield _gathered(pieces, len(rows))


def _as_slice(places: Column) -> Column | slice:
    """Places that follow one another as a slice, which is copied at once."""
    follow = bool((places[1:] == places[:-1] + 1).all())
    return slice(int(places[0]), int(places[-1]) + 1) if follow else places


def _gathered(pieces: Sequence[tuple[Packets, NDArray[np.int64], NDArray[np.int64]]], count: int) -> Packets:
    """Packets of some blocks in wide columns.

    Args:
        pieces: a block, the places of its packets in what is made, and in the block; at least one.
        count: of the packets.
    """
    parts = [(block, _as_slice(places), _as_slice(own)) for block, places, own in pieces]
    addresses = parts[0][0].addresses
    wrappings = max((block.wrappings for block, _, _ in parts), key=len)

    def column_of(name: str) -> Column:
        columns = [block[name] for block, _, _ in parts]
        kind = _TYPES[name]
        if columns and all(alike(column) and column[0] == columns[0][0] for column in columns):
            return np.broadcast_to(columns[0][:1].astype(kind), count)
        values: Column = np.empty(count, kind)
        for column, (_, places, own) in zip(columns, parts, strict=True):
            values[places] = column[own]
        return values

    words = np.empty((count, 0), np.uint32)
    nowhere = np.broadcast_to(np.full(1, -1, np.int64), count)
    columns, fields = ({name: column_of(name) for name in names} for names in (KEPT, FIELD_TYPES))
    return Packets(columns, words, addresses, None, nowhere, fields, wrappings)


def read_again(
    path: str, file: int, outline: Outline, decoder: Decoder, late: Ints = _NONE
) -> Iterator[Packets]:
    """The packets of a capture that was read before, in the order of the file, in narrow blocks.

    Args:
        outline: of the packets that count; the others of the file are left out.
        decoder: the one that decoded them.
        late: the frame numbers of further packets that count.

    Raises:
        CaptureError: the file has other packets now.
    """
    row, left = 0, len(outline) + len(late)
    with open_capture(path, file=file, comments=False) as reader:
        for _, packets, _ in decoded(reader, decoder.again(), large=True):
            if not left:
                return
            if not len(packets):
                continue
            own = outline.frame[row : row + len(packets)]
            own = own[: int(np.searchsorted(own, packets.frame[-1], "right"))]
            places = np.searchsorted(packets.frame, own)
            same = (packets.frame[places] == own).all()
            if not same or (packets.time_ns[places] != outline.time_ns[row : row + len(own)]).any():
                break
            row += len(own)
            if len(late):
                places = np.sort(np.r_[places, np.flatnonzero(np.isin(packets.frame, late))])
            left -= len(places)
            yield from _narrowed(packets if len(places) == len(packets) else packets.where(places))
    if left:
        raise CaptureError("the file changed while it was read: analyze it again, or a copy of it", file=path)


class CaptureRows:
    """All packets of one capture: kept, or to be read again.

    Args:
        path: where they can be read again; None: nowhere.
        file: the capture's place among others; decoder, outlines: those of all of them.
    """

    def __init__(self, path: str | None, file: int, decoder: Decoder, outlines: Outlines) -> None:
        self._path, self._file, self._decoder, self._outlines = path, file, decoder, outlines
        self._blocks: list[Packets] | None = []
        self._late = _NONE

    def add(self, packets: Packets) -> None:
        """Keep packets of the capture, the next ones, if packets are kept."""
        if self._blocks is not None:
            self._blocks += _narrowed(packets)

    def let_go(self) -> None:
        """Keep no packets, if they can be read again."""
        if self._path is not None:
            self._blocks = None

    def keep(self, packets: Packets) -> None:
        """All packets of the capture are these, in this order."""
        self._blocks, self._path = [packets], None

    def whole(self) -> Packets:
        """All packets, which are not kept afterwards."""
        blocks = list(self.blocks())
        self._blocks = []
        return Packets.used_up(blocks) if blocks else empty_packets(self._decoder.addresses, narrow=True)

    def add_late(self, packets: Packets) -> None:
        """Further packets of the capture, which stand among the others by their frames."""
        if self._blocks is None:
            self._late = packets.frame
        else:
            self.keep(in_file_order([self.whole(), *_narrowed(packets)]))

    def blocks(self) -> Iterator[Packets]:
        """All packets in turn."""
        if self._blocks is not None:
            return iter(self._blocks)
        assert self._path is not None
        late, self._late = self._late, _NONE
        outline = self._outlines.every[self._file]
        return read_again(self._path, self._file, outline, self._decoder, late)

    def used_up(self) -> RowSource:
        """All packets, each block let go after its last row."""
        return RowSource(self.blocks() if self._blocks is None else _one_by_one(self._blocks))


def _narrowed(packets: Packets) -> list[Packets]:
    kept = Narrow(closely=True)
    kept.add(packets)
    return kept.blocks()


def _one_by_one(blocks: list[Packets]) -> Iterator[Packets]:
    """The blocks, each of them forgotten when it was given."""
    blocks.reverse()
    while blocks:
        yield blocks.pop()
