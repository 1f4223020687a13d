"""Pseudo-random numbers from a seed: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).

Starting PSNs, keys and faults are drawn from it, so that the same seed gives the same run.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128
from typing import Final, TypeVar

T = TypeVar("T")
_MASK: Final = (1 << 64) - 1


class Prng:
    """A stream of numbers; each name gives another stream of the same seed."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, stream: str = "") -> None:
        self._state = seed & _MASK
        for byte in stream.encode():
            self._state = self.bits(64) ^ byte

    def bits(self, n: int) -> int:
        """A number of ``n`` bits, 1 to 64."""
        self._state = (self._state + 0x9E37_79B9_7F4A_7C15) & _MASK
        z = self._state
        z = (z ^ z >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
        z = (z ^ z >> 27) * 0x94D0_49BB_1331_11EB & _MASK
        return (z ^ z >> 31) >> (64 - n)

    def below(self, limit: int) -> int:
        """A number from 0 to limit − 1."""
        return self.bits(64) * limit >> 64

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        return self.bits(53) < probability * (1 << 53)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def bytes(self, n: int) -> bytes:
        return shake_128(self.bits(64).to_bytes(8, "big")).digest(n)
