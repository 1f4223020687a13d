"""Output files: checked before the work, completed after it, and named in errors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from rocekit.errors import RocekitError
from rocekit.files.capture_names import stem
from rocekit.files.new_file import NewFile, not_written, place_of
from rocekit.standard_output import standard_output

STANDARD_OUTPUT: Final = "standard output"
"""What errors call it."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that wait while files are made and take their places."""


def check_apart(packets: str | Path | None, journal: str | Path | None) -> None:
    """Check that a capture and a journal do not go to the same file.

    Raises:
        RocekitError: they do.
    """
    if packets is None or journal is None or not _same(packets, journal):
        return
    if not Path(packets).exists() or Path(packets).is_file():  # /dev/null takes both
        raise RocekitError(f"{packets}: packets and journal cannot go to one file; name two")


def _same(a: str | Path, b: str | Path) -> bool:
    """Whether two names stand for one file: also by links of both kinds, and if it does not exist yet."""
    if Path(a).exists() and Path(b).exists():
        return Path(a).samefile(b)
    return Path(a).resolve() == Path(b).resolve()


def check_output(out: str | Path, inputs: Iterable[str | Path]) -> None:
    """Check that a file can be written, and that it is none of those that are read.

    Args:
        inputs: all of them, those found beside others too; ``"-"`` is the file behind standard input.

    Raises:
        RocekitError: it cannot, or is.
    """
    path = Path(out)
    if is_stdout(out):
        return
    if path.is_dir():
        raise RocekitError(f"{out}: this is a folder; name a file in it")
    if not path.parent.is_dir():
        raise RocekitError(f"{out}: there is no folder {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RocekitError(f"{out}: no right to write it; name another file")
    if not place_of(out).exists() or not path.is_file():
        return  # a device or a pipe loses nothing
    for source in inputs:
        if _is_read(path, source):
            raise RocekitError(f"{out}: this is the file that is read; name another one for the output")


def _is_read(path: Path, source: str | Path) -> bool:
    try:
        status = os.fstat(sys.stdin.fileno()) if str(source) == "-" else Path(source).stat()
        return os.path.samestat(path.stat(), status)
    except (OSError, ValueError, AttributeError):
        return False


def is_stdout(out: object) -> bool:
    """Whether an output's name stands for standard output."""
    return isinstance(out, str | Path) and str(out) == "-"


def name_of(path_or_file: object) -> str:
    """What errors call an output: a path, ``-``, or a file that is open."""
    if isinstance(path_or_file, str | Path):
        return STANDARD_OUTPUT if is_stdout(path_or_file) else str(path_or_file)
    name = str(getattr(path_or_file, "name", "capture"))
    return STANDARD_OUTPUT if name == "<stdout>" else name


@contextmanager
def writing(out: str | Path) -> Iterator[None]:
    """Name the file in errors of the system that are raised inside.

    Raises:
        RocekitError: instead of an ``OSError``, except BrokenPipeError.
    """
    try:
        yield
    except OSError as error:
        raise not_written(error, name_of(out)) from None


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder for files; what was made of it goes where they cannot all be written."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for path in made:
            with suppress(OSError):  # somebody put something there
                path.rmdir()
        raise


class Together:
    """Files that take their places together, when all are complete: each of them, or none.

    Raises:
        CaptureError: one of them cannot be made, written, or take its place.
    """

    def __init__(self) -> None:
        self._files: list[tuple[str | Path, NewFile]] = []

    def open(self, out: str | Path) -> BinaryIO:
        """A file to write bytes to, which replaces ``out`` at the end; ``"-"`` is standard output."""
        if is_stdout(out):
            return standard_output()
        with not_interrupted(), writing(out):  # a file that was made is known here
            new = NewFile(out)
            self._files.append((out, new))
        return new.file

    def __enter__(self) -> Together:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for name, new in self._files:
                    with writing(name):
                        new.close()
                self._take_places()
        finally:
            for _, new in self._files:
                new.discard()

    def _take_places(self) -> None:
        done: list[tuple[NewFile, Path | None]] = []
        with not_interrupted():
            try:
                for name, new in self._files:
                    before = _second_name(new.place) if len(self._files) > 1 else None
                    done.append((new, before))
                    with writing(name):
                        new.take_place()
            except BaseException:
                for new, before in done:
                    if before is not None:
                        before.replace(new.place)
                raise
            for _, before in done:
                if before is not None:
                    before.unlink(missing_ok=True)


def _second_name(place: Path) -> Path | None:
    """Another name of a file that will be replaced, to bring it back; None if that is not possible."""
    name = place.with_name(f".rocekit-{os.urandom(6).hex()}")
    try:
        os.link(place, name)
    except OSError:
        return None
    return name


@contextmanager
def not_interrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the end of this.

    By handlers and not by a mask: another thread would take the signal, and Python tells the main one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in _ENDING
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


@contextmanager
def complete(out: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, which replaces ``out`` when it is complete; else ``out`` stays as it was.

    Standard output, a device, a pipe, or a file in a folder that is not writable is written directly.

    Raises:
        CaptureError: it cannot be made, or the complete file cannot replace ``out``.
    """
    with Together() as files:
        yield files.open(out)


def one_for_each(
    folder: str | Path,
    captures: Sequence[str | Path],
    *,
    reads: Sequence[str | Path] = (),
    make: bool = True,
) -> list[Path]:
    """Pcapng files in a folder, one for each of several captures, with their names.

    Captures with the same name are numbered.

    Args:
        reads: what is read beside the captures.
        make: the folder, if it is not there.

    Raises:
        RocekitError: it is no folder and cannot become one, or a file in it cannot be written.
    """
    path = Path(folder)
    if not path.is_dir() and (is_stdout(folder) or path.exists() or stem(path) != path.name):
        words = f"{len(captures)} captures are written each to a file of its own"
        raise RocekitError(f"{folder}: {words}; name a folder for them")
    stems = [stem(capture) for capture in captures]
    again = Counter(stems)
    names = [f"{name}-{i}" if again[name] > 1 else name for i, name in enumerate(stems, 1)]
    outs = [path / f"{name}.pcapng" for name in names]
    if not path.is_dir():
        check_output(path, captures)
        if not make:
            return outs
        try:
            path.mkdir()
        except OSError as error:
            raise RocekitError(f"{folder}: cannot be made: {error.strerror}") from None
    for out in outs:
        check_output(out, [*captures, *reads])
    return outs
