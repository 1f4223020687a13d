"""New files beside the place that they take when they are complete.

A temporary name cannot be guessed, and is made with O_EXCL and O_NOFOLLOW: in a folder that others may write,
nobody can have another file written through it. Its descriptor holds a lock as long as the process lives, so
that the next run knows the files that a killed process left, and removes them.

Paths are strings here: `rocekit record` waits for this module, and to import pathlib takes longer than all of
it.
"""

from __future__ import annotations

import contextlib
import os
import stat

from rocekit.errors import CaptureError, RocekitError

TYPE_CHECKING = False  # `rocekit record` waits for this module: to import typing takes as long as all of it
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO, Final

_HIDDEN: Final = ".rocekit-"
"""How temporary names begin."""
_MOST_LINKS: Final = 40
"""Symbolic links that are followed at most, as by Linux."""
_BUFFER: Final = 1 << 20


def not_written(error: OSError, name: str | Path) -> OSError | CaptureError:
    """The error to raise if writing ``name`` failed: one that names it, or BrokenPipeError as it is."""
    if isinstance(error, BrokenPipeError):
        return error
    return CaptureError(f"cannot be written: {error.strerror or error}", file=name)


def place_of(out: str | Path) -> Path:
    """The file that a name stands for: the target of a symbolic link; the link stays.

    Raises:
        RocekitError: the link, or a pipe, was put by another user into a folder that everybody may write.
            (The kernel refuses these only where sysctl fs.protected_symlinks says so.)
    """
    from pathlib import Path

    _check_planted(os.fspath(out), out, _MOST_LINKS)
    return Path(out).resolve()


def _check_planted(path: str, out: str | Path, links: int) -> None:
    parts = [os.path.abspath(path)]  # os.path.realpath would follow the links
    while (above := os.path.dirname(parts[-1])) != parts[-1]:
        parts.append(above)
    for part in reversed(parts):
        try:
            own = os.lstat(part)
        except OSError:
            return
        if not (stat.S_ISLNK(own.st_mode) or stat.S_ISFIFO(own.st_mode)):
            continue
        folder = os.stat(os.path.dirname(part))
        for_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if for_all and own.st_uid not in (os.geteuid(), folder.st_uid):
            kind = "link" if stat.S_ISLNK(own.st_mode) else "pipe"
            raise RocekitError(
                f"{out}: {part} is a {kind} of another user, in a folder that everybody may write: "
                "name another file"
            )
        if stat.S_ISLNK(own.st_mode) and links:
            _check_planted(os.path.join(os.path.dirname(part), os.readlink(part)), out, links - 1)


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
        _check_planted(os.fspath(out), out, _MOST_LINKS)
        self._place = os.path.realpath(out)
        self._part: str | None = None
        self._made: str | None = None
        self._done = False
        exists = os.path.exists(self._place)
        special = exists and not os.path.isfile(self._place)
        if special or not os.access(os.path.dirname(self._place), os.W_OK):
            number = os.open(self._place, os.O_WRONLY | os.O_CLOEXEC | (0 if special else os.O_TRUNC))
        elif growing and not exists:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            number = os.open(self._place, flags, 0o666)
            self._made = self._place
        else:
            remove_left_over(os.path.dirname(self._place))
            number, self._part = _make_beside(self._place, growing=growing)
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
            os.replace(self._part, self._place)
        self._done = True

    @property
    def place(self) -> Path:
        """The file's name when it is complete."""
        from pathlib import Path

        return Path(self._place)

    @property
    def kept_in(self) -> Path | None:
        """The file that has what was written, if it is not in its place."""
        from pathlib import Path

        return None if self._done or self._part is None else Path(self._part)

    @property
    def is_empty(self) -> bool:
        """Whether a file was made, and has nothing."""
        try:
            return self._made is not None and os.stat(self._made).st_size == 0
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the file that was made; what was there before stays."""
        self.abandon()
        if self._made is not None and not (self._done and self._made == self._part):
            _unlink(self._made)
        self._done = True

    def abandon(self) -> None:
        """Close the file as it is; it does not take its place, but stays."""
        with contextlib.suppress(OSError):
            self.file.close()

    def discard(self) -> None:
        """Remove what was written; what was there before stays."""
        self.abandon()
        if self._part is not None and not self._done:
            _unlink(self._part)
        self._done = True


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _make_beside(place: str, *, growing: bool) -> tuple[int, str]:
    """A new file in the same folder, locked, with the mode and (if possible) the owner of ``place``."""
    folder, name = os.path.split(place)
    stem, suffix = os.path.splitext(name)
    prefix = f"{stem[:60]}.partial-" if growing else _HIDDEN
    while True:
        import tempfile

        number, part = tempfile.mkstemp(prefix=prefix, suffix=suffix[-20:], dir=folder)
        try:
            _lock(number)
            if os.fstat(number).st_nlink:
                _be_like(number, place)
                return number, part
        except BaseException:
            os.close(number)
            _unlink(part)
            raise
        os.close(number)  # another run took it for left over, before it was locked


def _be_like(number: int, place: str) -> None:
    try:
        old = os.stat(place)
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
        with open("/proc/self/status", encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
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


def remove_left_over(folder: str | Path) -> None:
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
                    os.unlink(name)
        except OSError:
            pass
        finally:
            os.close(number)
