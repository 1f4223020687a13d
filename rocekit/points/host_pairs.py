"""Pairs of hosts in the order of their names, of which most callers want the first few only."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.points.grounds import WAY_BITS
from rocekit.wire.sorting import distinct, stable_order, starts

if TYPE_CHECKING:
    from rocekit.points.grounds import HostPairs

Ints = NDArray[np.int64]

#: So many hosts are looked up one by one, before all are sorted: who shows some wants no more.
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
        pairs = ordered[self._begins]
        self.low, self.high = pairs >> WAY_BITS, pairs & (1 << WAY_BITS) - 1
        self._sizes = np.diff(self._begins, append=len(ordered))
        self._rows: list[int] = []  # of all pairs, once all of them are asked for, and where each begins
        self._bounds: list[int] = []

    def rows(self, place: int) -> list[int]:
        """The connections of a pair, in order."""
        if self._rows:
            return self._rows[self._bounds[place] : self._bounds[place + 1]]
        rows: list[int] = self._order[self._begins[place] :][: self._sizes[place]].tolist()
        return rows

    def sums(self, values: Ints) -> list[int]:
        """By pair, the sum over its connections."""
        found: list[int] = np.add.reduceat(values[self._order], self._begins).tolist() if len(values) else []
        return found

    def in_order(self) -> Iterator[tuple[int, int]]:
        """The places of the pairs, by their two names in order; with the number of the first one."""
        names = self._names
        hosts = distinct(np.concatenate((self.low, self.high)))
        waiting = [names[host] for host in hosts.tolist()]
        heapify(waiting)
        pairs_of = _HostsPairs(self)
        for _ in range(min(_FIRST_HOSTS, len(waiting))):
            name = heappop(waiting)
            host = self._numbers[name]
            found = [(names[partner], place) for partner, place in pairs_of.of(host)]
            for _, place in sorted(pair for pair in found if pair[0] >= name):
                yield place, host
        if waiting:
            yield from self._of_all(waiting, hosts)

    def _of_all(self, waiting: list[str], hosts: Ints) -> Iterator[tuple[int, int]]:
        """The pairs whose both hosts are still ``waiting``."""
        self._rows, self._bounds = self._order.tolist(), [*self._begins.tolist(), len(self._order)]
        waiting.sort()
        numbers = self._numbers
        rank = np.full(int(hosts[-1]) + 1, -1)
        rank[[numbers[name] for name in waiting]] = np.arange(len(waiting))
        low, high = rank[self.low], rank[self.high]
        left = np.flatnonzero((low >= 0) & (high >= 0))
        low, high = low[left], high[left]
        order = np.lexsort((np.maximum(low, high), np.minimum(low, high)))
        places = left[order]
        first = np.where(low <= high, self.low[left], self.high[left])[order]
        yield from zip(places.tolist(), first.tolist(), strict=True)


class _HostsPairs:
    """The pairs of one host, looked up when they are asked for."""

    def __init__(self, pairs: PairsByName) -> None:
        self._low, self._high = pairs.low, pairs.high
        self._order = np.argsort(pairs.high, kind="stable")
        self._ordered, self._low_of = self._high[self._order], self._low[self._order]

    def of(self, host: int) -> list[tuple[int, int]]:
        """The other host and the place of each; the pair of a host with itself once."""
        mine = slice(*np.searchsorted(self._low, (host, host + 1)).tolist())
        others = slice(*np.searchsorted(self._ordered, (host, host + 1)).tolist())
        partners = self._high[mine].tolist() + self._low_of[others].tolist()
        places = [*range(mine.start, mine.stop), *self._order[others].tolist()]
        return list(dict.fromkeys(zip(partners, places, strict=True)))
