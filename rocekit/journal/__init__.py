"""The journal: what a program asked of verbs and what verbs told it, beside a capture of the packets.

A journal is JSON Lines, one event a line, in the spirit of qlog. Every line has ``time_ns`` (whole
nanoseconds since the epoch), ``clock``, ``host``, ``pid`` and ``event``; ``journal_schema`` says which
further keys an event must and may have. The reader is forgiving (a bad line is reported and the rest is used,
unknown keys are kept), the writer is not (an unknown event or key is a mistake of the caller).
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from rocekit.errors import JournalError
from rocekit.journal.schema import CLOCK, SCHEMA, check, is_qp

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Event:
    """One journal line.

    Attributes:
        time_ns: nanoseconds since the epoch, by the clock of ``host``.
        event: a name of :data:`SCHEMA`.
        host, pid: which process it happened in.
        qp: (device, QPN), or None where the event has no QP.
        fields: the event's other keys; a key whose value was null is left out.
        mono_ns: the same moment by the host's monotonic clock, None where the writer had none.
        thread: which of the process's threads, counted from 0 in the order in which they came.
    """

    time_ns: int
    event: str
    host: str
    pid: int
    qp: tuple[str, int] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    mono_ns: int | None = None
    thread: int | None = None

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def to_dict(self) -> dict[str, Any]:
        """The event as its journal line has it."""
        line: dict[str, Any] = {
            "time_ns": self.time_ns,
            "clock": CLOCK,
            "host": self.host,
            "pid": self.pid,
            "event": self.event,
        }
        for name in ("mono_ns", "thread"):
            if getattr(self, name) is not None:
                line[name] = getattr(self, name)
        if self.qp is not None:
            line["qp"] = {"device": self.qp[0], "qpn": self.qp[1]}
        return line | dict(self.fields)


@dataclass(frozen=True, slots=True)
class Problem:
    """A line that was not used, and what was expected of it."""

    file: str
    line: int
    expected: str

    def __str__(self) -> str:
        return f"{self.file}: line {self.line}: {self.expected}"


@dataclass(frozen=True, slots=True)
class Journal:
    """The events of one journal or several, in the order of their times, and the lines that were not used."""

    events: list[Event]
    problems: list[Problem] = field(default_factory=list)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def of(self, *events: str) -> list[Event]:
        """The events of the names given."""
        return [event for event in self.events if event.event in events]


def merge(journals: Iterable[Journal]) -> Journal:
    """One journal of several. Equal times keep the order of the journals; clocks are not adjusted."""
    journals = list(journals)
    events = [event for journal in journals for event in journal.events]
    events.sort(key=lambda event: event.time_ns)
    return Journal(events, [problem for journal in journals for problem in journal.problems])


def parse_event(line: object) -> Event:
    """An event out of one line's decoded JSON.

    Raises:
        ValueError: what was expected.
    """
    if not isinstance(line, dict):
        raise ValueError("expected a JSON object")
    name, values = check(line)
    time_ns, host, pid = values.pop("time_ns"), values.pop("host"), values.pop("pid")
    mono_ns, thread, qp = (values.pop(key, None) for key in ("mono_ns", "thread", "qp"))
    place = (qp["device"], qp["qpn"]) if is_qp(qp) else None
    return Event(time_ns, name, host, pid, place, values, mono_ns, thread)


def read_journal(path: str | Path) -> Journal:
    """The journal in a file, plain or gzip, sorted by time (equal times keep the file's order).

    A line that is no event is put among ``problems`` and the rest is used; so is a last line that was cut in
    the middle, as a program that was killed leaves it.

    Raises:
        JournalError: the file cannot be read, or has no usable line.
    """
    events: list[Event] = []
    problems: list[Problem] = []
    number = 0
    try:
        for number, raw in enumerate(_lines(Path(path)), start=1):
            if not raw.strip():
                continue
            try:
                events.append(parse_event(_load(raw)))
            except ValueError as error:
                problems.append(Problem(str(path), number, str(error)))
    except (EOFError, gzip.BadGzipFile) as error:
        problems.append(Problem(str(path), number + 1, f"gzip data cut off or damaged ({error})"))
    except OSError as error:
        raise JournalError(f"cannot be read: {error.strerror or error}", file=path) from None
    if not events:
        if problems:
            first = problems[0]
            raise JournalError(f"no usable line; {first.expected}", file=path, line=first.line)
        raise JournalError("no events; expected JSON Lines, one event a line", file=path)
    events.sort(key=lambda event: event.time_ns)
    return Journal(events, problems)


def _load(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        cut = not raw.endswith(b"\n")
        what = "the last line is cut off" if cut else "not JSON"
        raise ValueError(f"{what}: expected one JSON object a line") from None


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as plain:
        # Not peek(): a pipe may give one byte at first.
        magic = plain.read(len(_GZIP_MAGIC))
        if magic == _GZIP_MAGIC and plain.seekable():
            plain.seek(0)
            with gzip.open(plain) as unpacked:
                yield from cast(IO[bytes], unpacked)
        elif magic:
            first = magic if magic.endswith(b"\n") else magic + plain.readline()
            yield from first.splitlines(keepends=True)
            yield from plain


class JournalWriter:
    """Writes a journal. Threads may share one; lines are buffered, and written out by :meth:`close`.

    Args:
        file: a path (``.gz`` is compressed; an existing file is replaced) or a text file, which stays open.
        host, pid: what the lines say; this machine's name and this process when not given.

    Raises:
        JournalError: the file cannot be written.
    """

    def __init__(
        self, file: str | Path | IO[str], *, host: str | None = None, pid: int | None = None
    ) -> None:
        self.host = socket.gethostname() if host is None else host
        self.pid = os.getpid() if pid is None else pid
        self._lock = threading.Lock()
        self._owned = isinstance(file, str | Path)
        self._file: IO[str]
        if isinstance(file, str | Path):
            try:
                # Kept open over the writer's life; close() closes it.
                gz = str(file).endswith(".gz")
                opened = gzip.open(file, "wt") if gz else Path(file).open("w", encoding="utf-8")  # noqa: SIM115
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
    def _writing(self) -> Iterator[IO[str]]:
        """The file, for one thread at a time, and what goes wrong with it by its name."""
        with self._lock:
            try:
                yield self._file
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
            time_ns: when it happened; now when not given.
            pid: the process it happened in, where that is not the writer's.
            mono_ns: the same moment by the monotonic clock.
            qp: (device, QPN).

        Raises:
            ValueError: an event, key or value that :data:`SCHEMA` has not.
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
        """Write lines that are events already, without their line ends."""
        text = "".join(f"{line}\n" for line in lines)
        with self._writing() as file:
            file.write(text)

    def write_event(self, event: Event) -> None:
        """Write an event as it stands, with the host and process that it has."""
        self._put(event.to_dict())

    def _put(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"))
        with self._writing() as file:
            file.write(text + "\n")

    def flush(self) -> None:
        with self._writing() as file:
            file.flush()

    def close(self) -> None:
        """Write out what is buffered; a file that was given stays open."""
        with self._writing() as file:
            if self._owned:
                file.close()
            else:
                file.flush()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
