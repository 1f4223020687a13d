"""Minimum, median, 99th percentile, maximum and mean of many measurements of a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: So few are put in order sooner as a list.
_FEW: Final = 64


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of measured times, in ns."""

    count: int
    min_ns: int
    median_ns: int
    p99_ns: int
    max_ns: int
    mean_ns: int

    @classmethod
    def of(cls, times: Iterable[int]) -> Spread | None:
        """The distribution of some times; None of none."""
        ordered = sorted(times)
        n = len(ordered)
        if not n:
            return None
        # Nearest rank: a value that was measured, not one between two.
        rank = [ordered[min(n - 1, max(0, -(-n * percent // 100) - 1))] for percent in (50, 99)]
        return cls(n, ordered[0], rank[0], rank[1], ordered[-1], sum(ordered) // n)

    @classmethod
    def of_column(cls, times: NDArray[np.int64]) -> Spread | None:
        """The same of an array, which is put in order."""
        n = len(times)
        if n <= _FEW:
            return cls.of(times.tolist())
        times.sort()
        rank = [int(times[min(n - 1, max(0, -(-n * percent // 100) - 1))]) for percent in (50, 99)]
        base = int(times[0])
        if n * (int(times[-1]) - base) >> 62:  # the sum of what they are above it may need more than 64 bits
            return cls.of(times.tolist())
        return cls(n, base, rank[0], rank[1], int(times[-1]), base + int((times - base).sum()) // n)

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
