"""Finding the interposer's library, or building it.

A wheel built on a machine with a C compiler and rdma-core's headers contains it. Otherwise it is compiled
when it is first needed, into the user's cache, by the compiler of this machine; without one, the error names
what is missing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocekit.errors import RocekitError
from rocekit.record import built
from rocekit.record.built import FLAGS, open_to_all, runs_here, trusted
from rocekit.record.interposer_sources import FOLDER

HEADERS: Final = {
    "infiniband/verbs.h": "libibverbs-dev",
    "rdma/rdma_cma.h": "librdmacm-dev",
}
"""The headers that it needs beside the C library's, and their Debian packages."""
SOURCES: Final = Path(FOLDER)
NCCL_SOURCES: Final = SOURCES.parent / "nccl"
_LIMIT_S: Final = 120


class InterposerError(RocekitError):
    """There is no interposer, and it cannot be built."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where the library is, or why there is none: what is missing, and its packages."""

    path: Path | None
    obstacle: str | None = None
    packages: tuple[str, ...] = ()
    can_build: bool = field(default=False)


def packaged() -> Path | None:
    """The library in the package, unless it was built from other sources than those beside it."""
    path = built.packaged()
    return None if path is None else Path(path)


def cached() -> Path:
    """Where the library of these sources is or will be, on this machine."""
    return Path(built.cached())


def fallback() -> Path:
    """Where the library goes if the cache cannot be written, as in a container: until the next boot.

    Also where root puts one that other users' programs can load.
    """
    return Path(tempfile.gettempdir()) / f"rocekit-{os.geteuid()}" / cached().name


def _for_everybody(path: Path) -> Path:
    """The library where a program can load it that root starts and that is somebody else by then: setpriv.

    Root's own cache is hidden from others as a rule. Where no copy can be put, it is the path itself.
    """
    if os.geteuid() != 0 or open_to_all(path):
        return path
    copy = fallback()
    try:
        if not trusted(copy):
            _own_folder(copy.parent)
            with tempfile.TemporaryDirectory(dir=copy.parent, prefix="copy-") as folder:
                made = Path(folder) / copy.name
                shutil.copyfile(path, made)
                made.chmod(0o755)
                made.rename(copy)
        copy.parent.chmod(0o755)
        may_run = not os.statvfs(copy).f_flag & os.ST_NOEXEC
    except OSError:
        return path
    return copy if may_run and open_to_all(copy) else path


def _own_folder(path: Path) -> None:
    """Make a folder, or check that it belongs to this user."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to somebody else", str(path))


def compiler() -> str | None:
    """The C compiler: $CC's, or the first of cc, gcc and clang that there is."""
    chosen = os.environ.get("CC")
    names = [shlex.split(chosen)[0]] if chosen and chosen.strip() else ["cc", "gcc", "clang"]
    return next((found for name in names if (found := shutil.which(name))), None)


def look() -> Found:
    """Where the library is, without building it."""
    if not runs_here():
        return Found(None, "recording programs needs Linux and glibc")
    for path in (packaged(), cached(), fallback()):
        if path is not None and trusted(path):
            return Found(path)
    cc = compiler()
    if cc is None:
        return Found(None, "no C compiler", ("gcc", "libc6-dev", *HEADERS.values()))
    missing = [header for header in HEADERS if not _has_header(cc, header)]
    if missing:
        return Found(None, f"no {' and no '.join(missing)}", tuple(HEADERS[header] for header in missing))
    return Found(None, None, (), can_build=True)


def _has_header(cc: str, header: str) -> bool:
    try:
        done = subprocess.run(
            [cc, "-E", "-xc", "-o", os.devnull, "-"],
            input=f"#include <{header}>\n".encode(),
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def interposer() -> Path:
    """The library's path; it is built first if necessary.

    Raises:
        InterposerError: there is none and it cannot be built; says what is missing.
    """
    found = look()
    if found.path is not None:
        return _for_everybody(found.path)
    if not found.can_build:
        fix = (
            f": apt-get install --no-install-recommends {' '.join(found.packages)}" if found.packages else ""
        )
        raise InterposerError(f"the interposer is not built, and {found.obstacle}{fix}")
    obstacles = []
    for path in (cached(), fallback()):
        try:
            _own_folder(path.parent)
            build(path)
        except OSError as error:
            obstacles.append(f"{error.filename or path.parent}: {error.strerror or error}")
        else:
            return _for_everybody(path)
    raise InterposerError(
        f"the interposer cannot be put anywhere ({'; '.join(obstacles)}): "
        "set XDG_CACHE_HOME to a folder of your own"
    )


def build(path: Path) -> None:
    """Compile the interposer to ``path``, atomically.

    Raises:
        InterposerError: the compiler failed; has its first error.
        OSError: the folder cannot be written.
    """
    more = (f"-Wl,--version-script={SOURCES / 'exports.map'}",)
    compile_library(path, sorted(SOURCES.glob("*.c")), more, "the interposer")


def compile_library(path: Path, sources: Sequence[Path], options: Sequence[str], what: str) -> None:
    """Compile C sources to a library, atomically.

    Raises:
        InterposerError: the compiler failed, or there is none; has its first error.
        OSError: the folder cannot be written.
    """
    cc = compiler()
    if cc is None:
        raise InterposerError(
            f"{what} is not built, and there is no C compiler: apt-get install gcc libc6-dev"
        )
    extra = shlex.split(os.environ.get("CC", ""))[1:]
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        made = Path(folder) / path.name
        command = [cc, *extra, *FLAGS, *options, "-o", str(made), *map(str, sources), "-ldl", "-lpthread"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise InterposerError(f"{cc} did not end within {_LIMIT_S} s") from None
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise InterposerError(f"{cc} could not build {what}: {said}")
        made.rename(path)


def nccl_profiler() -> Path:
    """NCCL's profiler plug-in; it is built first if necessary.

    Raises:
        InterposerError: it cannot be built; says what is missing.
    """
    hashed = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted(NCCL_SOURCES.glob("*.[ch]")):
        hashed.update(source.read_bytes())
    name = f"librocekit-nccl-{hashed.hexdigest()[:16]}-{platform.machine()}.so"
    obstacles = []
    for path in (Path(built.cache_folder(), name), fallback().parent / name):
        if trusted(path):
            return path
    for path in (Path(built.cache_folder(), name), fallback().parent / name):
        try:
            _own_folder(path.parent)
            compile_library(path, sorted(NCCL_SOURCES.glob("*.c")), (), "NCCL's profiler plug-in")
        except OSError as error:
            obstacles.append(f"{error.filename or path.parent}: {error.strerror or error}")
        else:
            return path
    raise InterposerError(
        f"NCCL's profiler plug-in cannot be put anywhere ({'; '.join(obstacles)}): "
        "set XDG_CACHE_HOME to a folder of your own"
    )
