"""Writing a journal to a file, plain or gzip."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from _thread import allocate_lock
from contextlib import contextmanager

from rocekit.errors import CaptureError, JournalError
from rocekit.files.growing import GrowingFile
from rocekit.journal.schema import CLOCK, COMMON, SCHEMA, check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import IO, Any

    from rocekit.files.new_file import NewFile
    from rocekit.files.outputs import Together
    from rocekit.journal.records import JournalEvent


def event_line(host: str, pid: int, event: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The line of an event, now unless ``fields`` has a ``time_ns``. A field that is None is left out.

    Raises:
        ValueError: :data:`~rocekit.journal.schema.SCHEMA` does not have this event, key or value.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    now = given.pop("time_ns", None)
    line: dict[str, Any] = {
        "time_ns": time.time_ns() if now is None else now,
        "clock": CLOCK,
        "host": host,
        "pid": pid,
        "event": event,
        **given,
    }
    check(line)
    schema = SCHEMA[event]
    for key in fields.keys() - COMMON.keys():
        if schema.kind(key) is None:
            raise ValueError(f"{event} has no {key}")
    return line


class JournalWriter:
    """Writes a journal. Threads may share it. Lines are buffered; :meth:`close` writes them out.

    Args:
        file: a path (``.gz`` is compressed; an existing file is replaced when this is closed, see
            :class:`~rocekit.files.growing.GrowingFile`) or a text file, which stays open.
        append: write behind what the file has.
        opened: the file, if it was made before this.
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
        opened: NewFile | None = None,
    ) -> None:
        if host is None:
            import socket

            host = socket.gethostname()
        self.host = host
        self.pid = os.getpid() if pid is None else pid
        self._lock = allocate_lock()
        self._owned = isinstance(file, str | os.PathLike)
        self._growing: GrowingFile | None = None
        self._size: int | None = None
        """Of the file that is appended to."""
        self._file: IO[str]
        if not isinstance(file, str | os.PathLike):
            self._name: str | Path = str(getattr(file, "name", "journal"))
            self._file = file
            return
        self._name = file
        try:
            self._raw = (
                self._open_behind(file)
                if append and os.path.isfile(file)  # noqa: PTH113
                else self._new(file, opened)
            )
        except OSError as error:
            raise self._failed(error) from None
        gz = str(file).endswith(".gz")
        self._file = io.TextIOWrapper(_packed(self._raw) if gz else self._raw, encoding="utf-8")

    def _new(self, file: str | Path, opened: NewFile | None) -> IO[bytes]:
        try:
            self._growing = GrowingFile(file, opened)
        except CaptureError as error:
            raise self._of_growing(error) from None
        return self._growing.file

    def _open_behind(self, file: str | Path) -> IO[bytes]:
        raw = open(file, "r+b")  # noqa: PTH123, SIM115
        first = raw.read(2)
        size = raw.seek(0, os.SEEK_END)
        if first and not (first[:1] == b"{" or first == b"\x1f\x8b"):
            raw.close()
            raise JournalError("this is no journal to append to; name another file", file=file)
        self._size = size
        return raw

    def _failed(self, error: OSError) -> JournalError:
        if self._growing is not None and not isinstance(error, BrokenPipeError):
            return self._of_growing(self._growing.failed(error))
        if self._size is not None:
            self._take_back(self._size)
        return JournalError(f"cannot be written: {error.strerror or error}", file=self._name)

    def _of_growing(self, error: Exception) -> JournalError:
        failed = JournalError(str(error))
        failed.file = str(self._name)
        return failed

    def _take_back(self, size: int) -> None:
        """Make a file as long as it was before; what waits in memory goes nowhere."""
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123
            os.ftruncate(self._raw.fileno(), size)
            os.dup2(nowhere.fileno(), self._raw.fileno(), inheritable=False)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error of the file names it. The lock is taken around this, by a ``with`` of its own: a Ctrl-C in
        a generator would leave it taken, and :meth:`close` would wait for it for ever."""
        try:
            yield
        except OSError as error:
            raise self._failed(error) from None

    def of_host(self, host: str, pid: int) -> JournalWriter:
        """A writer of events of another host into the same file, which this one closes."""
        import copy

        other = copy.copy(self)
        other.host, other.pid = host, pid
        return other

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
        fields |= {"time_ns": time_ns, "mono_ns": mono_ns}
        if qp is not None:
            fields["qp"] = {"device": qp[0], "qpn": qp[1]}
        self._put(event_line(self.host, self.pid if pid is None else pid, event, fields))

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write events that are JSON lines already, without line ends."""
        text = "\n".join([*lines, ""])
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
            if not self._owned:
                self._file.flush()
            elif not self._file.closed:
                self._close()

    def _close(self) -> None:
        try:
            self._file.flush()
            self._file.close()  # writes the end of a gzip file; a plain file is closed with it
            if self._growing is None and not self._raw.closed:
                self._raw.close()
        except OSError as error:
            raise self._failed(error) from None
        finally:
            if self._growing is not None:
                self._finish(self._growing)

    def _finish(self, growing: GrowingFile) -> None:
        try:
            growing.close()
        except CaptureError as error:
            raise self._of_growing(error) from None

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _packed(raw: IO[bytes]) -> IO[bytes]:
    import gzip

    packed: Any = gzip.GzipFile(fileobj=raw, mode="wb")
    found: IO[bytes] = packed
    return found


@contextmanager
def whole_journal(together: Together, out: str | Path) -> Iterator[JournalWriter]:
    """A writer whose file becomes ``out`` when all of ``together`` are complete.

    Raises:
        RocekitError: it cannot be written.
    """
    text = io.TextIOWrapper(together.open(out), encoding="utf-8")
    with JournalWriter(text) as writer:
        yield writer
    text.detach()  # its file is closed by the others
