"""Gives up rights that a command does not need any more: root's, its capabilities, and ways to get others.

Files of others may be made to attack whoever reads them. So a command that root runs becomes the user whom it
works for, once what only root may open is open. Where that user may not read or write one of the command's
files, it stays root without capabilities; where that is not enough either, it keeps those for files only.

Capabilities belong to threads, and these calls change the one that makes them: a command calls this before it
starts others. Sources: capabilities(7), credentials(7), prctl(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

# <linux/prctl.h>
_CAPBSET_DROP, _NO_NEW_PRIVS, _AMBIENT, _AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_MOST_CAPABILITIES: Final = 64
# <linux/capability.h>
_VERSION_3: Final = 0x20080522
_FOWNER: Final = 1 << 3
_FOR_READING: Final = {2: "CAP_DAC_READ_SEARCH"}
_FOR_WRITING: Final = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 3: "CAP_FOWNER"}
_NO_ID: Final = (1 << 32) - 1
_ID_DIGITS: Final = len(str(_NO_ID))


class User(NamedTuple):
    """A user whom root works for."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str | None = None
    home: str | None = None


class GivenUp(NamedTuple):
    """What came of it.

    Attributes:
        user: who this process is now, if root was given up.
        kept: the names of the capabilities that are left.
    """

    user: User | None
    kept: tuple[str, ...]


def named_user(name: str) -> User:
    """A user by name or number.

    Raises:
        KeyError: there is none of this name.
    """
    import pwd

    uid = _id(name)
    if uid is not None:
        return _user(uid, None)
    return _user(pwd.getpwnam(name).pw_uid, None)


def calling_user(environment: Mapping[str, str] = os.environ) -> User | None:
    """The user who called sudo; None where root was not got by it, or root called it."""
    uid, gid = _id(environment.get("SUDO_UID", "")), _id(environment.get("SUDO_GID", ""))
    return _user(uid, gid) if uid else None


def _id(text: str) -> int | None:
    """The number of a user or a group; None if it is none. The largest one changes nothing (setuid(2))."""
    if not text.isascii() or not text.isdigit() or len(text) > _ID_DIGITS:
        return None
    return int(text) if int(text) < _NO_ID else None


def _user(uid: int, gid: int | None) -> User:
    import pwd

    try:
        entry = pwd.getpwuid(uid)
    except (KeyError, OverflowError):  # containers often have no entry
        own = uid if gid is None else gid
        return User(uid, own, (own,))
    own = entry.pw_gid if gid is None else gid
    try:
        groups = tuple(os.getgrouplist(entry.pw_name, own))
    except OSError:
        groups = (own,)
    return User(uid, own, groups, entry.pw_name, entry.pw_dir)


def give_up(
    reads: Iterable[str | Path] = (),
    writes: Iterable[str | Path] = (),
    *,
    user: User | None = None,
    insist: bool = False,
) -> GivenUp:
    """Become ``user``, if this is root and the user may do what is needed, and give up all capabilities.

    Args:
        reads: files and folders that are still to be opened, also by their names.
        writes: files that are still to be made or written, and folders to make files in.
        user: None: the user stays; root without capabilities reads and writes what belongs to root.
        insist: become the user in any case; what may not be read or written is then an error where it is.

    Raises:
        OSError: with ``insist``, if this process may not become the user.
    """
    _prctl(_NO_NEW_PRIVS, 1)
    if os.geteuid() == 0 or _capabilities().permitted:
        _prctl(_AMBIENT, _AMBIENT_CLEAR_ALL)
        for number in range(_MOST_CAPABILITIES):
            if not _prctl(_CAPBSET_DROP, number):
                break  # beyond the last, or not allowed: no_new_privs does not let programs have them either
    if os.geteuid() != 0:
        _set_capabilities(0)
        return GivenUp(None, ())
    if insist and user is not None:
        _become(user)
        return GivenUp(user, ())
    # What root itself cannot open is an error, whoever tries it.
    need = _Need(
        [path for path in map(str, reads) if _may_read(path)],
        [path for path in map(str, writes) if _may_write(path)],
    )
    with suppress(OSError):  # no right to become another user, or this one is not known here
        if user is not None and user.uid and _is_enough(need, user):
            _become(user)
            return GivenUp(user, ())
    with _without_capabilities():
        reads_less = not all(map(_may_read, need.reads))
        writes_less = not all(map(_may_write, need.writes))
    keep = (_FOR_READING if reads_less else {}) | (_FOR_READING | _FOR_WRITING if writes_less else {})
    mask = sum(1 << number for number in keep) & _capabilities().permitted
    _set_capabilities(mask)
    return GivenUp(None, tuple(name for number, name in keep.items() if mask >> number & 1))


def may(user: User, reads: Iterable[str | Path], writes: Iterable[str | Path]) -> bool:
    """Whether root can become this user, and the user may read and write all that root may of these."""
    need = _Need(
        [path for path in map(str, reads) if _may_read(path)],
        [path for path in map(str, writes) if _may_write(path)],
    )
    try:
        return bool(user.uid) and _is_enough(need, user)
    except OSError:
        return False


class _Need(NamedTuple):
    reads: Sequence[str]
    writes: Sequence[str]


def _is_enough(need: _Need, user: User) -> bool:
    """Whether a user may read and write all that is needed; tried as this user.

    Raises:
        OSError: this process may not become the user.
    """
    groups, gid = os.getgroups(), os.getegid()
    try:
        os.setgroups(user.groups)
        os.setegid(user.gid)
        os.seteuid(user.uid)
        return all(map(_may_read, need.reads)) and all(map(_may_write, need.writes))
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


def _become(user: User) -> None:
    """Be another user from now on, without a way back: this gives up all capabilities, too."""
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    _set_capabilities(0)
    for name, value in (("HOME", user.home), ("USER", user.name), ("LOGNAME", user.name)):
        if value is not None:
            os.environ[name] = value


def _may_read(path: str) -> bool:
    """Whether these rights are enough to read a file, or to list a folder, as far as it is there."""
    try:
        kind = _status(path).st_mode
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            return True
        return _may(path, os.R_OK)  # to open a pipe or a device does something
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)


def _may_write(path: str) -> bool:
    """Whether these rights are enough to write a file, and to replace it, or to make files in a folder."""
    try:
        place = os.path.realpath(path)
        try:
            own = _status(place)
        except FileNotFoundError:
            return _may_make(os.path.split(place)[0])
        if stat.S_ISDIR(own.st_mode):
            return _may(place, os.W_OK | os.X_OK)
        folder = os.path.split(place)[0]
        if not stat.S_ISREG(own.st_mode) or not _may(folder, os.W_OK | os.X_OK):
            return _may(place, os.W_OK)
        beside = _status(folder)
    except OSError:
        return False
    # In a folder such as /tmp only the owner of a file, or of the folder, may replace it.
    owner = os.geteuid() in (own.st_uid, beside.st_uid) or _capabilities().effective & _FOWNER
    return bool(owner or not beside.st_mode & stat.S_ISVTX)


def _may_make(folder: str) -> bool:
    """Whether a folder, or the folders that it will be in, may be made."""
    try:
        _status(folder)
    except FileNotFoundError:
        return _may_make(os.path.split(folder)[0])
    return _may(folder, os.W_OK | os.X_OK)


def _status(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116  pathlib hides some errors


def _may(path: str, how: int) -> bool:
    """What the kernel says of an access; of root without capabilities also what the modes say.

    Before Linux 5.8 the C library answers itself, and takes every root for one with all rights.
    """
    if not os.access(path, how, effective_ids=os.access in os.supports_effective_ids):
        return False
    if os.geteuid() or _capabilities().effective:
        return True
    own = _status(path)
    if own.st_uid == 0:
        bits = own.st_mode >> 6
    elif own.st_gid in (os.getegid(), *os.getgroups()):
        bits = own.st_mode >> 3
    else:
        bits = own.st_mode
    return bits & how == how


# -- the kernel's calls


class _Sets(NamedTuple):
    effective: int
    permitted: int


_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)
_prctl_of_libc: Final[Any] = _libc.prctl
_prctl_of_libc.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


def _prctl(option: int, value: int) -> bool:
    return bool(_prctl_of_libc(option, value, 0, 0, 0) == 0)


def _capabilities() -> _Sets:
    """The capabilities of this thread."""
    head, data = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if _libc.capget(head, data):
        raise OSError(ctypes.get_errno(), "capget")
    return _Sets(data[0] | data[3] << 32, data[1] | data[4] << 32)


def _set_capabilities(effective: int, permitted: int | None = None) -> None:
    """Set the capabilities of this thread: effective ones, and permitted if others; inheritable ones go."""
    permitted = effective if permitted is None else permitted
    low, high = ((1 << 32) - 1), 32
    head = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(
        *(effective & low, permitted & low, 0),
        *(effective >> high, permitted >> high, 0),
    )
    if _libc.capset(head, data):
        raise OSError(ctypes.get_errno(), "capset")


@contextmanager
def _without_capabilities() -> Iterator[None]:
    """Try what is possible without capabilities; they come back."""
    have = _capabilities()
    _set_capabilities(0, have.permitted)
    try:
        yield
    finally:
        _set_capabilities(have.effective, have.permitted)
