"""Reading a journal from a file, plain or gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

from rocekit.errors import CaptureError, JournalError
from rocekit.files.remote import is_remote, open_remote
from rocekit.journal.records import Journal, JournalEvent, Problem, parse_event

_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_journal(path: str | Path, *, may_be_empty: bool = False) -> Journal:
    """The journal in a file, plain or gzip, sorted by time (equal times keep the file's order).

    A line that is no event becomes one of ``problems``, and the others are used. So does a last line that is
    incomplete because the program was killed.

    Args:
        may_be_empty: whether a file without a usable line is a journal too, one without events.

    Raises:
        JournalError: the file cannot be read, or has no usable line.
    """
    events: list[JournalEvent] = []
    problems: list[Problem] = []
    number = 0
    try:
        for number, raw in enumerate(_lines(path), start=1):
            if not raw.strip():
                continue
            try:
                events.append(parse_event(_load(raw)))
            except ValueError as error:
                problems.append(Problem(str(path), number, str(error)))
    except (EOFError, gzip.BadGzipFile) as error:
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
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        cut = not raw.endswith(b"\n")
        what = "the last line is cut off" if cut else "not JSON"
        raise ValueError(f"{what}: expected one JSON object a line") from None


def _lines(path: str | Path) -> Iterator[bytes]:
    with cast(IO[bytes], open_remote(str(path)) if is_remote(path) else Path(path).open("rb")) as plain:
        # Not peek(): a pipe can return one byte at first.
        magic = plain.read(len(_GZIP_MAGIC))
        if magic == _GZIP_MAGIC and plain.seekable():
            plain.seek(0)
            with gzip.open(plain) as unpacked:
                yield from cast(IO[bytes], unpacked)
        elif magic:
            first = magic if magic.endswith(b"\n") else magic + plain.readline()
            yield from first.splitlines(keepends=True)
            yield from plain
