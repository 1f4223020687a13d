"""Output files: checked before the work, completed after it, and named in errors."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocekit.errors import CaptureError, RocekitError
from rocekit.files.capture_names import stem


def not_written(error: OSError, name: str | Path) -> OSError | CaptureError:
    """The error to raise if writing ``name`` failed: one that names it, or BrokenPipeError as it is."""
    if isinstance(error, BrokenPipeError):
        return error
    return CaptureError(f"cannot be written: {error.strerror or error}", file=name)


def check_apart(packets: str | Path | None, journal: str | Path | None) -> None:
    """Check that a capture and a journal do not go to the same file.

    Raises:
        RocekitError: they do.
    """
    if packets is None or journal is None or Path(packets).resolve() != Path(journal).resolve():
        return
    if not Path(packets).exists() or Path(packets).is_file():  # /dev/null takes both
        raise RocekitError(f"{packets}: packets and journal cannot go to one file; name two")


def check_output(out: str | Path, inputs: Iterable[str | Path]) -> None:
    """Check that a file can be written, and that it is none of those that are read.

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
    for source in inputs:
        if str(source) != "-" and path.exists() and Path(source).exists() and path.samefile(source):
            raise RocekitError(f"{out}: this is the file that is read; name another one for the output")


def is_stdout(out: object) -> bool:
    """Whether an output's name stands for standard output."""
    return isinstance(out, str | Path) and str(out) == "-"


@contextmanager
def writing(out: str | Path) -> Iterator[None]:
    """Name the file in errors of the system that are raised inside.

    Raises:
        RocekitError: instead of an ``OSError``, except BrokenPipeError.
    """
    try:
        yield
    except OSError as error:
        raise not_written(error, "standard output" if is_stdout(out) else out) from None


@contextmanager
def complete(out: str | Path) -> Iterator[Path]:
    """A file to write to, which replaces ``out`` when it is complete; else ``out`` stays as it was.

    Standard output, a device, a pipe, or a file in a folder that is not writable is written directly.

    Raises:
        OSError: the complete file cannot replace ``out``.
    """
    place = Path(out).resolve()  # the target of a link; the link stays
    special = is_stdout(out) or (place.exists() and not place.is_file())
    if special or not os.access(place.parent, os.W_OK):
        yield Path(out)
        return
    part = place.with_name(f".rocekit-{os.getpid()}{place.suffix}")
    try:
        yield part
        if place.exists():
            shutil.copymode(place, part)
        part.replace(place)
    except BaseException:  # Ctrl-C as well
        part.unlink(missing_ok=True)
        raise


def one_for_each(folder: str | Path, captures: Sequence[str | Path], *, make: bool = True) -> list[Path]:
    """Pcapng files in a folder, one for each of several captures, with their names.

    Captures with the same name are numbered.

    Args:
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
        check_output(out, captures)
    return outs
