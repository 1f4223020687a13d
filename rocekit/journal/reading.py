"""Reading a journal from a file, plain or gzip."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

from rocekit.errors import CaptureError, JournalError
from rocekit.files.remote import is_remote, open_remote
from rocekit.journal.records import Journal, JournalEvent, Problem, merge, parse_event
from rocekit.machine.limits import JOURNAL_LINE_BYTES, how_to_raise, limit

_ROTATED: Final = "rotated:"
_GZIP_MAGIC: Final = b"\x1f\x8b"
#: A line that is so many times too long has no end, and what follows is not read.
_SKIPPED_LINES: Final = 16


def read_journal(path: str | Path, *, may_be_empty: bool = False) -> Journal:
    """The journal in a file, plain or gzip, sorted by time (equal times keep the file's order).

    ``rotated:FIRST..LAST`` is the files of one recording as one journal.

    A line that is no event becomes one of ``problems``, and the others are used. So does a last line that is
    incomplete because the program was killed.

    Args:
        may_be_empty: whether a file without a usable line is a journal too, one without events.

    Raises:
        JournalError: the file cannot be read, or has no usable line.
    """
    if str(path).startswith(_ROTATED):
        # Not above: it loads NumPy, which takes longer than many programs that are recorded.
        from rocekit.files.joined import joined_files

        try:
            return merge([_read_file(file, may_be_empty=may_be_empty) for file in joined_files(str(path))])
        except CaptureError as error:
            raise JournalError(str(error)) from None
    return _read_file(path, may_be_empty=may_be_empty)


def _read_file(path: str | Path, *, may_be_empty: bool) -> Journal:
    events: list[JournalEvent] = []
    problems: list[Problem] = []
    number = 0
    try:
        for number, raw in enumerate(_lines(path), start=1):
            if not raw.strip() and len(raw) <= limit(JOURNAL_LINE_BYTES):
                continue
            try:
                events.append(parse_event(_load(raw)))
            except ValueError as error:
                problems.append(Problem(str(path), number, str(error)))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        problems.append(Problem(str(path), number + 1, f"gzip data cut off or damaged ({error})"))
    except CaptureError as error:  # at a URL
        raise JournalError(str(error)) from None
    except OSError as error:
        raise JournalError(f"cannot be read: {error.strerror or error}", file=path) from None
    if not events and may_be_empty:
        return Journal([], problems, [str(path)])
    if not events:
        if problems:
            first = problems[0]
            raise JournalError(f"no usable line; {first.expected}", file=path, line=first.line)
        raise JournalError("no events; expected JSON Lines, one event a line", file=path)
    events.sort(key=lambda event: event.time_ns)
    return Journal(events, problems)


def _load(raw: bytes) -> object:
    most = limit(JOURNAL_LINE_BYTES)
    if len(raw) > most:
        rest = f"behind {_SKIPPED_LINES * most:,} nothing more is read"
        raise ValueError(f"a line of more than {most:,} bytes ({rest}); {how_to_raise(JOURNAL_LINE_BYTES)}")
    try:
        return json.loads(raw, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        cut = not raw.endswith(b"\n")
        what = "the last line is cut off" if cut else "not JSON"
        raise ValueError(f"{what}: expected one JSON object a line") from None


def _no_number(word: str) -> float:
    """NaN and Infinity, which Python reads though JSON does not have them."""
    raise ValueError(word)


def _finite(digits: str) -> float:
    """A number with a fraction or exponent; one too large for a double would be Infinity."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


def _lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a journal; of one that is too long, one byte more than is allowed."""
    with cast(IO[bytes], open_remote(str(path)) if is_remote(path) else Path(path).open("rb")) as plain:
        # Not peek(): a pipe can return one byte at first.
        magic = plain.read(len(_GZIP_MAGIC))
        if magic == _GZIP_MAGIC and plain.seekable():
            plain.seek(0)
            with gzip.open(plain) as unpacked:
                yield from _bounded(cast(IO[bytes], unpacked), b"")
        elif magic:
            yield from _bounded(plain, magic)


def _bounded(stream: IO[bytes], begun: bytes) -> Iterator[bytes]:
    """The lines of a stream of which ``begun`` was read already."""
    most = limit(JOURNAL_LINE_BYTES)
    while begun.count(b"\n"):
        line, end, begun = begun.partition(b"\n")
        yield line + end
    while line := begun + stream.readline(most + 1 - len(begun)):
        begun = b""
        yield line
        skipped = len(line)
        while len(line) > most and not line.endswith(b"\n"):
            line = stream.readline(most + 1)
            skipped += len(line)
            if skipped > _SKIPPED_LINES * most:
                return  # it has no end
