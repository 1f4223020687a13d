"""Which packets of several captures are alike: they have the same identity, and form a *group*."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets.merging.group_numbers import GroupNumbers

if TYPE_CHECKING:
    from rocekit.packets.blocks import Captured

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Rows and groups: there are never more than two thousand million, and half the memory counts.
Numbers = NDArray[np.int32]

#: So many packets are enough to learn the clocks and delays from.
_ENOUGH: Final = 16


class Alike:
    """The groups of packets of several captures.

    A *row* is a packet's index into the concatenated captures. Packets of one group and one capture are in
    the order of time.

    Args:
        identity: by row (see ``packets.identity``).
        parts: the captures' packets.

    Attributes:
        begin: the row of each capture's first packet, and the number of all rows.
        group: the group of each row.
        groups: how many there are.
        count: by capture and group, how many packets the capture has of it.
        first: by capture and group, the row of the first of them; −1 if there is none.
    """

    def __init__(self, identity: NDArray[np.uint64], parts: Sequence[Captured]) -> None:
        sizes = [len(part) for part in parts]
        self.begin = [0, *np.cumsum(sizes).tolist()]
        self._parts = parts
        numbers = GroupNumbers(identity, max(sizes, default=0))
        self.group: Numbers = numbers.of
        self.groups: int = numbers.count
        self.count: Numbers = np.zeros((len(parts), self.groups), np.int32)
        self.first: Numbers = np.full((len(parts), self.groups), -1, np.int32)
        for file, (begin, end) in enumerate(pairwise(self.begin)):
            numbers.tally(begin, end, self.count[file], self.first[file])
        for file in range(len(parts)):
            if not self._is_in_order(file):
                rows, place = self.place_in_group(file)
                earliest = rows[place == 0]
                self.first[file, self.group[earliest]] = earliest

    def _is_in_order(self, file: int) -> bool:
        times = self._parts[file].time_ns
        return not bool((times[1:] < times[:-1]).any())

    def rows_of(self, file: int) -> slice:
        """The rows of one capture."""
        return slice(self.begin[file], self.begin[file + 1])

    @cached_property
    def most(self) -> Numbers:
        """The most packets that one capture has of each group."""
        return self.count.max(axis=0, initial=0)

    @cached_property
    def even(self) -> Mask:
        """Whether all captures that have packets of a group have equally many of them."""
        found: Mask = ((self.count == self.most) | (self.count == 0)).all(axis=0)
        return found

    @cached_property
    def _several(self) -> list[tuple[Ints, Ints]]:
        """By capture, the rows of groups of which it has several packets, by group; and their groups."""
        found = []
        for file in range(len(self.count)):
            of = self.group[self.rows_of(file)]
            rows = np.flatnonzero(self.count[file][of] > 1)
            if not self._is_in_order(file):
                rows = rows[np.argsort(self._parts[file].time_ns[rows], kind="stable")]
            rows = rows[np.argsort(of[rows], kind="stable")]
            found.append((rows + self.begin[file], of[rows].astype(np.int64)))
        return found

    def packets_of(self, group: int, file: int) -> Ints:
        """The rows of a capture's packets of a group."""
        if self.count[file, group] <= 1:
            first = self.first[file, group : group + 1].astype(np.int64)
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

    def common(self, first: int, second: int, least: int = _ENOUGH) -> tuple[Numbers, Numbers]:
        """The packets that two captures have in common: rows of the one and of the other.

        Of identities that each has once, if there are enough of them (``least``; 0: in no case); else the
        k-th of all that both have equally often.
        """
        a, b = self.count[first], self.count[second]
        equal = (a == b) & (a > 0)
        once = equal & (a == 1)
        if (least and np.count_nonzero(once) >= least) or not (equal & ~once).any():
            found = self.first[first][once], self.first[second][once]
        else:
            found = self.pairs(equal, first, second)
        # In the order of the one's packets: what is read by these indices is then near each other.
        if (found[0][1:] > found[0][:-1]).all():
            return found
        order = np.argsort(found[0], kind="stable")
        return found[0][order], found[1][order]
