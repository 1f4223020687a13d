"""Writes one capture into files, one after the other, and keeps the newest: a trace of days on a small disk.

Files are named as dumpcap names them, ``x_00001_20261120160858.pcapng``, so that ``rotated:FIRST..LAST`` and
Wireshark's file set read them as one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rocekit.errors import CaptureError
from rocekit.files.frames import LINKTYPE_ETHERNET, FrameBatch
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.files.record_loops import ENHANCED_PACKET_LEAST


@dataclass(frozen=True, slots=True)
class RingLimits:
    """When the next file begins, and how many stay.

    Attributes:
        size_bytes: the most of a file, except that each has a frame; None: no limit.
        period_ns: the time of frames that one file has; None: no limit.
        keep: how many files stay, the one being written included; None: all.
    """

    size_bytes: int | None = None
    period_ns: int | None = None
    keep: int | None = None


class RingWriter:
    """Has what :class:`PcapngWriter` has for batches; the files are in ``files``, oldest first.

    Args:
        path: the name that all have in common, such as ``x.pcapng``.

    Raises:
        CaptureError: a file cannot be written (also from every method).
        ValueError: a limit below one.
    """

    def __init__(
        self,
        path: str | Path,
        limits: RingLimits,
        linktype: int = LINKTYPE_ETHERNET,
        *,
        interface_name: str | None = None,
    ) -> None:
        if any(
            limit is not None and limit < 1 for limit in (limits.size_bytes, limits.period_ns, limits.keep)
        ):
            raise ValueError("limits of files are at least one")
        self._path, self._limits = Path(path), limits
        self._linktype, self._interface_name = linktype, interface_name
        self.files: list[Path] = []
        self.removed = 0
        """Files that were removed because newer ones came."""
        self._number = 0
        self._begun_ns: int | None = None
        self._own_frames = 0
        self._before = 0
        self._writer = self._next()

    @property
    def frames(self) -> int:
        """Frames written so far, those in removed files included."""
        return self._before + self._own_frames

    def _next(self) -> PcapngWriter:
        """The next file; the oldest one goes if there are too many."""
        self._number += 1
        stamp = time.strftime("%Y%m%d%H%M%S")
        suffix = self._path.suffix or ".pcapng"
        name = self._path.with_name(
            f"{self._path.name.removesuffix(self._path.suffix)}_{self._number:05d}_{stamp}{suffix}"
        )
        writer = PcapngWriter(name, self._linktype, interface_name=self._interface_name)
        self.files.append(name)
        while self._limits.keep is not None and len(self.files) > self._limits.keep:
            oldest = self.files.pop(0)
            try:
                oldest.unlink(missing_ok=True)
            except OSError as error:
                raise CaptureError(f"cannot be removed: {error.strerror}", file=oldest) from None
            self.removed += 1
        return writer

    def _rotate(self) -> None:
        self._writer.close()
        self._before += self._own_frames
        self._own_frames, self._begun_ns = 0, None
        self._writer = self._next()

    def write_batch(self, batch: FrameBatch) -> None:
        """Writes every frame of a batch, in order, into as many files as it takes."""
        ends = np.cumsum((batch.caplen + 3 & ~3) + ENHANCED_PACKET_LEAST)
        start, count = 0, len(batch)
        while start < count:
            stop = self._room(batch, ends, start)
            if stop == start:
                self._rotate()
                continue
            rows = slice(start, stop)
            columns = ("offset", "caplen", "wirelen", "time_ns", "number", "linktype")
            self._writer.write_batch(replace(batch, **{name: getattr(batch, name)[rows] for name in columns}))
            self._own_frames += stop - start
            start = stop

    def _room(self, batch: FrameBatch, ends: np.ndarray, start: int) -> int:
        """Up to which frame of the batch this file takes."""
        stop, limits = len(batch), self._limits
        if self._begun_ns is None:
            self._begun_ns = int(batch.time_ns[start])
        if limits.period_ns is not None:
            later = np.flatnonzero(batch.time_ns[start:] >= self._begun_ns + limits.period_ns)
            stop = start + int(later[0]) if len(later) else stop
        if limits.size_bytes is not None:
            written = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, limits.size_bytes - self._writer.size + written, "right"))
            stop = min(stop, max(fits, start))
        return max(stop, start + 1) if not self._own_frames else stop

    def write_statistics(self, received: int, dropped: int) -> None:
        """Writes the kernel's counts of the whole capture into the file that is open."""
        self._writer.write_statistics(received, dropped)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
