"""Many protobuf messages of one shape at once: a template, and columns for its numbers.

A varint may have more bytes than its value needs: each byte has seven bits, and whether another one follows.
So all numbers of a column can have the same width, the messages have the same length, and NumPy writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SEVEN: Final = np.uint64(0x7F)


def placeholder(width: int, number: int) -> int:
    """A value whose varint has ``width`` bytes, at least two; another one for each ``number`` below 100."""
    return 1 << (7 * width - 1) | (number + 1)


def varint(value: int) -> bytes:
    """A value as a varint, without padding."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class PaddedMessages:
    """Messages of one shape.

    Args:
        template: a serialized message, with a placeholder for each number that changes.
        places: the bytes that stand for each number in the template, by name; a varint or eight fixed bytes.

    Raises:
        ValueError: a placeholder is not in the template exactly once.
    """

    def __init__(self, template: bytes, places: Mapping[str, bytes]) -> None:
        self._template = np.frombuffer(template, np.uint8)
        self._at: dict[str, slice] = {}
        for name, mark in places.items():
            if template.count(mark) != 1:
                raise ValueError(f"the placeholder of {name} is {template.count(mark)} times in the template")
            start = template.index(mark)
            self._at[name] = slice(start, start + len(mark))

    def fill(self, columns: Mapping[str, NDArray[Any]], fixed: frozenset[str] = frozenset()) -> bytes:
        """The messages, one after the other.

        Args:
            columns: a value of each place for each message, not negative.
            fixed: places of eight bytes, little-endian.

        Raises:
            ValueError: a value has more bits than its place.
        """
        count = len(next(iter(columns.values())))
        rows = np.tile(self._template, (count, 1))
        for name, values in columns.items():
            place, numbers = self._at[name], values.astype(np.uint64)
            width = place.stop - place.start
            if name in fixed:
                rows[:, place] = numbers.astype("<u8").view(np.uint8).reshape(count, 8)
                continue
            if count and width < 10 and int(numbers.max()) >> (7 * width):
                raise ValueError(f"a value of {name} needs more than {width} bytes")
            for k in range(width):
                more = 0x80 if k < width - 1 else 0
                rows[:, place.start + k] = (numbers >> np.uint64(7 * k) & _SEVEN).astype(np.uint8) | more
        return rows.tobytes()
