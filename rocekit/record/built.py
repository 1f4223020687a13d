"""Finding the interposer's library where it was built before: the program to record waits for this."""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path

from rocekit.record.interposer_sources import MARK, SOURCES, read, sources_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

FLAGS: Final = (
    *("-std=gnu11", "-O2", "-fexceptions", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-Wl,-z,now,-z,relro", "-Wl,-z,nodelete"),
)
"""A thread that is cancelled in a recorded call unwinds through it (-fexceptions)."""


def runs_here() -> bool:
    """Whether this is Linux with glibc, of which the interposer knows how it loads libraries."""
    try:
        return os.uname().sysname == "Linux" and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):
        return False


def built_library() -> Path | None:
    """A library that can be loaded without more ado, into every program of this user; None: see ``build``."""
    if not runs_here():
        return None
    path = next((path for path in (packaged(), cached()) if path is not None and trusted(path)), None)
    return path if path is None or os.geteuid() != 0 or open_to_all(path) else None


def cache_folder() -> Path:
    """Where built libraries are kept, by the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rocekit"


def packaged() -> Path | None:
    """The library in the package, unless it was built from other sources than those beside it.

    It contains the checksum of its sources: the times of files that pip unpacked are useless for this.
    """
    names = [name for name in os.listdir(SOURCES.parent) if name.startswith("_interposer")]  # noqa: PTH208
    for name in sorted(name for name in names if name.endswith(".so")):
        path = SOURCES.parent / name
        if f"{MARK}{sources_digest()}".encode() in read(str(path)):
            return path
    return None


def cached() -> Path:
    """Where the library of these sources is or will be, on this machine."""
    digest = f"{sources_digest()}{zlib.crc32(' '.join(FLAGS).encode()):08x}"
    return cache_folder() / f"interposer-{digest}-{os.uname().machine}.so"


def trusted(path: Path) -> bool:
    """Whether it exists, and it and its folder belong to this user: programs will run its code."""
    try:
        found, folder = path.lstat(), path.parent.stat()
    except OSError:
        return False
    owners = {found.st_uid, folder.st_uid}
    return stat.S_ISREG(found.st_mode) and owners <= {0, os.geteuid()} and not folder.st_mode & stat.S_IWOTH


def open_to_all(path: Path) -> bool:
    """Whether everybody may read a file, by the modes of it and of the folders above."""
    return bool(path.stat().st_mode & stat.S_IROTH) and all(
        folder.stat().st_mode & stat.S_IXOTH for folder in path.absolute().parents
    )
