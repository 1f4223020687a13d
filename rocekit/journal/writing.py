"""Writing a journal to a file, plain or gzip."""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rocekit.errors import JournalError
from rocekit.journal.records import JournalEvent, parse_event
from rocekit.journal.schema import CLOCK, SCHEMA


class JournalWriter:
    """Writes a journal. Threads may share it. Lines are buffered; :meth:`close` writes them out.

    Args:
        file: a path (``.gz`` is compressed; an existing file is replaced) or a text file, which stays open.
        append: write behind what the file has.
        host, pid: written in every line; by default this machine's name and this process.

    Raises:
        JournalError: the file cannot be written.
    """

    def __init__(
        self,
        file: str | Path | IO[str],
        *,
        host: str | None = None,
        pid: int | None = None,
        append: bool = False,
    ) -> None:
        self.host = socket.gethostname() if host is None else host
        self.pid = os.getpid() if pid is None else pid
        self._lock = threading.Lock()
        self._owned = isinstance(file, str | Path)
        self._file: IO[str]
        if isinstance(file, str | Path):
            try:
                # Stays open as long as the writer; close() closes it.
                gz = str(file).endswith(".gz")
                mode = "a" if append else "w"
                opened = gzip.open(file, f"{mode}t") if gz else Path(file).open(mode, encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise self._failed(error, file) from None
            self._name: str | Path = file
            self._file = cast(IO[str], opened)
        else:
            self._name = str(getattr(file, "name", "journal"))
            self._file = file

    @staticmethod
    def _failed(error: OSError, name: str | Path) -> JournalError:
        return JournalError(f"cannot be written: {error.strerror or error}", file=name)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error of the file names it. The lock is taken around this, by a ``with`` of its own: a Ctrl-C in
        a generator would leave it taken, and :meth:`close` would wait for it for ever."""
        try:
            yield
        except OSError as error:
            raise self._failed(error, self._name) from None

    def write(
        self,
        event: str,
        *,
        time_ns: int | None = None,
        pid: int | None = None,
        mono_ns: int | None = None,
        qp: tuple[str, int] | None = None,
        **fields: Any,
    ) -> None:
        """Write one event. A field that is None is left out.

        Args:
            time_ns: when it happened; by default now.
            pid: the process it happened in; by default the writer's.
            mono_ns: the same moment by the monotonic clock.
            qp: (device, QPN).

        Raises:
            ValueError: :data:`~rocekit.journal.schema.SCHEMA` does not have this event, key or value.
        """
        line: dict[str, Any] = {
            "time_ns": time.time_ns() if time_ns is None else time_ns,
            "clock": CLOCK,
            "host": self.host,
            "pid": self.pid if pid is None else pid,
            "event": event,
        }
        if mono_ns is not None:
            line["mono_ns"] = mono_ns
        if qp is not None:
            line["qp"] = {"device": qp[0], "qpn": qp[1]}
        line.update((key, value) for key, value in fields.items() if value is not None)
        parse_event(line)
        schema = SCHEMA[event]
        for key in fields.keys() | ({"qp"} if qp is not None else set()):
            if schema.kind(key) is None:
                raise ValueError(f"{event} has no {key}")
        self._put(line)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write events that are JSON lines already, without line ends."""
        text = "".join(f"{line}\n" for line in lines)
        with self._lock, self._named():
            self._file.write(text)

    def write_event(self, event: JournalEvent) -> None:
        """Write an event unchanged, with its own host and process."""
        self._put(event.to_dict())

    def _put(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"))
        with self._lock, self._named():
            self._file.write(text + "\n")

    def flush(self) -> None:
        with self._lock, self._named():
            self._file.flush()

    def close(self) -> None:
        """Write out what is buffered. A file object that the caller passed stays open."""
        with self._lock, self._named():
            if self._owned:
                self._file.close()
            else:
                self._file.flush()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
