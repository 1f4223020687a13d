"""What a worker does with one stream: hash it, and if its rows are not there, make them."""

from __future__ import annotations

import gc
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, cast

from rocekit.errors import RocekitError
from rocekit.files.remote import is_remote, open_remote
from rocekit.fleet.lake import Lake
from rocekit.fleet.schema import SCHEMA
from rocekit.fleet.stream_tables import paths_of, stream_tables

if TYPE_CHECKING:
    from rocekit.fleet.stream_tables import LakeSettings
    from rocekit.fleet.streams import Stream

_PIECE: Final = 4 << 20


class Added(NamedTuple):
    """What came of a stream.

    Attributes:
        capture: its id; None: not even its files could be opened.
        new: whether it was analysed now.
        error: why it could not be read; None if it could.
        full: why nothing could be written; None if it could.
    """

    stream: Stream
    capture: str | None
    new: bool
    packets: int = 0
    bytes: int = 0
    error: str | None = None
    full: str | None = None


def add_stream(folder: str, stream: Stream, settings: LakeSettings) -> Added:
    """Add a stream to a LAKE, unless it is there. Errors of the capture are in the result, not raised."""
    lake = Lake(folder)
    try:
        capture, size = _identity(stream, settings)
        if lake.has(stream, capture):
            return Added(stream, capture, new=False, bytes=size, error=lake.error_of(stream, capture))
        result = stream_tables(stream, capture, size, settings)
        try:
            lake.write(lake.entry(stream, capture, result.first_ns), result.tables)
        except OSError as error:
            return Added(stream, capture, new=False, full=error.strerror or str(error))
        return Added(stream, capture, True, result.packets, size, result.error)
    finally:
        gc.collect()  # what an analysis refers to in circles


def _identity(stream: Stream, settings: LakeSettings) -> tuple[str, int]:
    """The id of a stream, by all that decides about its rows; and the bytes of its files.

    A file that cannot be read is part of the id by its error.
    """
    whole = blake2b(digest_size=12)
    whole.update(repr((SCHEMA, stream, tuple(settings))).encode())
    total = 0
    try:
        paths = paths_of(stream)
    except RocekitError as error:
        whole.update(str(error).encode())
        return whole.hexdigest(), 0
    for path in paths:
        own, size = blake2b(digest_size=32), 0
        try:
            opened = open_remote(str(path)) if is_remote(path) else Path(path).open("rb")  # noqa: SIM115
            with cast(BinaryIO, opened) as file:
                while piece := file.read(_PIECE):
                    own.update(piece)
                    size += len(piece)
        except (OSError, RocekitError) as error:
            own.update(str(error).encode())
        whole.update(str(path).encode() + b"\0" + own.digest())
        total += size
    return whole.hexdigest(), total
