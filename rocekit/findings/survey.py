"""Which connections a rule about flows has to look at: all of them at once, from columns.

Of ten thousand connections nearly all are of one class and one packet size, and nothing marked them. To put
together what each of them looks like only to see that takes longer than to read their packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.flows.observer import Observer
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]


class Survey:
    """The flows of connections side by side: row 0 has what their ``a`` sends, row 1 what their ``b`` does.

    Args:
        observer: None where nothing was observed; then no connection stands out.
    """

    def __init__(self, connections: Sequence[Connection], observer: Observer | None) -> None:
        self._connections = connections
        self._table = None
        if observer is None or not len(observer.table):
            return
        self._table = observer.table
        numbers = [
            [observer.number(c.ips[s], c.ips[1 - s], c.qpns[1 - s]) for c in connections] for s in (0, 1)
        ]
        self._flow = np.array([[-1 if n is None else n for n in side] for side in numbers], np.int64)

    def _of(self, column: Ints, missing: int) -> Ints:
        """A column of flows, put to the connections' two sides."""
        values: Ints = np.where(self._flow >= 0, column[self._flow], missing)
        return values

    def _at(self, stand_out: Any) -> Iterator[Connection]:
        for place in np.flatnonzero(stand_out).tolist():
            yield self._connections[place]

    def several_classes(self) -> list[Connection]:
        """Connections whose requests and responses carry more than one DSCP."""
        if self._table is None:
            return []
        low, high = self._table.classes()
        lowest = self._of(low, int(low.max())).min(axis=0)
        return list(self._at(lowest < self._of(high, -1).max(axis=0)))

    def several_sizes(self) -> list[Connection]:
        """Connections whose packets that do not end their message are not all of one size."""
        if self._table is None:
            return []
        size = self._of(self._table.sizes(), -1)
        both = (size >= 0).all(axis=0)
        varied = (size < -1).any(axis=0)
        return list(self._at(varied | (both & (size[0] != size[1]))))

    def sending(self, name: str, least: int) -> list[Connection]:
        """Connections of which one side's column ``name`` reaches ``least``."""
        if self._table is None:
            return []
        return list(self._at((self._of(self._table.column(name), 0) >= least).any(axis=0)))
