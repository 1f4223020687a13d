"""New files beside the place that they take when they are complete.

A temporary name cannot be guessed, and is made with O_EXCL and O_NOFOLLOW: in a folder that others may write,
nobody can have another file written through it. Its descriptor holds a lock as long as the process lives, so
that the next run knows the files that a killed process left, and removes them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from rocekit.errors import RocekitError

TYPE_CHECKING = False  # `rocekit record` waits for this module: to import typing takes as long as all of it
if TYPE_CHECKING:
    from typing import BinaryIO, Final

_HIDDEN: Final = ".rocekit-"
"""How temporary names begin."""
_MOST_LINKS: Final = 40
"""Symbolic links that are followed at most, as by Linux."""
_BUFFER: Final = 1 << 20


def place_of(out: str | Path) -> Path:
    """The file that a name stands for: the target of a symbolic link; the link stays.

    Raises:
        RocekitError: the link, or a pipe, was put by another user into a folder that everybody may write.
            (The kernel refuses these only where sysctl fs.protected_symlinks says so.)
    """
    _check_planted(Path(out), Path(out), _MOST_LINKS)
    return Path(out).resolve()


def _check_planted(path: Path, out: str | Path, links: int) -> None:
    path = Path(os.path.abspath(path))  # noqa: PTH100  Path.resolve would follow the links
    for part in (*reversed(path.parents), path):
        try:
            own = part.lstat()
        except OSError:
            return
        if not (stat.S_ISLNK(own.st_mode) or stat.S_ISFIFO(own.st_mode)):
            continue
        folder = part.parent.stat()
        for_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if for_all and own.st_uid not in (os.geteuid(), folder.st_uid):
            kind = "link" if stat.S_ISLNK(own.st_mode) else "pipe"
            raise RocekitError(
                f"{out}: {part} is a {kind} of another user, in a folder that everybody may write: "
                "name another file"
            )
        if stat.S_ISLNK(own.st_mode) and links:
            _check_planted(part.parent / part.readlink(), out, links - 1)


class NewFile:
    """A file that is being written, and that then takes its place.

    Where no file can be made beside ``out`` (a device, a pipe, a folder without the right to write), ``out``
    itself is written.

    Args:
        out: the file's name.
        growing: people follow this file, and keep what it has if it does not become whole: packets and events
            of now, which do not come again. Where there is no ``out`` yet, it is written itself; else a file
            whose name says that it is a part.

    Attributes:
        file: open for writing; errors of it name ``out``.

    Raises:
        OSError: it cannot be made.
        RocekitError: see :func:`place_of`.
    """

    def __init__(self, out: str | Path, *, growing: bool = False) -> None:
        self.place = place_of(out)
        self._part: Path | None = None
        self._made: Path | None = None
        self._done = False
        exists = self.place.exists()
        special = exists and not self.place.is_file()
        if special or not os.access(self.place.parent, os.W_OK):
            number = os.open(self.place, os.O_WRONLY | os.O_CLOEXEC | (0 if special else os.O_TRUNC))
        elif growing and not exists:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            number = os.open(self.place, flags, 0o666)
            self._made = self.place
        else:
            remove_left_over(self.place.parent)
            number, self._part = _make_beside(self.place, growing=growing)
            self._made = self._part
        # The name of the result, not of the part, is in errors.
        self.file: BinaryIO = open(out, "wb", _BUFFER, opener=lambda _name, _flags: number)  # noqa: SIM115

    def close(self) -> None:
        """Write out what is in memory; the file does not take its place yet.

        Raises:
            OSError: it cannot be written.
        """
        if self.file.closed:
            return
        try:
            self.file.flush()
        finally:
            # A file system with a quota, or on the network, may refuse as late as this.
            self.file.close()

    def take_place(self) -> None:
        """Replace the file that was there.

        Raises:
            OSError: that is not possible.
        """
        if self._part is not None and not self._done:
            self._part.replace(self.place)
        self._done = True

    @property
    def kept_in(self) -> Path | None:
        """The file that has what was written, if it is not in its place."""
        return None if self._done else self._part

    @property
    def is_empty(self) -> bool:
        """Whether a file was made, and has nothing."""
        try:
            return self._made is not None and self._made.stat().st_size == 0
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file that was made; what was there before stays."""
        self.abandon()
        if self._made is not None and not (self._done and self._made == self._part):
            self._made.unlink(missing_ok=True)
        self._done = True

    def abandon(self) -> None:
        """Close the file as it is; it does not take its place, but stays."""
        with contextlib.suppress(OSError):
            self.file.close()

    def discard(self) -> None:
        """Remove what was written; what was there before stays."""
        self.abandon()
        if self._part is not None and not self._done:
            self._part.unlink(missing_ok=True)
        self._done = True


def _make_beside(place: Path, *, growing: bool) -> tuple[int, Path]:
    """A new file in the same folder, locked, with the mode and (if possible) the owner of ``place``."""
    prefix = f"{place.stem[:60]}.partial-" if growing else _HIDDEN
    while True:
        import tempfile

        number, name = tempfile.mkstemp(prefix=prefix, suffix=place.suffix[-20:], dir=place.parent)
        part = Path(name)
        try:
            _lock(number)
            if os.fstat(number).st_nlink:
                _be_like(number, place)
                return number, part
        except BaseException:
            os.close(number)
            part.unlink(missing_ok=True)
            raise
        os.close(number)  # another run took it for left over, before it was locked


def _be_like(number: int, place: Path) -> None:
    try:
        old = place.stat()
    except FileNotFoundError:
        os.fchmod(number, 0o666 & ~_umask())
        return
    mine = os.fstat(number)
    if (old.st_uid, old.st_gid) != (mine.st_uid, mine.st_gid):
        for uid in (old.st_uid, -1):
            try:
                os.fchown(number, uid, old.st_gid)
            except OSError:
                continue
            break
    with contextlib.suppress(OSError):  # file systems without modes
        os.fchmod(number, old.st_mode & 0o777)


def _umask() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _lock(number: int) -> None:
    try:
        import fcntl

        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        pass  # without locks nobody takes it for left over, see below


def remove_left_over(folder: Path) -> None:
    """Remove the temporary files of this user in a folder, whose processes have been killed."""
    try:
        import fcntl

        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if entry.name.startswith(_HIDDEN)]
    except (ImportError, OSError):
        return
    for name in found:
        try:
            number = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            own = os.fstat(number)
            if stat.S_ISREG(own.st_mode) and own.st_uid == os.geteuid():
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its process has ended
                if os.path.samestat(own, os.lstat(name)):
                    Path(name).unlink()
        except OSError:
            pass
        finally:
            os.close(number)
