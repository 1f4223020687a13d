"""Pairs of hosts in the order of their names, of which most callers want the first few only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.points.grounds import WAY_BITS
from rocekit.wire.sorting import distinct, stable_order, starts

if TYPE_CHECKING:
    from rocekit.points.grounds import HostPairs

Ints = NDArray[np.int64]

#: So many hosts are looked up one by one, before all are: who shows some wants no more.
_FIRST_HOSTS: Final = 16


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
        hosts = distinct(np.concatenate((self.low, self.high)))
        waiting = [names[host] for host in hosts.tolist()]
        heapify(waiting)
        pairs_of: Callable[[int], tuple[list[int], list[int]]] = _FewHosts(self, order).of
        left = _FIRST_HOSTS
        while waiting:
            name = heappop(waiting)
            host = self._numbers[name]
            if not left:
                pairs_of = _ManyHosts(self, order, hosts).of
            left -= 1
            places, partners = pairs_of(host)
            found = {
                (names[partner], place)
                for partner, place in zip(partners, places, strict=True)
                if names[partner] >= name
            }
            for _, place in sorted(found) if len(found) > 1 else found:
                yield place, host


class _FewHosts:
    """The pairs of a host, looked up when they are asked for."""

    def __init__(self, pairs: PairsByName, order: Ints) -> None:
        self._low, self._high = pairs.low, pairs.high
        self._order = order
        self._ordered, self._low_of = pairs.high[order], pairs.low[order]

    def of(self, host: int) -> tuple[list[int], list[int]]:
        """The places of its pairs, and the other host of each."""
        mine = slice(*np.searchsorted(self._low, (host, host + 1)).tolist())
        others = slice(*np.searchsorted(self._ordered, (host, host + 1)).tolist())
        places = [*range(mine.start, mine.stop), *self._order[others].tolist()]
        return places, self._high[mine].tolist() + self._low_of[others].tolist()


class _ManyHosts:
    """The same, looked up for all hosts at once."""

    def __init__(self, pairs: PairsByName, order: Ints, hosts: Ints) -> None:
        ordered = pairs.high[order]
        self._of_low = [np.searchsorted(pairs.low, hosts, side=side).tolist() for side in ("left", "right")]
        self._of_high = [np.searchsorted(ordered, hosts, side=side).tolist() for side in ("left", "right")]
        self._order, self._high, self._low_of = order.tolist(), pairs.high.tolist(), pairs.low[order].tolist()
        self._index_of = dict(zip(hosts.tolist(), range(len(hosts)), strict=True))

    def of(self, host: int) -> tuple[list[int], list[int]]:
        """The places of its pairs, and the other host of each."""
        index = self._index_of[host]
        mine = slice(self._of_low[0][index], self._of_low[1][index])
        others = slice(self._of_high[0][index], self._of_high[1][index])
        return [*range(mine.start, mine.stop), *self._order[others]], self._high[mine] + self._low_of[others]
