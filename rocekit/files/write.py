"""Writes Ethernet frames to a pcap or pcapng file, by the file's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from rocekit.errors import CaptureError
from rocekit.files.frames import LARGEST_FRAME, LINKTYPE_ETHERNET
from rocekit.files.growing import GrowingFile
from rocekit.files.new_file import not_written
from rocekit.files.outputs import is_stdout, name_of
from rocekit.files.pcap import NANOSECONDS_MAGIC
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.standard_output import standard_output


class FrameFile(Protocol):
    """Where frames go."""

    def write(self, frame: bytes, time_ns: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> FrameFile: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def frame_file(path_or_file: str | Path | BinaryIO) -> FrameFile:
    """A file for Ethernet frames: pcapng if its name ends so, else pcap ("-": standard output).

    Args:
        path_or_file: as for :class:`~rocekit.files.pcapng_write.PcapngWriter`; a file open for writing is not
            closed.

    Raises:
        CaptureError: it cannot be written, also from every method.
    """
    return (
        PcapngWriter(path_or_file) if name_of(path_or_file).endswith(".pcapng") else PcapWriter(path_or_file)
    )


class PcapWriter:
    """Writes Ethernet frames to a pcap file, with nanoseconds."""

    def __init__(self, path_or_file: str | Path | BinaryIO) -> None:
        self._name = name_of(path_or_file)
        self._growing: GrowingFile | None = None
        self._file: Any = path_or_file
        if is_stdout(path_or_file):
            self._file = standard_output()
        elif isinstance(path_or_file, str | Path):
            self._growing = GrowingFile(path_or_file)
            self._file = self._growing.file
        self._put(Struct("<IHHiIII").pack(NANOSECONDS_MAGIC, 2, 4, 0, 0, LARGEST_FRAME, LINKTYPE_ETHERNET))

    def write(self, frame: bytes, time_ns: int) -> None:
        """One whole frame, at ``time_ns`` since the epoch."""
        seconds, rest = divmod(time_ns, 1_000_000_000)
        if not 0 <= seconds < 1 << 32:
            raise CaptureError(
                "a pcap file has no times before 1970 or after 2106: write a pcapng file", file=self._name
            )
        self._put(Struct("<IIII").pack(seconds, rest, len(frame), len(frame)) + frame)

    def close(self) -> None:
        if self._growing is not None:
            self._growing.close()
        else:
            with self._named():
                self._file.flush()

    def _put(self, data: bytes) -> None:
        with self._named():
            self._file.write(data)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._growing is not None:
                raise self._growing.failed(error) from None
            raise not_written(error, self._name) from None

    def __enter__(self) -> PcapWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C a reader that does not read is not waited for: whoever ends the command flushes.
        if kind is None or self._growing is not None:
            self.close()
