"""Writes a journal into files, one after the other, and keeps the newest: for days on a small disk.

Files are named as ``trace`` names its captures, ``x_00001_20261120160858.journal.jsonl``. Each begins with
what was set up before and is still so (devices, QPs, regions), marked ``restated``: it can be understood when
those before it are gone. Who reads them together leaves out what is restated.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rocekit.errors import JournalError
from rocekit.files.capture_names import JOURNAL_SUFFIX
from rocekit.journal.standing import Standing, is_passed_over
from rocekit.journal.writing import JournalWriter, event_line

_SHARE: Final = 4
"""With a limit of all files, one file has at most this part of it."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """When the next file begins, and how many stay.

    Attributes:
        size_bytes: the most of a file; None: no limit.
        period_ns: the time that one file has; None: no limit.
        keep: how many files stay, the one being written included; None: all.
        keep_bytes: the most that all files that stay have together; None: no limit.
    """

    size_bytes: int | None = None
    period_ns: int | None = None
    keep: int | None = None
    keep_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = (self.size_bytes, self.period_ns, self.keep, self.keep_bytes)
        if any(limit is not None and limit < 1 for limit in limits):
            raise ValueError("limits of files are at least one")

    @property
    def file_bytes(self) -> int | None:
        """The most of one file."""
        if self.keep_bytes is None:
            return self.size_bytes
        share = max(1, self.keep_bytes // _SHARE)
        return share if self.size_bytes is None else min(self.size_bytes, share)


class RotatingJournal:
    """Has what :class:`JournalWriter` has for a recorder; the files that stay are in ``files``.

    Args:
        path: the name that all have in common, such as ``x.journal.jsonl``.

    Attributes:
        at_start: gives what is to be written first into each further file, as lines.
        files: oldest first; removed: how many others there were.

    Raises:
        JournalError: a file cannot be written or removed (also from every method).
    """

    def __init__(self, path: str | Path, limits: FileLimits, *, host: str | None = None) -> None:
        self.host = socket.gethostname() if host is None else host
        self.pid = os.getpid()
        self.at_start: Callable[[], list[str]] = list
        self.files: list[Path] = []
        self.removed = 0
        self._path, self._limits = Path(path), limits
        self._set = f"{self.host}-{self.pid}-{time.time_ns()}"
        self._standing = Standing()
        self._lock = threading.RLock()
        self._sizes: dict[Path, int] = {}
        self._own = 0
        self._size = 0
        self._began_ns = time.monotonic_ns()
        self._writer = self._next()

    def _next(self) -> JournalWriter:
        """The next file; the oldest ones go if there are too many, or they are too large."""
        number = self.removed + len(self.files) + 1
        suffix = JOURNAL_SUFFIX if self._path.name.endswith(JOURNAL_SUFFIX) else self._path.suffix
        stamp = time.strftime("%Y%m%d%H%M%S")
        name = self._path.with_name(f"{self._path.name.removesuffix(suffix)}_{number:05d}_{stamp}{suffix}")
        self._make_room()
        writer = JournalWriter(name, host=self.host, pid=self.pid)
        self.files.append(name)
        self._size = self._own = 0
        self._began_ns = time.monotonic_ns()
        first = event_line(self.host, self.pid, "file_began", {"set": self._set, "number": number})
        lines = [json.dumps(first, separators=(",", ":")), *self._standing.lines()]
        writer.write_lines(lines)
        self._size = sum(len(line) + 1 for line in lines)
        return writer

    def _make_room(self) -> None:
        keep, most, one = self._limits.keep, self._limits.keep_bytes, self._limits.file_bytes
        while self.files and (
            (keep is not None and len(self.files) >= keep)
            or (most is not None and one is not None and sum(self._sizes.values()) + one > most)
        ):
            oldest = self.files.pop(0)
            try:
                oldest.unlink(missing_ok=True)
            except OSError as error:
                raise JournalError(f"cannot be removed: {error.strerror}", file=oldest) from None
            self._sizes.pop(oldest, None)
            self.removed += 1

    def _rotate(self) -> None:
        self._writer.close()
        self._sizes[self.files[-1]] = self._size
        self._writer = self._next()
        self.write_lines(self.at_start())

    def _is_full(self, more: int) -> bool:
        """Whether the next line, of so many bytes, belongs into the next file. Each has one line at least."""
        if not self._own:
            return False
        most, period = self._limits.file_bytes, self._limits.period_ns
        if most is not None and self._size + more > most:
            return True
        return period is not None and time.monotonic_ns() - self._began_ns >= period

    def write(
        self, event: str, *, pid: int | None = None, qp: tuple[str, int] | None = None, **fields: Any
    ) -> None:
        """Write one event; see :meth:`JournalWriter.write`."""
        if qp is not None:
            fields["qp"] = {"device": qp[0], "qpn": qp[1]}
        line = event_line(self.host, self.pid if pid is None else pid, event, fields)
        self.write_lines([json.dumps(line, separators=(",", ":"))])

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write events that are JSON lines already, without line ends."""
        with self._lock:
            out: list[str] = []
            most = self._limits.file_bytes
            for line in lines:
                size = len(line) + 1
                # Whether time is over is looked at once: lines come in batches, many a second.
                if (not out or (most is not None and self._size + size > most)) and self._is_full(size):
                    self._writer.write_lines(out)
                    out = []
                    self._rotate()
                if not is_passed_over(line):
                    self._standing.take(line)
                out.append(line)
                self._size += size
                self._own += 1
            self._writer.write_lines(out)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> RotatingJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
