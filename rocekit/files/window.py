"""A stretch of a capture's bytes in one buffer, which is used again and again.

A memory map of a large file would cost a page fault for every 4 KiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from rocekit.files.source import ByteSource, RawSource, read_head
from rocekit.files.unpack import unpacked

if TYPE_CHECKING:
    from rocekit.files.read_ahead import ReadAhead
    from rocekit.files.spool import Spool

CHUNK = 8 << 20  # bytes asked for at once: some ten thousand frames, and small enough for a large cache
AHEAD_FROM = 32 << 20  # bytes of a file from which on a thread of its own reads it
_HEAD_BYTES = 1 << 16


class Window:
    """``array[start:end]``: the bytes of a stream that have come and are not used yet.

    Args:
        source: where bytes come from.
        head: bytes of the stream that were read already.
        chunk: bytes to ask for at once.
        ahead: a thread reads what comes after ``head``.
    """

    def __init__(self, source: ByteSource, head: bytes, chunk: int = CHUNK, *, ahead: bool = False) -> None:
        self._source = source
        self._allocate(len(head) if ahead else max(chunk, len(head)))
        self.array[: len(head)] = np.frombuffer(head, np.uint8)
        self.start = 0
        self.end = len(head)
        self.base = 0
        """Where ``array[0]`` stands in the stream."""
        self.ended = False
        self.waiting = False
        self.ahead: ReadAhead | None = None
        if ahead:
            from rocekit.files.read_ahead import ReadAhead  # of large files only

            self.ahead = ReadAhead(source, chunk)

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()

    def _allocate(self, size: int) -> None:
        self.array = np.empty(size, np.uint8)
        self.view = self.array.data

    @property
    def problem(self) -> str | None:
        return self._source.problem

    def more(self, need: int = 0) -> bool:
        """Ask for more bytes, with room for ``need`` from ``start`` on. False when none came.

        Then either ``ended`` or ``waiting`` (nothing has come yet) is true. What stands before ``start`` is
        overwritten.
        """
        if self.ahead is not None and not self.ended:
            return self._next_chunk(self.ahead)
        held = self.end - self.start
        if max(need, held + 1) > len(self.array):
            old = self.array[self.start : self.end]
            self._allocate(max(need, 2 * held))
            self.array[:held] = old
        elif self.start:
            self.array[:held] = self.array[self.start : self.end]
        self.base += self.start
        self.start, self.end = 0, held
        got = None if self.ended else self._source.readinto(self.view[held:])
        self.waiting = got is None and not self.ended
        if not got:
            self.ended = self.ended or got == 0
            return False
        self.end += got
        return True

    def _next_chunk(self, ahead: ReadAhead) -> bool:
        """Go on in the buffer that was read ahead, with the unused bytes copied in front of it."""
        from rocekit.files.read_ahead import HEADROOM

        left = self.array[self.start : self.end].copy()  # its buffer is about to be used again
        array, got = ahead.take()
        place = self.base + self.start
        if not got:
            self.ended = True
            return False
        if len(left) > HEADROOM:
            array = np.concatenate([left, array[HEADROOM : HEADROOM + got]])
            self.start, self.end = 0, len(array)
        else:
            self.start, self.end = HEADROOM - len(left), HEADROOM + got
            array[self.start : HEADROOM] = left
        self.array, self.view = array, array.data
        self.base = place - self.start
        return True


def open_source(
    source: str | Path | BinaryIO, *, follow: bool, chunk: int = CHUNK, spool: Spool | None = None
) -> tuple[RawSource, Window]:
    """Open a capture's bytes, and unpack them when they begin as gzip or zstd does."""
    raw = RawSource(source, follow=follow, spool=spool)
    head = read_head(raw, 4, min(_HEAD_BYTES, chunk))
    unpacking = unpacked(raw, head)
    ahead = raw.size is not None and raw.size >= AHEAD_FROM
    if unpacking is None:
        return raw, Window(raw, head, chunk, ahead=ahead)
    return raw, Window(unpacking, b"", chunk, ahead=ahead)
