"""Finding the interposer's library where it was built before: the program to record waits for this.

So paths are strings here: to import pathlib would take as long as all of it.
"""

from __future__ import annotations

import os
import stat
import zlib

from rocekit.record.interposer_sources import FOLDER, MARK, read, sources_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
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


def built_library() -> str | None:
    """A library that can be loaded without more ado, into every program of this user; None: see ``build``."""
    if not runs_here():
        return None
    path = next((path for path in (packaged(), cached()) if path is not None and trusted(path)), None)
    return path if path is None or os.geteuid() != 0 or open_to_all(path) else None


def cache_folder() -> str:
    """Where built libraries are kept, by the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "rocekit")


def packaged() -> str | None:
    """The library in the package, unless it was built from other sources than those beside it.

    It contains the checksum of its sources: the times of files that pip unpacked are useless for this.
    """
    folder = os.path.dirname(FOLDER)
    names = [name for name in os.listdir(folder) if name.startswith("_interposer")]
    for name in sorted(name for name in names if name.endswith(".so")):
        path = f"{folder}/{name}"
        if f"{MARK}{sources_digest()}".encode() in read(path):
            return path
    return None


def cached() -> str:
    """Where the library of these sources is or will be, on this machine."""
    digest = f"{sources_digest()}{zlib.crc32(' '.join(FLAGS).encode()):08x}"
    return os.path.join(cache_folder(), f"interposer-{digest}-{os.uname().machine}.so")


def trusted(path: Path | str) -> bool:
    """Whether it exists, and it and its folder belong to this user: programs will run its code."""
    try:
        found, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return False
    owners = {found.st_uid, folder.st_uid}
    return stat.S_ISREG(found.st_mode) and owners <= {0, os.geteuid()} and not folder.st_mode & stat.S_IWOTH


def open_to_all(path: Path | str) -> bool:
    """Whether everybody may read a file, by the modes of it and of the folders above."""
    if not os.stat(path).st_mode & stat.S_IROTH:
        return False
    above, folder = "", os.path.dirname(os.path.abspath(path))
    while folder != above:
        if not os.stat(folder).st_mode & stat.S_IXOTH:
            return False
        above, folder = folder, os.path.dirname(folder)
    return True
