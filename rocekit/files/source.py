"""The bytes of a capture, wherever they come from: a file, a pipe, standard input, compressed or not.

A *source* fills memory it is given and says how far it got: a count, 0 at the end, or None when nothing has
come yet and the caller should ask again. A :class:`Window` keeps a stretch of the stream in one buffer that
is used again and again: a memory map of a large file costs a page fault for every 4 KiB, a buffer does not.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from rocekit.errors import CaptureError
from rocekit.files.read_ahead import HEADROOM, ReadAhead

if TYPE_CHECKING:
    from rocekit.files.drain import Drain

CHUNK = 8 << 20  # bytes asked for at once: some ten thousand frames, and small enough for a large cache
AHEAD_FROM = 32 << 20  # bytes of a file that is worth a thread of its own
_POLL_S = 0.05  # how often a file that has not ended is looked at again
_TICK_MS = 100  # a pipe that is silent so long is said to be
_PIPE_BYTES = (16 << 20, 1 << 20)  # what to have a pipe hold: root may have more than others
_DRAIN_AFTER = 4 << 20  # a pipe that has brought so much is read on by a process of its own
_GATHER_S = 0.05  # how long a pipe may take to bring a batch worth its cost
_HEAD = 1 << 16
_GZIP_STEP = 1 << 14  # uncompressed bytes made at once, which is what an error in the stream costs

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


class Source(Protocol):
    """Where a stream of bytes comes from."""

    problem: str | None
    """Why the stream ended before its time, in words; None when it ended as it should."""

    def readinto(self, target: memoryview) -> int | None: ...


class RawSource:
    """A file or pipe as it is. ``follow`` keeps waiting at the end of the file until :meth:`stop`."""

    def __init__(self, source: str | Path | BinaryIO, *, follow: bool) -> None:
        self.problem: str | None = None
        self.bytes_read = 0
        self.size: int | None = None
        self._stop = threading.Event()
        self._follow = follow
        self._poll: select.poll | None = None
        self._pipe: int | None = None
        self._drain: Drain | None = None
        self._draining = False
        self._file: Any
        self._own = True
        if source == "-":
            self.name = "standard input"
            self._file, self._own = _standard_input(), False
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
        """Finds out whether this is a file of known size or a pipe."""
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
        if self._pipe is not None and self.bytes_read >= _DRAIN_AFTER:
            self._hand_over(self._pipe)
        if self._draining:
            return self._drained(target)
        if self._poll is not None and not self._poll.poll(_TICK_MS):
            return 0 if self._stop.is_set() else None
        got = self._once(target)
        if got == 0 and self._follow and self._poll is None and not self._stop.is_set():
            self._stop.wait(_POLL_S)
            return None
        # A pipe gives at most what it holds: take all that is there now, for batches worth their cost.
        while self._poll is not None and 0 < got < len(target) and self._poll.poll(0):
            more = self._once(target[got:])
            if not more:
                break
            got += more
        return got

    def _hand_over(self, pipe: int) -> None:
        """Has another process read the pipe, as soon as it is there (see ``_drain``)."""
        try:
            if self._drain is None:
                from rocekit.files.drain import Drain

                self._drain = Drain(pipe)
            if not self._drain.takes_over():
                return
            self._draining = True
        except OSError:
            pass  # then it is read here, as it was until now
        self._pipe = None

    def _drained(self, target: memoryview) -> int | None:
        """What the other process has read: all there is now, or what comes within a moment."""
        drain = self._drain
        assert drain is not None
        if not drain.wait(_TICK_MS / 1000):
            return 0 if self._stop.is_set() else None
        got, until = 0, time.monotonic() + _GATHER_S
        try:
            while got < len(target):
                got += drain.readinto(target[got:])
                left = until - time.monotonic()
                if drain.ended or self._stop.is_set() or left <= 0 or not drain.wait(left):
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
        """Takes what is there now as all there is; for ``follow``, from any thread or a signal handler."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        if self._drain is not None:
            self._drain.close()
        if self._own:
            self._file.close()


class GzipSource:
    """The uncompressed bytes of a gzip stream of one or more members; ``head``: what was read already."""

    def __init__(self, raw: RawSource, head: bytes) -> None:
        zlib = _inflater()
        self.problem: str | None = None
        self._raw = raw
        self._input = head
        self._read = memoryview(bytearray(_GZIP_STEP))
        self._error: type[Exception] = zlib.error
        self._library = zlib
        self._member = self._new()
        self._inside = False
        self._done = False

    def readinto(self, target: memoryview) -> int | None:
        return _fill(self._some, target)

    def _some(self, target: memoryview) -> int | None:
        while not self._done:
            if not self._input:
                got = self._raw.readinto(self._read)
                if got is None:
                    return None
                if got == 0:
                    self._done = True
                    if self._inside:
                        self.problem = "the gzip stream ends before its end: the file was cut short"
                    break
                self._input = bytes(self._read[:got])
            if not self._inside and not self._begin():
                continue
            try:
                data = self._member.decompress(self._input, min(len(target), _GZIP_STEP))
            except self._error as error:
                self._done = True
                self.problem = f"the gzip stream is damaged ({error})"
                break
            self._input = self._member.unconsumed_tail
            if self._member.eof:
                self._input = self._member.unused_data
                self._member, self._inside = self._new(), False
            if data:
                target[: len(data)] = data
                return len(data)
        return 0

    def _new(self) -> Any:
        return self._library.decompressobj(wbits=31)

    def _begin(self) -> bool:
        """Starts a member; zeros that pad the file are passed over, anything else ends the stream."""
        self._input = self._input.lstrip(b"\0")
        if self._input and self._input[0] != _GZIP[0]:
            self.problem = "bytes that are not gzip follow the gzip stream: they were not read"
            self._done = True
        self._inside = bool(self._input) and not self._done
        return self._inside


class ZstdSource:
    """The uncompressed bytes of a zstd stream of one or more frames; ``head``: what was read already."""

    # A block of 4 bytes can unfold to 128 KiB, and the library gives all that its input makes at once: small
    # helpings bound the memory that a hostile stream can ask for.
    _HELPING = 4096

    def __init__(self, raw: RawSource, head: bytes) -> None:
        try:
            import zstandard
        except ImportError:
            raise CaptureError(
                "compressed with zstd: install the Python package zstandard, or unpack it with unzstd",
                file=raw.name,
            ) from None
        self.problem: str | None = None
        self._raw = raw
        self._input = memoryview(head)
        self._read = memoryview(bytearray(_HEAD))
        self._error: type[Exception] = zstandard.ZstdError
        self._library = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._output = memoryview(b"")
        self._done = False

    def readinto(self, target: memoryview) -> int | None:
        return _fill(self._some, target)

    def _some(self, target: memoryview) -> int | None:
        while not self._output and not self._done:
            if not self._input:
                got = self._raw.readinto(self._read)
                if got is None:
                    return None
                if got == 0:
                    self._done = True
                    if self._frame is not None:
                        self.problem = "the zstd stream ends before its end: the file was cut short"
                    break
                self._input = self._read[:got]
            if self._frame is None:
                self._frame = self._library.decompressobj()
            helping, self._input = self._input[: self._HELPING], self._input[self._HELPING :]
            try:
                self._output = memoryview(self._frame.decompress(helping))
            except (self._error, MemoryError) as error:
                self._done = True
                self.problem = f"the zstd stream is damaged ({error})"
                break
            if self._frame.eof:
                rest = self._frame.unused_data
                if rest:
                    self._input = memoryview(bytes(rest) + bytes(self._input))
                self._frame = None
        size = min(len(self._output), len(target))
        target[:size] = self._output[:size]
        self._output = self._output[size:]
        return size


class Window:
    """A stretch of a stream in a buffer: ``array[start:end]`` is what has come and has not been used.

    Args:
        source: where bytes come from.
        head: bytes of the stream that were read already.
        chunk: bytes to ask for at once.
    """

    def __init__(self, source: Source, head: bytes, chunk: int = CHUNK) -> None:
        self._source = source
        self._allocate(max(chunk, len(head)))
        self.array[: len(head)] = np.frombuffer(head, np.uint8)
        self.start = 0
        self.end = len(head)
        self.base = 0
        """Where ``array[0]`` stands in the stream."""
        self.ended = False
        self.waiting = False
        self._chunk = chunk
        self.ahead: ReadAhead | None = None

    def read_ahead(self) -> None:
        """Have a thread read on from now on."""
        self.ahead = ReadAhead(self._source, self._chunk)

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
        """Asks for more bytes, with room for ``need`` from ``start`` on. False when none came.

        Then ``ended`` tells whether the stream has ended or (``waiting``) only nothing has come yet.
        What stands before ``start`` is overwritten.
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
        """Goes on in the buffer that was read ahead; what is held is put in front of it."""
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
    source: str | Path | BinaryIO, *, follow: bool, chunk: int = CHUNK
) -> tuple[RawSource, Window]:
    """Opens a capture's bytes, and unpacks them when they begin as gzip or zstd does."""
    raw = RawSource(source, follow=follow)
    head = _read_head(raw, 4, min(_HEAD, chunk))
    unpack: Source = raw
    if head[:2] == _GZIP:
        unpack, head = GzipSource(raw, head), b""
    elif head[:4] == _ZSTD or int.from_bytes(head[:4], "little") in _ZSTD_SKIPPABLE:
        unpack, head = ZstdSource(raw, head), b""
    window = Window(unpack, head, chunk)
    if raw.size is not None and raw.size >= AHEAD_FROM:
        window.read_ahead()
    return raw, window


def _fill(some: Callable[[memoryview], int | None], target: memoryview) -> int | None:
    """Has ``some`` fill the target as far as it can: it gives little at a time, batches have their cost."""
    have = 0
    while have < len(target):
        got = some(target[have:])
        if not got:
            return have or got
        have += got
    return have


def _inflater() -> Any:
    """The zlib module, or the one with SIMD that does the same three times as fast."""
    name = "isal.isal_zlib" if importlib.util.find_spec("isal") else "zlib"
    return importlib.import_module(name)


def _read_head(raw: RawSource, least: int, most: int) -> bytes:
    """The first bytes, at least ``least`` of them unless the stream is shorter."""
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
    """Standard input without a buffer of Python's; what stands in for it in a test stays as it is."""
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except (AttributeError, OSError, ValueError):
        return getattr(sys.stdin, "buffer", sys.stdin)


def _enlarge_pipe(descriptor: int) -> None:
    """Gives a pipe more room, so that its writer waits less often, where the kernel allows it."""
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
