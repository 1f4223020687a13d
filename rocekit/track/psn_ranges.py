"""A set of PSNs that are mostly in a row: as large as its number of gaps, and not of PSNs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class PsnRanges:
    """A set of unwrapped PSNs, kept as the first and last of each stretch, in order.

    One packet can open a hole of 100,000 PSNs. As a Python set each such hole would take megabytes.
    """

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._count = 0

    def add(self, first: int, last: int) -> None:
        """Add the PSNs from ``first`` to ``last``; nothing where ``last`` is below ``first``."""
        if first > last:
            return
        # The stretches that touch the new one become one with it.
        begin = bisect_left(self._lasts, first - 1)
        end = bisect_right(self._firsts, last + 1)
        for at in range(begin, end):
            self._count -= self._lasts[at] - self._firsts[at] + 1
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end], self._lasts[begin:end] = [first], [last]
        self._count += last - first + 1

    def remove(self, psn: int) -> None:
        """Take one PSN out.

        Raises:
            KeyError: it is not in the set.
        """
        at = bisect_right(self._firsts, psn) - 1
        if at < 0 or psn > self._lasts[at]:
            raise KeyError(psn)
        first, last = self._firsts[at], self._lasts[at]
        left = [(a, b) for a, b in ((first, psn - 1), (psn + 1, last)) if a <= b]
        self._firsts[at : at + 1] = [a for a, _ in left]
        self._lasts[at : at + 1] = [b for _, b in left]
        self._count -= 1

    def keep_below(self, end: int) -> None:
        """Take out the PSNs from ``end`` on."""
        while self._firsts and self._lasts[-1] >= end:
            first, last = self._firsts.pop(), self._lasts.pop()
            self._count -= last - first + 1
            if first < end:
                self.add(first, end - 1)

    def has_two_in_a_row(self, first: int, end: int) -> bool:
        """Whether a PSN from ``first`` to before ``end`` is in the set, and the one behind it too."""
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            begin = max(self._firsts[at], first)
            if begin >= end:
                return False
            if begin < self._lasts[at]:
                return True
        return False

    def __contains__(self, psn: object) -> bool:
        if not isinstance(psn, int):
            return False
        at = bisect_right(self._firsts, psn) - 1
        return at >= 0 and psn <= self._lasts[at]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield from range(first, last + 1)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PsnRanges):
            return (self._firsts, self._lasts) == (other._firsts, other._lasts)
        return isinstance(other, set | frozenset) and set(self) == other

    def __repr__(self) -> str:
        words = [f"{a}" if a == b else f"{a}–{b}" for a, b in zip(self._firsts, self._lasts, strict=True)]
        return f"<PSNs {', '.join(words)}>"
