"""Writes Ethernet frames to a pcap or pcapng file, by the file's name."""

from __future__ import annotations

import sys
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Any, Protocol

from rocekit.files.frames import LARGEST_FRAME, LINKTYPE_ETHERNET
from rocekit.files.outputs import not_written
from rocekit.files.pcap import NANOSECONDS_MAGIC
from rocekit.files.pcapng_write import PcapngWriter


class FrameFile(Protocol):
    """Where frames go."""

    def write(self, frame: bytes, time_ns: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> FrameFile: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def frame_file(path: str | Path) -> FrameFile:
    """A file for Ethernet frames: pcapng if its name ends so, else pcap ("-": standard output).

    Raises:
        CaptureError: it cannot be written, also from every method.
    """
    return PcapngWriter(path) if str(path).endswith(".pcapng") else PcapWriter(path)


class PcapWriter:
    """Writes Ethernet frames to a pcap file, with nanoseconds."""

    def __init__(self, path: str | Path) -> None:
        self._name = "standard output" if str(path) == "-" else str(path)
        try:
            self._own = str(path) != "-"
            self._file: Any = Path(path).open("wb") if self._own else sys.stdout.buffer  # noqa: SIM115
        except OSError as error:
            raise not_written(error, self._name) from None
        self._put(Struct("<IHHiIII").pack(NANOSECONDS_MAGIC, 2, 4, 0, 0, LARGEST_FRAME, LINKTYPE_ETHERNET))

    def write(self, frame: bytes, time_ns: int) -> None:
        """One whole frame, at ``time_ns`` since the epoch."""
        seconds, rest = divmod(time_ns, 1_000_000_000)
        self._put(Struct("<IIII").pack(seconds, rest, len(frame), len(frame)) + frame)

    def close(self) -> None:
        try:
            self._file.flush()
            if self._own:
                self._file.close()
        except OSError as error:
            raise not_written(error, self._name) from None

    def _put(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise not_written(error, self._name) from None

    def __enter__(self) -> PcapWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
