"""How a time is spread: what is said of many measurements of one thing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """How a time is spread, in ns."""

    count: int
    min_ns: int
    median_ns: int
    p99_ns: int
    max_ns: int
    mean_ns: int

    @classmethod
    def of(cls, times: Iterable[int]) -> Spread | None:
        """None without any."""
        ordered = sorted(times)
        n = len(ordered)
        if not n:
            return None
        # Nearest rank: a value that was measured, not one between two.
        rank = [ordered[min(n - 1, max(0, -(-n * percent // 100) - 1))] for percent in (50, 99)]
        return cls(n, ordered[0], rank[0], rank[1], ordered[-1], sum(ordered) // n)

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
