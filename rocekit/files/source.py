"""The bytes of a capture as they are: from a file, a pipe or standard input."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from rocekit.errors import CaptureError
from rocekit.files.remote import is_remote, open_remote

if TYPE_CHECKING:
    from rocekit.files.pipe_reader import PipeReader
    from rocekit.files.spool import Spool

_POLL_S = 0.05  # how often a file that may still grow is looked at
_TICK_MS = 100  # after so long without bytes from a pipe the caller is told that nothing came
_PIPE_BYTES = (16 << 20, 1 << 20)  # what to have a pipe hold: root may have more than others
_HAND_OVER_AFTER = 4 << 20  # bytes of a pipe after which a process of its own reads it
_GATHER_S = 0.05  # how long to wait for a pipe to bring a larger batch


class ByteSource(Protocol):
    """Where a stream of bytes comes from.

    ``readinto`` fills the memory it is given and returns how many bytes it wrote: 0 at the end, None when
    nothing has come yet and the caller may ask again.
    """

    problem: str | None
    """Why the stream ended too early, in words; None when it did not."""

    def readinto(self, target: memoryview) -> int | None: ...


class RawSource:
    """A file or pipe as it is. ``follow`` keeps waiting at the end of the file until :meth:`stop`."""

    def __init__(self, source: str | Path | BinaryIO, *, follow: bool, spool: Spool | None = None) -> None:
        self._spool = spool
        self.problem: str | None = None
        self.bytes_read = 0
        self.size: int | None = None
        self._stop = threading.Event()
        self._follow = follow
        self._poll: select.poll | None = None
        self._pipe: int | None = None
        self._pipe_reader: PipeReader | None = None
        self._handed_over = False
        self._file: Any
        self._own = True
        if source == "-":
            self.name = "standard input"
            self._file, self._own = _standard_input(), False
        elif isinstance(source, str | Path) and is_remote(source):
            self.name = str(source)
            self._file = open_remote(self.name)
            self.size = self._file.size
        elif isinstance(source, str | Path):
            self.name = str(source)
            try:
                self._file = Path(source).open("rb", buffering=0)  # noqa: SIM115
            except (OSError, ValueError) as error:
                raise CaptureError(_cannot_open(error), file=source) from None
        else:
            self.name = str(getattr(source, "name", "capture"))
            self._file, self._own = source, False
        self._look()

    def _look(self) -> None:
        """Find out whether this is a file of known size or a pipe."""
        try:
            descriptor = self._file.fileno()
            mode = os.fstat(descriptor)
        except (OSError, AttributeError, ValueError):
            return
        if stat.S_ISREG(mode.st_mode):
            if not self._follow:
                self.size = mode.st_size
        elif stat.S_ISFIFO(mode.st_mode) or stat.S_ISSOCK(mode.st_mode) or stat.S_ISCHR(mode.st_mode):
            if not isinstance(self._file, _RAW):
                return  # its own buffer may hold bytes that the descriptor no longer has
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLIN | select.POLLHUP)
            if stat.S_ISFIFO(mode.st_mode):
                _enlarge_pipe(descriptor)
                self._pipe = descriptor

    def readinto(self, target: memoryview) -> int | None:
        got = self._next(target)
        if got and self._spool is not None:
            self._spool.write(target[:got])
        return got

    def _next(self, target: memoryview) -> int | None:
        if self._pipe is not None and self.bytes_read >= _HAND_OVER_AFTER:
            self._hand_over(self._pipe)
        if self._handed_over:
            return self._from_reader(target)
        if self._poll is not None and not self._poll.poll(_TICK_MS):
            return 0 if self._stop.is_set() else None
        got = self._once(target)
        if got == 0 and self._follow and self._poll is None and not self._stop.is_set():
            self._stop.wait(_POLL_S)
            return None
        # A pipe gives at most what it holds: take all that is there now, as every batch has a fixed cost.
        while self._poll is not None and 0 < got < len(target) and self._poll.poll(0):
            more = self._once(target[got:])
            if not more:
                break
            got += more
        return got

    def _hand_over(self, pipe: int) -> None:
        """Have another process read the pipe, as soon as that process runs (see ``pipe_reader``)."""
        try:
            if self._pipe_reader is None:
                from rocekit.files.pipe_reader import PipeReader

                self._pipe_reader = PipeReader(pipe)
            if not self._pipe_reader.takes_over():
                return
            self._handed_over = True
        except OSError:
            pass  # this process goes on reading
        self._pipe = None

    def _from_reader(self, target: memoryview) -> int | None:
        """What the other process has read by now, or reads within a moment."""
        reader = self._pipe_reader
        assert reader is not None
        if not reader.wait(_TICK_MS / 1000):
            return 0 if self._stop.is_set() else None
        got, until = 0, time.monotonic() + _GATHER_S
        try:
            while got < len(target):
                got += reader.readinto(target[got:])
                left = until - time.monotonic()
                if reader.ended or self._stop.is_set() or left <= 0 or not reader.wait(left):
                    break
        except OSError as error:
            raise CaptureError(_cannot_open(error), file=self.name, offset=self.bytes_read or None) from None
        self.bytes_read += got
        return got

    def _once(self, target: memoryview) -> int:
        try:
            if hasattr(self._file, "readinto"):
                got = self._file.readinto(target) or 0
            else:
                data = self._file.read(len(target)) or b""
                got = len(data)
                target[:got] = data
        except OSError as error:
            raise CaptureError(_cannot_open(error), file=self.name, offset=self.bytes_read or None) from None
        self.bytes_read += got
        return got

    def stop(self) -> None:
        """End the stream after what is there now (``follow``); from any thread or a signal handler."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        if self._pipe_reader is not None:
            self._pipe_reader.close()
        if self._own:
            self._file.close()


def read_head(raw: RawSource, least: int, most: int) -> bytes:
    """The first bytes of a stream, at least ``least`` of them unless it is shorter."""
    head = memoryview(bytearray(most))
    have = 0
    while have < least:
        got = raw.readinto(head[have:])
        if got == 0:
            break
        have += got or 0
    return bytes(head[:have])


_RAW = io.FileIO


def _standard_input() -> Any:
    """Standard input without Python's buffer; what a test put in its place stays as it is."""
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except (AttributeError, OSError, ValueError):
        return getattr(sys.stdin, "buffer", sys.stdin)


def _enlarge_pipe(descriptor: int) -> None:
    """Give a pipe more room, where the kernel allows it, so that its writer waits less often."""
    try:
        import fcntl
    except ImportError:
        return
    for size in _PIPE_BYTES:
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)
        except (AttributeError, OSError):
            continue
        return


def _cannot_open(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "this is a directory, not a capture"
    if isinstance(error, PermissionError):
        return "may not be read by this user: change its permissions, or run as its owner"
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"cannot be read: {words}"
