"""What a worker does with one stream: hash it, and if its rows are not there, make them, or say its parts.

A very large capture is split by pairs of hosts into parts, which are tasks and rows of their own (see
``files.joined``). Only its size decides about it, so that the LAKE does not depend on the workers.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, cast

from rocekit.errors import RocekitError
from rocekit.files.frames import CapturePart
from rocekit.files.remote import is_remote, open_remote
from rocekit.fleet.lake import Lake
from rocekit.fleet.schema import SCHEMA
from rocekit.fleet.stream_tables import paths_of, stream_tables
from rocekit.machine.memory import keep_freed_memory

if TYPE_CHECKING:
    from rocekit.fleet.stream_tables import LakeSettings
    from rocekit.fleet.streams import Stream

_PIECE: Final = 4 << 20
#: Every part is read from the whole capture, which takes about a quarter of the time of its analysis.
MOST_PARTS: Final = 8
#: What a worker keeps of the memory that an analysis freed; what a large capture took beyond it goes back.
_KEPT_BYTES: Final = 64 << 20


class StreamId(NamedTuple):
    """A stream's id, by all that decides about its rows; and the bytes of its files."""

    capture: str
    size: int


class FileDigest(NamedTuple):
    """What a file adds to the id of its stream, and its bytes."""

    digest: bytes
    size: int


class Added(NamedTuple):
    """What came of a stream.

    Attributes:
        captures: the ids that the stream, or its parts, has in the LAKE; none: it could not be written.
        new: whether it was analysed now.
        error: why it could not be read; None if it could.
        full: why nothing could be written; None if it could.
        parts: what is still to be added: parts of a very large capture, each with its id.
        keeper: the worker that keeps the analysis, to go on with it; None: none does.
    """

    stream: Stream
    captures: frozenset[str]
    new: bool
    packets: int = 0
    bytes: int = 0
    error: str | None = None
    full: str | None = None
    parts: tuple[tuple[Stream, StreamId], ...] = ()
    keeper: str | None = None


def add_stream(folder: str, stream: Stream, settings: LakeSettings, known: StreamId | None = None) -> Added:
    """Add a stream to a LAKE, unless it is there. Errors of the capture are in the result, not raised.

    Args:
        known: the id of a part, which need not be found again. A whole capture that is to be split is not
            added; the result says its parts.
    """
    lake = Lake(folder)
    keep_memory()
    try:
        capture, size = known or identity(stream, settings)
        parts = [] if stream.part is not None else _parts(stream, StreamId(capture, size), settings)
        if parts:
            missing = tuple(one for one in parts if not lake.has(one[0], one[1].capture))
            ids = frozenset(own.capture for _, own in parts)
            return Added(stream, ids, new=False, parts=missing)
        ids = frozenset({capture})
        if lake.has(stream, capture):
            return Added(stream, ids, new=False, bytes=size, error=lake.error_of(stream, capture))
        result = stream_tables(stream, capture, size, settings)
        try:
            lake.write(lake.entry(stream, capture, result.first_ns), result.tables)
        except OSError as error:
            return Added(stream, frozenset(), new=False, full=error.strerror or str(error))
        own = size if stream.part is None or stream.part.number == 1 else 0
        return Added(stream, ids, True, result.packets, own, result.error)
    finally:
        gc.collect()  # what an analysis refers to in circles
        _freeze()


@cache
def keep_memory() -> None:
    """Once a process, keep freed memory: Dask has its workers give it back above 64 KiB.

    To get it anew from the kernel is a third of the time of a small capture's analysis.
    """
    keep_freed_memory(kept=_KEPT_BYTES)


@cache
def _freeze() -> None:
    """Once a process, leave what is there now, modules above all, out of every search for garbage.

    Such a search after each capture otherwise takes as long as the capture's analysis.
    """
    gc.freeze()


def _parts(stream: Stream, whole: StreamId, settings: LakeSettings) -> list[tuple[Stream, StreamId]]:
    """The parts of a very large capture; none where it stays whole.

    One with journals stays whole: a work request without its packets would seem never to have been sent.
    """
    count = min(MOST_PARTS, -(-whole.size // settings.split_bytes))
    if count < 2 or len(paths_of(stream)) > len(stream.files):
        return []
    parts = []
    for number in range(1, count + 1):
        own = blake2b(f"{whole.capture} {number}/{count}".encode(), digest_size=12).hexdigest()
        parts.append((stream._replace(part=CapturePart(number, count)), StreamId(own, whole.size)))
    return parts


def identity(
    stream: Stream, settings: LakeSettings, digest: Callable[[str], FileDigest] | None = None
) -> StreamId:
    """The id of a stream. A file that cannot be read is part of it by its error.

    Args:
        digest: gives a file's digest; None: it is read.
    """
    whole = blake2b(digest_size=12)
    whole.update(repr((SCHEMA, stream, tuple(settings))).encode())
    total = 0
    try:
        paths = paths_of(stream)
    except RocekitError as error:
        whole.update(str(error).encode())
        return StreamId(whole.hexdigest(), 0)
    for path in map(str, paths):
        own = (digest or digest_of)(path)
        whole.update(path.encode() + b"\0" + own.digest)
        total += own.size
    return StreamId(whole.hexdigest(), total)


def digest_of(path: str) -> FileDigest:
    """The digest of what a file has, or of the error that keeps it from being read."""
    own, size = sha256(), 0  # processors have instructions for it
    try:
        with cast(BinaryIO, open_remote(path) if is_remote(path) else Path(path).open("rb")) as file:
            while piece := file.read(_PIECE):
                own.update(piece)
                size += len(piece)
    except (OSError, RocekitError) as error:
        own.update(str(error).encode())
    return FileDigest(own.digest(), size)
