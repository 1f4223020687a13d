"""Which packets of several captures are alike: they have the same identity, and form a *group*."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.merging.group_numbers import tally
from rocekit.packets.slim import SlimColumn
from rocekit.wire.sorting import starts

if TYPE_CHECKING:
    from rocekit.packets.merging.outline import Outline, Outlines

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Rows and groups: there are never more than two thousand million, and half the memory counts.
Numbers = NDArray[np.int32]
#: Rows, as an array or in less memory; both are looked up alike.
RowNumbers = Numbers | SlimColumn

#: Where at most one in so many of the packets that both captures have is in both equally often, one of the
#: two has them more often.
_FEW: Final = 8
#: So many packets are enough to learn the clocks and delays from.
_ENOUGH: Final = 16


class Alike:
    """The groups of packets of several captures.

    A *row* is a packet's index into the concatenated captures. Packets of one group and one capture are in
    the order of time.

    Attributes:
        outlines: of the captures.
        begin: the row of each capture's first packet, and the number of all rows.
        groups: how many there are.
        count: by capture and group, how many packets the capture has of it.
        first: by capture and group, the row of the first of them; −1 if there is none.
    """

    def __init__(self, outlines: Outlines) -> None:
        self.outlines: list[Outline] = outlines.every
        self.begin = [0, *np.cumsum([len(outline) for outline in self.outlines]).tolist()]
        self.groups: int = outlines.groups
        self.count: list[NDArray[Any]] = []
        self.first: list[SlimColumn] = []
        for file, outline in enumerate(self.outlines):
            count, first = np.zeros(self.groups, np.int32), np.full(self.groups, -1, np.int32)
            for at, piece in outline.group.pieces():
                tally(np.ascontiguousarray(piece), self.begin[file] + at, count, first)
            self.count.append(_narrow(count))
            if not outline.in_order:
                rows, of = self._rows_of_several(file)
                begins = starts(of)
                first[of[begins]] = rows[begins]
            self.first.append(SlimColumn.of(first, np.int32))

    def group_of(self, rows: Ints | Numbers, file: int) -> Numbers:
        """The groups of rows of a capture."""
        found: Numbers = self.outlines[file].group[rows - self.begin[file]]
        return found

    def rows_of(self, file: int) -> slice:
        """The rows of one capture."""
        return slice(self.begin[file], self.begin[file + 1])

    @cached_property
    def most(self) -> NDArray[Any]:
        """The most packets that one capture has of each group."""
        found = self.count[0]
        for count in self.count[1:]:
            found = np.maximum(found, count)
        return found

    @cached_property
    def shares(self) -> list[bool]:
        """By capture, whether another one has packets of a group of its own: not where one is split up."""
        once, twice = np.zeros((2, self.groups), np.bool_)
        for count in self.count:
            twice |= once & (count > 0)
            once |= count > 0
        return [bool((twice & (count > 0)).any()) for count in self.count]

    @cached_property
    def even(self) -> Mask:
        """Whether all captures that have packets of a group have equally many of them."""
        found = np.ones(self.groups, np.bool_)
        for count in self.count:
            found &= (count == self.most) | (count == 0)
        return found

    @cached_property
    def _several(self) -> list[tuple[Ints, Ints]]:
        """By capture, the rows of groups of which it has several packets, by group; and their groups."""
        return [self._rows_of_several(file) for file in range(len(self.count))]

    def _rows_of_several(self, file: int) -> tuple[Ints, Ints]:
        outline, several = self.outlines[file], self.count[file] > 1
        if not several.any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        rows = np.concatenate([at + np.flatnonzero(several[piece]) for at, piece in outline.group.pieces()])
        if not outline.in_order:
            rows = rows[np.argsort(outline.time_ns[rows], kind="stable")]
        of = outline.group[rows].astype(np.int64)
        order = np.argsort(of, kind="stable")
        return rows[order] + self.begin[file], of[order]

    def packets_of(self, group: int, file: int) -> Ints:
        """The rows of a capture's packets of a group."""
        if self.count[file][group] <= 1:
            first = self.first[file][group : group + 1].astype(np.int64)
            return first[first >= 0]
        rows, groups = self._several[file]
        begin, end = np.searchsorted(groups, (group, group + 1)).tolist()
        return rows[begin:end]

    def place_in_group(self, file: int) -> tuple[Ints, Ints]:
        """The rows of groups of which a capture has several packets, and of each, how many are before it."""
        rows, groups = self._several[file]
        begins = np.searchsorted(groups, groups)
        return rows, np.arange(len(rows)) - begins

    def pairs(self, groups: Mask, first: int, second: int) -> tuple[Numbers, Numbers]:
        """Of groups of which two captures have equally many packets, the k-th of the one and of the other."""
        once = groups & (self.count[first] == 1)
        found = []
        for file in (first, second):
            rows, of = self._several[file]
            several = rows[groups[of]]
            found.append(np.concatenate([self.first[file][once], several.astype(np.int32)]))
        return found[0], found[1]

    def common(self, first: int, second: int, least: int = _ENOUGH) -> tuple[RowNumbers, RowNumbers]:
        """The packets that two captures have in common: rows of the one and of the other.

        Of identities that each has once, if there are enough of them (``least``; 0: in no case); else the
        k-th of all that both have equally often; the first of each where one capture has nearly all packets
        more often, as a mirror of two ports has them, or behind a switch that doubles them.
        """
        a, b = self.count[first], self.count[second]
        both = (a > 0) & (b > 0)
        equal = both & (a == b)
        if np.count_nonzero(equal) * _FEW <= np.count_nonzero(both):
            found = _chosen(self.first[first], both).whole(), _chosen(self.first[second], both).whole()
            order = np.argsort(found[0], kind="stable")
            return found[0][order], found[1][order]
        once = equal & (a == 1)
        if (least and np.count_nonzero(once) >= least) or not (equal & ~once).any():
            slim = _chosen(self.first[first], once), _chosen(self.first[second], once)
            if _rises(slim[0]):
                return slim
            found = slim[0].whole(), slim[1].whole()
        else:
            found = self.pairs(equal, first, second)
        # In the order of the one's packets: what is read by these indices is then near each other.
        if (found[0][1:] > found[0][:-1]).all():
            return found
        order = np.argsort(found[0], kind="stable")
        return found[0][order], found[1][order]


def _chosen(column: SlimColumn, wanted: Mask) -> SlimColumn:
    """Some numbers of a column."""
    if wanted.all():
        return column
    found = column.like(np.empty(0, np.int32))
    for at, piece in column.pieces():
        found.add(piece[wanted[at : at + len(piece)]])
    return found


def _rises(column: SlimColumn) -> bool:
    """Whether each number is greater than the one before."""
    last = -1
    for _, piece in column.pieces():
        if piece[0] <= last or (piece[1:] <= piece[:-1]).any():
            return False
        last = int(piece[-1])
    return True


def _narrow(count: Numbers) -> NDArray[Any]:
    """Counts in as few bytes as they need."""
    most = int(count.max(initial=0))
    kind: Any = np.uint8 if most <= np.iinfo(np.uint8).max else np.uint16
    return count.astype(kind) if most <= np.iinfo(np.uint16).max else count
