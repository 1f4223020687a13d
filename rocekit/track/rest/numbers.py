# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Numbers as few bytes: seven bits of each in a byte, small ones first, below and above 0 alike.

A time is written as its distance from the time before, which is short between neighbours.
"""

from __future__ import annotations

from typing import Final

_ALL: Final = (1 << 64) - 1
_HIGHEST: Final = (1 << 63) - 1
_BITS: Final = 7
_MORE: Final = 1 << _BITS
_LOW: Final = _MORE - 1


class NumberWriter:
    """Numbers of up to 64 bits, one after the other."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._before_ns = 0

    def put(self, value: int) -> None:
        left = value & _ALL
        left = (left << 1 ^ -(left >> 63)) & _ALL
        while left > _LOW:
            self._data.append(left & _LOW | _MORE)
            left >>= _BITS
        self._data.append(left)

    def put_ns(self, time_ns: int) -> None:
        """A time, or 0 where there is none."""
        if time_ns == 0:
            self._data.append(0)
            return
        self._data.append(1)
        apart = (time_ns & _ALL) - (self._before_ns & _ALL) & _ALL
        self.put(apart - _ALL - 1 if apart > _HIGHEST else apart)
        self._before_ns = time_ns

    def written(self) -> bytes:
        return bytes(self._data)


class NumberReader:
    """The numbers of a ``NumberWriter``, in the same order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._before_ns = 0

    def take(self) -> int:
        left = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            bits = byte & _LOW
            left |= bits << shift
            if byte < _MORE:
                break
            shift += _BITS
        left = (left >> 1 ^ -(left & 1)) & _ALL
        return left - _ALL - 1 if left > _HIGHEST else left

    def take_unsigned(self) -> int:
        """A number that was not below 0, though it has 64 bits."""
        return self.take() & _ALL

    def take_ns(self) -> int:
        self._at += 1
        if self._data[self._at - 1] == 0:
            return 0
        time_ns = (self._before_ns & _ALL) + (self.take() & _ALL) & _ALL
        self._before_ns = time_ns - _ALL - 1 if time_ns > _HIGHEST else time_ns
        return self._before_ns
