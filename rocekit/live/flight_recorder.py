"""A flight recorder: always on, it writes only when a finding happens, and then the time around it.

The latest frames are kept in memory. When packets show trouble, they are analyzed as a file of them would be;
if one of the wanted findings is among the results, what came before it is written, and what comes after it.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Final

from rocekit.analysis import analyze
from rocekit.errors import CaptureError
from rocekit.files.frame_names import FRAME_MASK
from rocekit.files.frames import LINKTYPE_ETHERNET, FrameBatch
from rocekit.files.outputs import complete, writing
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.findings.rules import RULES

#: Any finding of severity error or warning.
ANY: Final = "any"
#: The most bytes that are kept; older frames go first, also if they are of the time that is wanted.
MOST_BYTES: Final = 256 << 20
#: Of the time, at most one part in so many goes into looking.
_SHARE: Final = 5
_EVERY_S: Final = 1.0


class FlightRecorder:
    """Takes batches as :class:`rocekit.files.pcapng_write.PcapngWriter` does.

    Args:
        path: the name that its files have in common: ``x.pcapng`` gives ``x_00001_20261120160858.pcapng``.
        wanted: names of rules, or ``ANY``.
        around_ns: how long at least before and after a finding frames are kept.

    Attributes:
        files: what was written.

    Raises:
        ValueError: there is no rule of a name.
    """

    def __init__(
        self,
        path: str | Path,
        wanted: Collection[str],
        around_ns: int,
        linktype: int = LINKTYPE_ETHERNET,
        *,
        interface_name: str | None = None,
    ) -> None:
        unknown = sorted(set(wanted) - {ANY} - set(RULES))
        if unknown:
            raise ValueError(f"no finding {', '.join(unknown)}: `rocekit rules` lists them")
        self._path, self._wanted, self._around_ns = Path(path), frozenset(wanted), around_ns
        self._linktype, self._interface_name = linktype, interface_name
        self._kept: deque[FrameBatch] = deque()
        self._bytes = 0
        self._changed = False
        self._looked_s = time.monotonic()
        self._pause_s = _EVERY_S
        #: Frames up to here are in a file; findings of them are not new.
        self._written_ns = -1
        self._until_ns: int | None = None
        self.files: list[Path] = []
        self.frames = 0

    def write_batch(self, batch: FrameBatch) -> None:
        """Keeps the frames; looks for findings now and then, and writes when it is time."""
        if self._until_ns is not None and int(batch.time_ns.min()) > self._until_ns:
            self._write()
        own = batch.copied()
        self._kept.append(own)
        self._bytes += len(own.buffer)
        self._changed = True
        newest = int(own.time_ns.max())
        # Before a file is due nothing of its time may go.
        keep_from = newest - 2 * self._around_ns if self._until_ns is None else 0
        while len(self._kept) > 1 and (
            self._bytes > MOST_BYTES or int(self._kept[0].time_ns.max()) < keep_from
        ):
            self._bytes -= len(self._kept.popleft().buffer)
        if self._until_ns is not None and newest >= self._until_ns:
            self._write()
        self._look()

    def flush(self) -> None:
        """Nothing came for a moment: looks, and writes what is due by the clock."""
        if self._until_ns is not None and time.time_ns() >= self._until_ns:
            self._write()
        self._look()

    def write_statistics(self, received: int, dropped: int) -> None:
        """The kernel's counts are of the whole trace, and in no file."""

    def close(self) -> None:
        """Looks once more, and writes what was not written yet."""
        self._look(last=True)
        if self._until_ns is not None:
            self._write()

    def _look(self, *, last: bool = False) -> None:
        """Whether what is kept has a wanted finding that is in no file yet."""
        now = time.monotonic()
        if (
            not self._changed
            or self._until_ns is not None
            or (now - self._looked_s < self._pause_s and not last)
        ):
            return
        self._changed = False
        if self._new_finding():
            self._until_ns = int(self._kept[-1].time_ns.max()) + self._around_ns
        self._looked_s = time.monotonic()
        self._pause_s = max(_EVERY_S, _SHARE * (self._looked_s - now))

    def _new_finding(self) -> bool:
        with tempfile.TemporaryDirectory(prefix="rocekit-") as folder:
            path = Path(folder) / "kept.pcapng"
            times = self._save(path)
            try:
                findings = analyze(path, journals=(), split=False).findings
            except CaptureError:
                return False
        for finding in findings:
            if finding.rule not in self._wanted and (ANY not in self._wanted or finding.severity == "info"):
                continue
            at = [times[(frame & FRAME_MASK) - 1] for frame in finding.frames]
            if not at or max(at) > self._written_ns:
                return True
        return False

    def _save(self, path: Path | BinaryIO) -> list[int]:
        """Write what is kept; returns the times of its frames."""
        with PcapngWriter(path, self._linktype, interface_name=self._interface_name) as writer:
            for batch in self._kept:
                writer.write_batch(batch)
        return [t for batch in self._kept for t in batch.time_ns.tolist()]

    def _write(self) -> None:
        """A file of what is kept."""
        suffix = self._path.suffix or ".pcapng"
        stem = self._path.name.removesuffix(self._path.suffix)
        name = f"{stem}_{len(self.files) + 1:05d}_{time.strftime('%Y%m%d%H%M%S')}{suffix}"
        out = self._path.with_name(name)
        with writing(out), complete(out) as part:
            times = self._save(part)
        self.files.append(out)
        self.frames += len(times)
        self._written_ns, self._until_ns = max(times), None
