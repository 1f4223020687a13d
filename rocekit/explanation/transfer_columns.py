"""Attributes of many transfers as columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocekit.explanation.transfer_numbers import BITS, FIGURES, PLACES, fill_figures, fill_places
from rocekit.wire.sorting import first_of_each

if TYPE_CHECKING:
    from rocekit.track.transfers import Transfer


class TransferColumns:
    """Transfers by column, one value each; they are made when they are first asked for."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self.transfers = transfers

    def __len__(self) -> int:
        return len(self.transfers)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        table = np.empty((len(PLACES), len(self)), np.int64)
        fill_places(list(self.transfers), table)
        return table

    @cached_property
    def _figures(self) -> tuple[NDArray[np.int64], list[str]]:
        table = np.empty((len(FIGURES), len(self)), np.int64)
        numbers: dict[str, int] = {}
        fill_figures(list(self.transfers), table, numbers)
        return table, list(numbers)

    @property
    def words(self) -> list[str]:
        """The words of operations and states: ``numbers("status")`` are places in it."""
        return self._figures[1]

    def numbers(self, name: str) -> NDArray[np.int64]:
        """One of the rows of ``transfer_numbers``."""
        table, names = (self._places, PLACES) if name in PLACES else (self._figures[0], FIGURES)
        row: NDArray[np.int64] = table[names.index(name)]
        return row

    def have(self, bit: str) -> NDArray[np.bool_]:
        """Which transfers have one of ``transfer_numbers.BITS``."""
        found: NDArray[np.bool_] = self.numbers("bits") & 1 << BITS.index(bit) != 0
        return found

    def those(self, bit: str) -> list[tuple[int, Transfer]]:
        """The transfers that have one of ``transfer_numbers.BITS``, and the place of each."""
        return [(at, self.transfers[at]) for at in np.flatnonzero(self.have(bit)).tolist()]

    def are(self, name: str, *words: str) -> NDArray[np.bool_]:
        """Whose ``operation`` or ``status`` is one of these words."""
        wanted = np.array([word in words for word in self.words], np.bool_)
        found: NDArray[np.bool_] = wanted[self.numbers(name)]
        return found

    @cached_property
    def remote_va(self) -> NDArray[np.uint64]:
        """Where they read or write, if their ``key`` is known."""
        found: NDArray[np.uint64] = self.numbers("va_high").view(np.uint64) << np.uint64(32)
        return found | self.numbers("va_low").view(np.uint64)

    @cached_property
    def ways(self) -> NDArray[np.int64]:
        """The requester of each: ``2 × connection + side``."""
        return self.numbers("connection") * 2 + self.numbers("side")

    @cached_property
    def by_way(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first transfer of each requester, and of each transfer the number of its requester."""
        ways, firsts = first_of_each(self.ways)
        return firsts, np.searchsorted(ways, self.ways)
