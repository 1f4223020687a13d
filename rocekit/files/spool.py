"""Keeps the bytes of a stream, so that it can be read a second time."""

from __future__ import annotations

from typing import BinaryIO, Final

#: A stream that goes on is not kept: it is read once.
MOST_BYTES: Final = 1 << 30
_IN_MEMORY: Final = 16 << 20


class Spool:
    """What was read of a stream, from its first byte on: in memory, and then in an unnamed file.

    Attributes:
        whole: whether it has every byte that was read.
    """

    def __init__(self) -> None:
        import tempfile

        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 closed in close()
        self._bytes = 0
        self.whole = True

    def write(self, data: memoryview) -> None:
        if not self.whole:
            return
        self._bytes += len(data)
        try:
            if self._bytes > MOST_BYTES:
                self.close()
            else:
                self._file.write(data)
        except OSError:  # no room
            self.close()

    def again(self) -> BinaryIO:
        """A file with the stream's bytes, at its start."""
        self._file.seek(0)
        return self._file  # type: ignore[return-value]  # it has what a reader needs

    def close(self) -> None:
        """Keep nothing, neither now nor later."""
        self.whole = False
        self._file.close()
