"""Selects the connections that a rule about flows must look at, from the columns of all flows at once.

Of ten thousand connections nearly all have one traffic class, one packet size and no mark. To look at each of
them one by one would take longer than to read their packets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rocekit.flows.table import REQUEST
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.flows.observer import Observer
    from rocekit.flows.view import FlowView
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]


class Survey:
    """The two flows of each connection: row 0 for what ``a`` sends, row 1 for what ``b`` sends.

    Args:
        observer: None without packets; then no connection is selected.
    """

    def __init__(self, connections: Sequence[Connection], observer: Observer | None) -> None:
        self._connections = connections
        self._table = None
        if observer is None or not len(observer.table):
            return
        self._table = observer.table
        self._observer = observer

    @cached_property
    def _shared(self) -> frozenset[object]:
        """The flows with packets of several connections: QPNs were used again between the same hosts."""
        users = Counter(
            way for c in self._connections if c.packets for way in {c.way_key(side) for side in (0, 1)}
        )
        return frozenset(way for way, count in users.items() if count > 1)

    def is_shared(self, connection: Connection, side: int) -> bool:
        """Whether another connection has packets of the flow that ``side`` of this one sends."""
        return connection.way_key(side) in self._shared

    def flow(self, connection: Connection, side: int) -> FlowView | None:
        """What ``side`` of a connection sends.

        None if nothing was seen, its peer's QPN is unknown, or another connection has packets of this flow:
        then nothing tells whose they are.
        """
        if self._table is None or self.is_shared(connection, side):
            return None
        return self._observer.flow(connection, side)

    @cached_property
    def _flow(self) -> Ints:
        """The flows by side and connection; found where some flow has what a rule looks for."""
        number = self._observer.number
        numbers = [[number(*c.way_key(side)) for c in self._connections] for side in (0, 1)]
        return np.array([[-1 if n is None else n for n in side] for side in numbers], np.int64)

    def _of(self, column: Ints, missing: int) -> Ints:
        """A column of the flow table, by side and connection."""
        values: Ints = np.where(self._flow >= 0, column[self._flow], missing)
        return values

    def _at(self, selected: Any) -> Iterator[Connection]:
        """The connections whose place in ``selected`` is true."""
        for place in np.flatnonzero(selected).tolist():
            yield self._connections[place]

    def several_classes(self) -> list[Connection]:
        """Connections whose requests and responses carry more than one DSCP."""
        if self._table is None:
            return []
        low, high = self._table.classes()
        if int(high.max()) <= int(low.min()):
            return []
        lowest = self._of(low, int(low.max())).min(axis=0)
        return list(self._at(lowest < self._of(high, -1).max(axis=0)))

    def unlike_siblings(self) -> list[Connection]:
        """Connections whose requests have another DSCP or VLAN priority than those of the same two hosts, and
        the connections that they differ from.
        """
        if self._table is None or not self._connections:
            return []
        low, high = self._table.classes([REQUEST])
        tag = self._table.column("shape") >> 8 & 0xFF
        seen = high >= 0
        if not seen.any() or (high[seen].max() <= low.min() and tag[seen].max() <= tag[seen].min()):
            return []
        hosts = self._table.column("src") << 32 | self._table.column("dst")
        found = np.zeros(len(self._connections), np.bool_)
        key = np.where(self._of(high, -1) >= 0, self._of(hosts, -1), -1).ravel()
        group = np.searchsorted(distinct(key), key)
        for lowest, highest in ((low, high), (tag, tag)):
            least, most = np.full(group.max() + 1, 1 << 62), np.full(group.max() + 1, -1)
            np.minimum.at(least, group, self._of(lowest, 0).ravel())
            np.maximum.at(most, group, self._of(highest, 0).ravel())
            differs = (least < most)[group] & (key >= 0)
            found |= differs.reshape(self._flow.shape).any(axis=0)
        return list(self._at(found))

    def several_sizes(self) -> list[Connection]:
        """Connections whose full packets (those that do not end a message) differ in size."""
        if self._table is None:
            return []
        sizes = self._table.sizes()
        if int(sizes.min()) >= -1 and len(distinct(sizes[sizes >= 0])) < 2:
            return []
        size = self._of(sizes, -1)
        both = (size >= 0).all(axis=0)
        varied = (size < -1).any(axis=0)
        return list(self._at(varied | (both & (size[0] != size[1]))))

    def sending(self, name: str, least: int) -> list[Connection]:
        """Connections of which one side has at least ``least`` in column ``name``."""
        if self._table is None:
            return []
        column = self._table.column(name)
        if int(column.max()) < least:
            return []
        return list(self._at((self._of(column, 0) >= least).any(axis=0)))
