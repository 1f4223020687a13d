"""The LAKE: a folder of Parquet files, one sub-folder for each capture, which appears as a whole.

    LAKE/manifest.json
    LAKE/day=2026-11-20/point=host17%2Feth0/4f2a…-9c01…/captures.parquet, findings.parquet, …
    LAKE/pairs/…/matches.parquet, paths.parquet, placed_findings.parquet
    LAKE/summary/ways.parquet, hosts.parquet, links.parquet

A capture's folder is made elsewhere in the LAKE and then renamed, which a file system does at once or not at
all: so every reader sees complete captures only. Its name has the hash of the capture's key, which stays
when the stream grows, and its id, the hash of everything that decides about its rows.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

from rocekit._version import VERSION
from rocekit.errors import RocekitError, needs_extra
from rocekit.fleet.schema import OF_ALL, SCHEMA

if TYPE_CHECKING:
    import polars as pl

    from rocekit.fleet.stream_tables import LakeSettings
    from rocekit.fleet.streams import Stream

MANIFEST: Final = "manifest.json"
_STAGING: Final = ".staging"
_LOCK: Final = ".lock"
UNKNOWN_DAY: Final = "unknown"
PAIRS: Final = "pairs"
SUMMARY: Final = "summary"
#: A partition is one folder: its name has room for so many bytes.
_MOST_NAME: Final = 180


class Lake:
    """A LAKE on a file system that all workers share.

    Raises:
        RocekitError: the folder is something else, or a LAKE of another version.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def manifest(self) -> dict[str, Any]:
        """What the LAKE is.

        Raises:
            RocekitError: it is no LAKE that this version reads.
        """
        path = self.folder / MANIFEST
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            what = "this is no LAKE" if self.folder.is_dir() else "there is no such folder"
            raise RocekitError(f"{self.folder}: {what}; `rocekit fleet analyze` makes one") from None
        except (OSError, ValueError) as error:
            raise RocekitError(f"{path}: cannot be read: {error}") from None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            own = found.get("schema") if isinstance(found, dict) else None
            raise RocekitError(
                f"{self.folder}: a LAKE of schema {own}, and not {SCHEMA}: analyze into a new one"
            )
        return found

    def make(self, settings: LakeSettings) -> None:
        """Make the LAKE, or check that it was made with the same settings.

        Raises:
            RocekitError: it was not, or cannot be made.
        """
        wanted = {
            "schema": SCHEMA,
            "settings": settings._asdict(),
            "versions": {"rocekit": VERSION, "polars": version("polars")},
        }
        if self.folder.is_dir() and (self.folder / MANIFEST).exists():
            found = self.manifest()
            for key in ("settings", "versions"):
                if found.get(key) != wanted[key]:
                    words = ", ".join(f"{k} {v}" for k, v in sorted((found.get(key) or {}).items()))
                    raise RocekitError(
                        f"{self.folder}: made with other {key} ({words}): use these, or a new LAKE"
                    )
            return
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise RocekitError(f"{self.folder}: this is there and no LAKE; name a new folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f".{MANIFEST}-{uuid4().hex}"
            part.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
            part.replace(self.folder / MANIFEST)
        except OSError as error:
            raise RocekitError(f"{self.folder}: cannot be made: {error.strerror}") from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others from adding to the LAKE, and remove what they left half made.

        Raises:
            RocekitError: another one adds to it now.
        """
        import fcntl

        with (self.folder / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise RocekitError(f"{self.folder}: another `rocekit fleet analyze` adds to it now") from None
            self._clear()
            try:
                yield
            finally:
                self._clear()
                (self.folder / _LOCK).unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove what is half made.

        A worker may still make it, for a run that was killed. So its place goes first, at once: it must not
        find its folder there and a file of it gone.
        """
        with suppress(OSError):
            (self.folder / _STAGING).rename(self.folder / f"{_STAGING}-{uuid4().hex}")
        for gone in self.folder.glob(f"{_STAGING}*"):
            shutil.rmtree(gone, ignore_errors=True)

    # ------------------------------------------------------------------ folders of captures

    def entry(self, stream: Stream, capture: str, first_ns: int | None) -> Path:
        """Where the rows of a stream are."""
        day = UNKNOWN_DAY
        if first_ns is not None:
            seconds = first_ns // 1_000_000_000
            try:
                day = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
            except (ValueError, OverflowError, OSError):
                pass  # a time that no calendar has
        return self.folder / f"day={day}" / point_folder(stream.point) / f"{key_hash(stream)}-{capture}"

    def has(self, stream: Stream, capture: str) -> bool:
        """Whether a stream's rows are there."""
        return bool(self._entries(stream, capture))

    def error_of(self, stream: Stream, capture: str) -> str | None:
        """Why a capture that is there could not be read; None if it could."""
        import polars as pl

        rows = pl.read_parquet(
            self._entries(stream, capture)[0] / "captures.parquet", columns=["error"], glob=False
        )
        error: str | None = rows["error"][0]
        return error

    def _entries(self, stream: Stream, capture: str = "*") -> list[Path]:
        name = glob_free(point_folder(stream.point))
        return sorted(self.folder.glob(f"day=*/{name}/{key_hash(stream)}-{capture}"))

    def write(self, place: Path, tables: Mapping[str, pl.DataFrame]) -> None:
        """Make a folder with tables, as a whole; one that is there stays.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        staging = self.folder / _STAGING / uuid4().hex
        staging.mkdir(parents=True)
        try:
            for name, table in sorted(tables.items()):
                write_parquet(table, staging / f"{name}.parquet")
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                staging.rename(place)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def replace(self, name: str, table: pl.DataFrame) -> None:
        """Write a table of the whole LAKE in place of the one that is there.

        Raises:
            OSError: it cannot be written.
        """
        folder, staging = self.folder / SUMMARY, self.folder / _STAGING
        folder.mkdir(exist_ok=True)
        staging.mkdir(exist_ok=True)
        part = staging / uuid4().hex
        write_parquet(table, part)
        part.replace(folder / f"{name}.parquet")

    def unjudge(self) -> None:
        """Remove the tables of the whole LAKE: they are not of the captures that are added now."""
        shutil.rmtree(self.folder / SUMMARY, ignore_errors=True)

    @property
    def judged(self) -> bool:
        """Whether the last run came to its end, so that the tables of the whole LAKE are there."""
        return all((self.folder / SUMMARY / f"{table}.parquet").exists() for table in OF_ALL)

    def forget_others(self, stream: Stream, captures: Collection[str]) -> int:
        """Remove the rows that a stream had before it grew or changed. Returns how many folders.

        Args:
            captures: the ids of the stream, or of its parts, now.
        """
        old = [path for path in self._entries(stream) if path.name.rpartition("-")[2] not in captures]
        for path in old:
            gone = self.folder / _STAGING / uuid4().hex
            gone.parent.mkdir(exist_ok=True)
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        return len(old)


def write_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write a table, always as the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    import io

    # Into memory first: polars reports a full disk as an error of its own.
    data = io.BytesIO()
    table.write_parquet(data, compression="zstd", compression_level=3, statistics=True)
    with path.open("wb") as file:
        file.write(data.getbuffer())
        file.flush()
        os.fsync(file.fileno())


def point_folder(point: str) -> str:
    """A point's partition; a long name is cut, and told apart by a hash."""
    name = quote(point, safe="")
    if len(name) > _MOST_NAME:
        name = f"{name[:_MOST_NAME].rstrip('%')}~{blake2b(point.encode(), digest_size=4).hexdigest()}"
    return f"point={name}"


def key_hash(stream: Stream) -> str:
    """The part of a folder's name that stays when a stream grows."""
    return blake2b(f"{stream.point}\0{stream.key}".encode(), digest_size=4).hexdigest()


def glob_free(name: str) -> str:
    """A name as a pattern that only it fits."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def need_polars() -> None:
    """Check that a LAKE can be written.

    Raises:
        RocekitError: a package is missing.
    """
    try:
        import polars  # noqa: F401
    except ImportError:
        raise needs_extra("fleet needs", "polars", "fleet") from None
