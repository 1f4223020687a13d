"""Attributes of many transfers as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.wire.sorting import first_of_each

if TYPE_CHECKING:
    from rocekit.track.transfers import Transfer

#: Numbers that are gathered together: one look at each transfer for all of them.
_TOGETHER: Final = (
    ("id", "connection.id", "side", "first_psn", "last_psn", "first_frame", "last_frame"),
    (
        *("first_ns", "last_ns", "bytes", "packets", "retransmitted_packets", "naks", "rnr_naks"),
        *("timeouts", "duplicates"),
    ),
)


class TransferColumns:
    """Transfers by column, one value each; a column is made when it is first asked for."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self.transfers = transfers
        self._numbers: dict[str, NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return len(self.transfers)

    def numbers(self, name: str) -> NDArray[np.int64]:
        """An attribute that is always a number."""
        if name not in self._numbers:
            wanted = next((group for group in _TOGETHER if name in group), (name,))
            values: Iterable[Any] = map(attrgetter(*wanted), self.transfers)
            if len(wanted) > 1:
                values = chain.from_iterable(values)
            table = np.fromiter(values, np.int64, len(self) * len(wanted)).reshape(len(self), len(wanted))
            self._numbers.update(zip(wanted, table.T, strict=True))
        return self._numbers[name]

    def values(self, name: str) -> list[Any]:
        """An attribute of any kind."""
        return list(map(attrgetter(name), self.transfers))

    @cached_property
    def ways(self) -> NDArray[np.int64]:
        """The requester of each: ``2 × connection + side``."""
        return self.numbers("connection.id") * 2 + self.numbers("side")

    @cached_property
    def by_way(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first transfer of each requester, and of each transfer the number of its requester."""
        ways, firsts = first_of_each(self.ways)
        return firsts, np.searchsorted(ways, self.ways)
