"""The bytes of a gzip or zstd stream, uncompressed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from rocekit.errors import CaptureError
from rocekit.files.source import ByteSource, RawSource
from rocekit.machine.limits import UNPACK_RATIO, how_to_raise, limit

_READ_BYTES = 1 << 16  # compressed bytes read at once
_GZIP_STEP = 1 << 14  # uncompressed bytes made at once, which is what an error in the stream costs

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)


#: Bytes unpacked before their number is compared with that of the packed ones.
_FREE_BYTES = 256 << 20


def unpacked(raw: RawSource, head: bytes) -> ByteSource | None:
    """The source that unpacks what begins with ``head``, which was read already; None: nothing to unpack."""
    if head[:2] == _GZIP:
        return Bounded(GzipSource(raw, head), raw)
    if head[:4] == _ZSTD or int.from_bytes(head[:4], "little") in _ZSTD_SKIPPABLE:
        return Bounded(ZstdSource(raw, head), raw)
    return None


class Bounded:
    """Unpacked bytes, ended where they are far more than what they were packed to."""

    def __init__(self, source: ByteSource, raw: RawSource) -> None:
        self._source, self._raw = source, raw
        self._bytes = 0
        self.problem: str | None = None

    def readinto(self, target: memoryview) -> int | None:
        if self.problem is not None:
            return 0
        got = self._source.readinto(target)
        self.problem = self._source.problem
        self._bytes += got or 0
        most = limit(UNPACK_RATIO)
        if self._bytes > max(_FREE_BYTES, most * self._raw.bytes_read):
            unpacked = f"{self._bytes:,} bytes were unpacked from {self._raw.bytes_read:,}"
            self.problem = f"{unpacked}, more than {most:,} times as many: {how_to_raise(UNPACK_RATIO)}"
        return got


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
        """Start a member, behind zeros that pad the file; anything else ends the stream."""
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
        self._read = memoryview(bytearray(_READ_BYTES))
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


def _fill(some: Callable[[memoryview], int | None], target: memoryview) -> int | None:
    """Fill the target as far as ``some`` can, which gives little at a time."""
    have = 0
    while have < len(target):
        got = some(target[have:])
        if not got:
            return have or got
        have += got
    return have


def _inflater() -> Any:
    """The zlib module, or isal's, which does the same three times as fast."""
    name = "isal.isal_zlib" if importlib.util.find_spec("isal") else "zlib"
    return importlib.import_module(name)
