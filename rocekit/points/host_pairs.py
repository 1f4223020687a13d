"""Pairs of hosts in the order of their names, of which most callers want the first few only."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.points.grounds import WAY_BITS
from rocekit.wire.sorting import distinct, stable_order, starts

if TYPE_CHECKING:
    from rocekit.points.grounds import HostPairs

Ints = NDArray[np.int64]


class Hosts(NamedTuple):
    """Two hosts, and what their packets say.

    Attributes:
        hops: the routers that the packets of each have passed; −1 where that is unknown.
        marks: whether all of them are marked as sent by the capturing host.
    """

    names: tuple[str, str]
    hops: tuple[int, int]
    marks: tuple[int, int]


class Between:
    """What the packets between some pairs of hosts say, read for all at once."""

    def __init__(self, table: HostPairs, a: Ints, b: Ints) -> None:
        self._names = table.names
        self._numbers = a, b
        self._found: list[tuple[int, ...]] = []
        self._table = table

    def of(self, place: int, *, flipped: bool = False) -> Hosts:
        """The pair at a place, the other host first if it is ``flipped``."""
        a, b = self._numbers
        if not self._found:
            columns = a.tolist(), b.tolist(), *self._table.ways(a, b), *self._table.ways(b, a)
            self._found = list(zip(*columns, strict=True))
        here, there, hops, mark, hops_back, mark_back = self._found[place]
        names = self._names[here], self._names[there]
        if flipped:
            return Hosts(names[::-1], (hops_back, hops), (mark_back, mark))
        return Hosts(names, (hops, hops_back), (mark, mark_back))


class PairsByName:
    """The different pairs among the ends of connections.

    Attributes:
        low, high: the numbers of each pair's hosts.
    """

    def __init__(self, a: Ints, b: Ints, table: HostPairs) -> None:
        self._names, self._numbers = table.names, table.numbers
        keys = np.minimum(a, b) << WAY_BITS | np.maximum(a, b)
        self._order = stable_order(keys)
        ordered = keys[self._order]
        self._begins = starts(ordered)
        self._ends = np.append(self._begins[1:], len(ordered))
        pairs = ordered[self._begins]
        self.low, self.high = pairs >> WAY_BITS, pairs & (1 << WAY_BITS) - 1

    def rows(self, place: int) -> Ints:
        """The connections of a pair, in order."""
        return self._order[self._begins[place] : self._ends[place]]

    def sums(self, values: Ints) -> list[int]:
        """By pair, the sum over its connections."""
        found: list[int] = np.add.reduceat(values[self._order], self._begins).tolist() if len(values) else []
        return found

    def in_order(self) -> Iterator[tuple[int, int]]:
        """The places of the pairs, by their two names in order; with the number of the first one."""
        names = self._names
        order = np.argsort(self.high, kind="stable")
        ordered = self.high[order]
        hosts = distinct(np.concatenate((self.low, self.high)))
        of_low = [np.searchsorted(self.low, hosts, side=side).tolist() for side in ("left", "right")]
        of_high = [np.searchsorted(ordered, hosts, side=side).tolist() for side in ("left", "right")]
        by_high, high, low = order.tolist(), self.high.tolist(), self.low[order].tolist()
        index_of = dict(zip(hosts.tolist(), range(len(hosts)), strict=True))
        waiting = [names[host] for host in index_of]
        heapify(waiting)
        while waiting:
            name = heappop(waiting)
            host = self._numbers[name]
            index = index_of[host]
            mine = slice(of_low[0][index], of_low[1][index])
            others = slice(of_high[0][index], of_high[1][index])
            places = [*range(mine.start, mine.stop), *by_high[others]]
            partners = high[mine] + low[others]
            found = {
                (names[partner], place)
                for partner, place in zip(partners, places, strict=True)
                if names[partner] >= name
            }
            for _, place in sorted(found) if len(found) > 1 else found:
                yield place, host
