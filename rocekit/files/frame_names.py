"""Frame references: which frame of which file, in one number, and how it is written."""

from __future__ import annotations

from typing import Final

#: A frame reference has the file's place in its upper bits, the frame's number in these lower ones.
FRAME_BITS: Final = 40
FRAME_MASK: Final = (1 << FRAME_BITS) - 1


def frame_reference(file: int, number: int) -> int:
    """The reference of frame ``number`` of the capture at place ``file``."""
    return file << FRAME_BITS | number


def frame_name(reference: int, *, several: bool = False) -> int | str:
    """A frame as the JSON names it: its number, or ``"i:n"`` with several captures."""
    number = reference & FRAME_MASK
    return f"{reference >> FRAME_BITS}:{number}" if several else number
