"""Captures and journals at URLs (``s3://``, ``gs://``, ``sftp://``, ``http://`` …), read through fsspec.

What looks like a URL is one, unless a file has this name. fsspec and what it needs for a protocol are in the
extra ``rocekit[fleet]``; credentials are where the protocol's own tools have them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocekit.errors import CaptureError, RocekitError, needs_extra

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)://?(.*)", re.DOTALL)
#: Bytes asked for at once: a request to an object store takes as long as the transfer of some of these.
_BLOCK: Final = 8 << 20


class RemotePath(type(Path())):  # type: ignore[misc]  # Path itself cannot be subclassed before Python 3.12
    """A URL where commands expect a path: as text it is the URL, which a path would shorten."""

    def __new__(cls, url: str) -> RemotePath:
        path: RemotePath = super().__new__(cls, url)
        return path

    def __init__(self, url: str) -> None:
        if not hasattr(Path, "_from_parts"):  # Python 3.12 and newer make paths here
            super().__init__(url)
        self._url = url

    def __str__(self) -> str:
        return getattr(self, "_url", None) or super().__str__()

    def __fspath__(self) -> str:
        return str(self)


def is_remote(name: str | os.PathLike[str]) -> bool:
    """Whether a name is a URL."""
    text = str(name)
    return "://" in text and _URL.fullmatch(text) is not None and not Path(text).exists()


def split_url(url: str) -> tuple[str, str]:
    """The protocol of a URL, and what stands behind ``://``."""
    protocol, _, path = url.partition("://")
    return protocol, path


def open_remote(url: str) -> Any:
    """The bytes at a URL, as a file that is read from its start to its end.

    Raises:
        CaptureError: they cannot be read.
        RocekitError: a package is missing.
    """
    fs, path = _file_system(url)
    try:
        if fs.isdir(path) and not fs.isfile(path):
            raise IsADirectoryError(url)
        return _RemoteFile(fs.open(path, "rb", block_size=_BLOCK))
    except Exception as error:  # each file system has exceptions of its own
        raise CaptureError(_why(error), file=url) from None


@contextmanager
def local_copy(name: str) -> Iterator[str]:
    """A file of this machine with the same bytes, for programs that read no URLs; a local file is its own.

    Raises:
        CaptureError: it cannot be copied.
    """
    if not is_remote(name):
        yield name
        return
    import shutil
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=Path(split_url(name)[1]).suffix) as copy:
        try:
            with open_remote(name) as remote:
                shutil.copyfileobj(remote, copy, _BLOCK)
                copy.flush()
        except OSError as error:
            raise CaptureError(f"cannot be copied: {error.strerror or error}", file=name) from None
        yield copy.name


def listed(url: str) -> list[str]:
    """The files below a URL: of a folder all, of a glob those that fit, else the one file.

    Raises:
        CaptureError: there is none, or they cannot be listed.
        RocekitError: a package is missing.
    """
    fs, path = _file_system(url)
    try:
        if any(c in path for c in "*?["):
            found = fs.glob(path)
        elif url.split("://")[0] in ("http", "https") and not url.endswith("/"):
            found = [path]
        else:
            found = fs.find(path)
        names = sorted(str(fs.unstrip_protocol(name)) for name in found)
    except Exception as error:
        raise CaptureError(_why(error), file=url) from None
    if not names:
        raise CaptureError("there is no such file or folder", file=url)
    return names


def beside(url: str) -> list[str]:
    """The files in the folder of a URL; none where the file system does not list folders."""
    folder = url.rpartition("/")[0] + "/"
    try:
        fs, path = _file_system(folder)
        return sorted(str(fs.unstrip_protocol(name)) for name in fs.ls(path, detail=False))
    except Exception:
        return []


def remote_state(url: str) -> tuple[object, ...]:
    """What changes when the file at a URL does: its size, and a time or tag.

    Raises:
        CaptureError: it cannot be asked.
    """
    fs, path = _file_system(url)
    try:
        fs.invalidate_cache()
        info = fs.info(path)
    except Exception as error:
        raise CaptureError(_why(error), file=url) from None
    keys = ("size", "ETag", "mtime", "LastModified", "last_modified", "updated")
    return tuple(str(info.get(key)) for key in keys)


_LINE: Final = 1 << 16
"""Bytes in which the end of a line is looked for at a time."""


class _RemoteFile:
    """A file of fsspec whose errors are the system's."""

    def __init__(self, file: Any) -> None:
        self._file = file
        size = getattr(file, "size", None)
        self.size: int | None = size if isinstance(size, int) else None

    def read(self, count: int = -1) -> bytes:
        try:
            data: bytes = self._file.read(count)
        except Exception as error:
            raise OSError(_words(error)) from None
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, place: int, whence: int = 0) -> int:
        return int(self._file.seek(place, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def __enter__(self) -> _RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def readline(self, most: int = -1) -> bytes:
        """A line, or ``most`` bytes of one that is longer."""
        if most < 0:
            whole: bytes = self._file.readline()
            return whole
        place, line = self.tell(), b""
        while len(line) < most and (more := self.read(min(_LINE, most - len(line)))):
            line += more
            end = line.find(b"\n")
            if end >= 0:
                self.seek(place + end + 1)
                return line[: end + 1]
        return line

    def __iter__(self) -> Any:
        return iter(self._file)

    def close(self) -> None:
        self._file.close()


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise needs_extra(f"{url}: URLs need", "fsspec", "fleet") from None
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        if "s3fs" in str(error):
            raise needs_extra(f"{url}: S3 needs", "s3fs", "fleet") from None
        raise RocekitError(f"{url}: {_words(error)} ({sys.executable} -m pip install …)") from None
    except Exception as error:
        raise RocekitError(f"{url}: cannot be read: {_words(error)}") from None
    return fs, str(path)


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not a capture"
    if isinstance(error, PermissionError):
        return "may not be read with these credentials"
    return f"cannot be read: {_words(error)}"


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
