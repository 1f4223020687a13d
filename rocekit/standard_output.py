"""Standard output as a file that takes all bytes of a write, whatever it is connected with."""

from __future__ import annotations

import io
import os
import select
import sys

TYPE_CHECKING = False  # to import typing takes longer than all of this
if TYPE_CHECKING:
    from typing import Any, BinaryIO


class WholeWrites(io.BufferedIOBase):
    """A descriptor whose every write is complete, also where the system takes only a part of it.

    Python's own file without a buffer (PYTHONUNBUFFERED=1) ends a write where the pipe is full or a signal
    comes, and its buffered one fails where another process made the pipe non-blocking.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self.name = name

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        while len(view):
            try:
                view = view[os.write(self._number, view) :]
            except BlockingIOError:
                select.select([], [self._number], [])
        return size


def standard_output() -> BinaryIO:
    """Standard output for bytes; what text is in its buffer goes before them."""
    sys.stdout.flush()
    buffer: Any = getattr(sys.stdout, "buffer", sys.stdout)
    if isinstance(buffer, io.RawIOBase):
        buffer = WholeWrites(buffer.fileno(), "standard output")
    found: BinaryIO = buffer
    return found


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # pathlib takes 10 ms to import


def write_whole() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` write all that they are given; what was closed is nowhere."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # Else a file that is opened gets the number of standard output, and everybody writes there.
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
        sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        try:
            number = stream.fileno()
            if not isinstance(stream.buffer, io.RawIOBase) and os.get_blocking(number):
                continue
        except (OSError, ValueError):
            continue
        writes: Any = WholeWrites(number, f"<{name}>")
        whole = io.TextIOWrapper(
            writes,
            stream.encoding,
            stream.errors,
            write_through=True,
        )
        setattr(sys, name, whole)
