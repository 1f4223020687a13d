"""A column of many packets in little memory: blocks of numbers in the fewest bytes, each from its own base.

Times and frame numbers grow from packet to packet, and most other columns hardly change. So a block keeps
what its numbers are above the least of them, or above a line that rises by one a packet; nothing if all are
on that line, or equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import Column, alike
from rocekit.wire.sorting import starts

Ints = NDArray[np.int64]

#: The rows of a block, as a power of two.
_BITS: Final = 14
BLOCK: Final = 1 << _BITS
_WITHIN: Final = BLOCK - 1
#: Rows that are looked up at once.
PIECE: Final = 1 << 16
_STEPS: Final = np.arange(BLOCK, dtype=np.int64)
_STEPS.flags.writeable = False
_KINDS: Final = ((8, np.uint8), (16, np.uint16), (32, np.uint32))
_SIGN: Final = 1 << 63
_TWICE: Final = 1 << 64


class _Block(NamedTuple):
    """``base + step * i + rest[i]`` is number ``i``, modulo 2^64; ``rest`` None: all 0.

    Attributes:
        has_missing: whether a number without ``rest`` is the column's ``missing``.
    """

    base: int
    step: int
    rest: Column | None
    has_missing: bool


class SlimColumn:
    """Numbers of up to 64 bits, added in order; ``column[rows]`` looks up some, as an array does.

    Args:
        kind: the type in which they are given.
        missing: a number far from the others, which stands for none.
    """

    def __init__(self, kind: Any = np.int64, *, missing: int | None = None) -> None:
        self.kind, self._missing = kind, missing
        self._blocks: list[_Block] = []
        self._waiting: list[Column] = []
        self._waits = self._count = 0

    @classmethod
    def of(cls, values: Column, kind: Any = np.int64, *, missing: int | None = None) -> SlimColumn:
        """A column of these numbers."""
        made = cls(kind, missing=missing)
        made.add(values)
        return made

    def like(self, values: Column) -> SlimColumn:
        """A column of the same kind with other numbers."""
        return SlimColumn.of(values, self.kind, missing=self._missing)

    def add(self, values: Column) -> None:
        """Add numbers at the end. They are kept as they are until a block is full: do not change them."""
        self._count += len(values)
        if self._waits + len(values) < BLOCK:
            if len(values):
                own = np.broadcast_to(values[:1].copy(), len(values)) if alike(values) else values.copy()
                self._waiting.append(own)
                self._waits += len(values)
            return
        begin = 0
        if self._waits:
            begin = BLOCK - self._waits
            self._blocks.append(self._packed(np.concatenate([*self._waiting, values[:begin]])))
        whole = begin + (len(values) - begin) // BLOCK * BLOCK
        for at in range(begin, whole, BLOCK):
            self._blocks.append(self._packed(values[at : at + BLOCK]))
        self._waiting = [values[whole:].copy()] if whole < len(values) else []
        self._waits = len(values) - whole

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            begin, end, step = rows.indices(self._count)
            return self._between(begin, end) if step == 1 else self._at(np.arange(begin, end, step))
        if isinstance(rows, int | np.integer):
            return self._at(np.array([rows]))[0]
        found = np.asarray(rows)
        return self._at(np.flatnonzero(found) if found.dtype == np.bool_ else found)

    def whole(self) -> Column:
        """All numbers as an array."""
        return self._between(0, self._count)

    def pieces(self) -> Iterator[tuple[int, Column]]:
        """All numbers in turn: the row of the first, and an array of up to ``PIECE``."""
        for begin in range(0, self._count, PIECE):
            yield begin, self._between(begin, min(begin + PIECE, self._count))

    def bounds(self) -> tuple[int, int] | None:
        """The least and the greatest number; None of an empty column."""
        if not self._count:
            return None
        ends = [(int(values.min()), int(values.max())) for _, values in self.pieces()]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def _between(self, begin: int, end: int) -> Column:
        if end <= begin:
            return np.empty(0, self.kind)
        first, last = begin >> _BITS, end - 1 >> _BITS
        if first == last:
            return self._unpacked(first, begin & _WITHIN, (end - 1 & _WITHIN) + 1)
        values: Column = np.empty(end - begin, self.kind)
        for number in range(first, last + 1):
            start = number << _BITS
            low, high = max(begin, start), min(end, start + BLOCK)
            values[low - begin : high - begin] = self._unpacked(number, low - start, high - start)
        return values

    def _at(self, rows: Column) -> Column:
        if (
            len(rows)
            and rows[-1] - rows[0] == len(rows) - 1
            and (rows[1:] > rows[:-1]).all()
            and rows[0] >= 0
        ):
            return self._between(int(rows[0]), int(rows[-1]) + 1)
        if len(rows) and rows.min() < 0:
            rows = np.where(rows < 0, rows + self._count, rows)
        values: Column = np.empty(len(rows), self.kind)
        for begin in range(0, len(rows), PIECE):
            own = rows[begin : begin + PIECE]
            self._look_up(own, values[begin : begin + PIECE])
        return values

    def _look_up(self, rows: Column, values: Column) -> None:
        numbers = rows >> _BITS
        order: Column | None = None
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            numbers = numbers[order]
        begins = starts(numbers)
        ends = [*begins[1:].tolist(), len(rows)]
        for begin, end in zip(begins.tolist(), ends, strict=True):
            places: Any = slice(begin, end) if order is None else order[begin:end]
            values[places] = self._unpacked(int(numbers[begin]), rows[places] & _WITHIN)

    def _unpacked(self, number: int, rows: Any, end: int | None = None) -> Column:
        """The numbers of a block: at rows of it, or from a row to another."""
        if number == len(self._blocks):
            if len(self._waiting) > 1:
                self._waiting = [np.concatenate(self._waiting)]
            kept = self._waiting[0]
            return (kept[rows] if end is None else kept[rows:end]).astype(self.kind, copy=False)
        base, step, rest, has_missing = self._blocks[number]
        chosen = rows if end is None else slice(rows, end)
        if rest is None:
            if not step:
                return np.full(len(rows) if end is None else end - rows, base, self.kind)
            return (_STEPS[chosen] + base).astype(self.kind, copy=False)
        if not step and not base and rest.dtype == self.kind:
            return rest[chosen]
        values = rest[chosen].astype(np.int64)
        missing = values == 0 if has_missing else None
        values += base
        if step:
            values += _STEPS[chosen]
        if missing is not None and self._missing is not None:
            values[missing] = self._missing
        return values.astype(self.kind, copy=False)

    def _packed(self, values: Column) -> _Block:
        first = int(values[0])
        if alike(values) or bool((values == values[0]).all()):
            return _Block(first, 0, None, has_missing=False)
        own = values.astype(np.int64)
        if self._missing is not None:
            gone = own == self._missing
            if gone.any():
                base = _signed(int(own[~gone].min()) - 1)
                own[gone] = base
                return _Block(base, 0, _narrow(own - base), has_missing=True)
        rises = own - first
        rises -= _STEPS[: len(own)]
        low, high = int(rises.min()), int(rises.max())
        if low == high:  # 0: the first is on the line
            return _Block(first, 1, None, has_missing=False)
        least = int(own.min())
        if high - low < int(own.max()) - least >> 1:
            return _Block(_signed(first + low), 1, _narrow(rises - low), has_missing=False)
        return _Block(least, 0, _narrow(own - least), has_missing=False)


class SlimTimes:
    """Times kept as what they are behind those of another column, looked up as in that one.

    Args:
        base: the other column.
        times: the times; missing: the one that stands for none.
    """

    def __init__(self, base: SlimColumn, times: SlimColumn, missing: int) -> None:
        self._base, self._missing = base, missing
        self._behind = SlimColumn(missing=missing)
        for at, own in times.pieces():
            self._behind.add(np.where(own == missing, missing, own - base[at : at + len(own)]))

    def __len__(self) -> int:
        return len(self._base)

    def __getitem__(self, rows: Any) -> Any:
        behind = self._behind[rows]
        return np.where(behind == self._missing, self._missing, behind + self._base[rows])

    def whole(self) -> Ints:
        """All times as an array."""
        found: Ints = self[:]
        return found


def _narrow(rest: Ints) -> Column:
    """Numbers from 0 on (those beyond 2^63 are negative) in the fewest bytes."""
    found = rest.view(np.uint64)
    most = int(found.max())
    for bits, kind in _KINDS:
        if most < 1 << bits:
            return found.astype(kind)
    return found


def _signed(number: int) -> int:
    """A number modulo 2^64 as one of 64 bits with a sign."""
    return (number + _SIGN) % _TWICE - _SIGN


def looked_up(columns: Sequence[SlimColumn], rows: Column) -> Column:
    """Numbers of columns behind one another, by their rows in all of them."""
    begin = 0
    if len(columns) == 1:
        return columns[0][rows]
    values: Column = np.empty(len(rows), columns[0].kind)
    for column in columns:
        own = (rows >= begin) & (rows < begin + len(column))
        if own.all():
            return column[rows - begin]
        values[own] = column[rows[own] - begin]
        begin += len(column)
    return values
