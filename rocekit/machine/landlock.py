"""Confines this process to the files that it needs, by Landlock, where the kernel has it.

The three system calls are made here: the packages for them on PyPI are trial releases, and none of them is
kept by more than one person. What was opened before stays open. A thread confines itself and those that it
starts. Sources: landlock(7), Linux Documentation/userspace-api/landlock.rst, <linux/landlock.h>.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_ASK_VERSION: Final = 1
_PATH_BENEATH: Final = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << n for n in range(6))
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 7, 1 << 8, 1 << 13, 1 << 14, 1 << 15
_FIRST: Final = (1 << 13) - 1  # all rights of version 1
_SINCE: Final = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_AND_CONNECT: Final = 3  # of TCP, from version 4
_SOCKETS_AND_SIGNALS: Final = 3  # abstract sockets of others, signals to others, from version 6

_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE: Final = (
    _WRITE_FILE | _READ_FILE | _READ_DIR | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
)

SYSTEM: Final = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store", "/proc"),
    *("/sys", "/dev/urandom", "/dev/random", "/dev/zero", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/passwd", "/etc/group", "/etc/hosts"),
    *("/etc/nsswitch.conf", "/etc/host.conf", "/etc/resolv.conf", "/etc/gai.conf", "/etc/services"),
    *("/etc/protocols", "/etc/ssl", "/etc/alternatives", "/etc/fonts", "/etc/terminfo", "/etc/mime.types"),
    *("/etc/wireshark", "/etc/iproute2", "/run/systemd/resolve", "/run/nscd", "/var/lib/sss"),
    "/var/cache/fontconfig",
)
"""What programs and libraries read of a system; no secrets."""
DEVICES: Final = ("/dev/null", "/dev/full", "/dev/tty", "/dev/pts")
"""What programs write to, whatever they write."""


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


_libc: Final[Any] = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """The version of Landlock that this kernel has; 0: none, or it is turned off."""
    if sys.platform != "linux":
        return 0
    return max(
        0, int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION)))
    )


def confine(
    reads: Iterable[str | Path],
    writes: Iterable[str | Path],
    *,
    lists: Iterable[str | Path] = (),
    network: bool = False,
) -> bool:
    """Let this thread, and those that it starts, read and write nothing else from now on.

    Args:
        reads: files, and folders with all that is in them; programs in them may be run.
        writes: the same, to write, make and remove; those that are not there are left out.
        lists: folders whose files' names may be read, and no more of them.
        network: whether TCP connections may be made and waited for.

    Returns:
        Whether it is so; False: this kernel cannot, or does not let this process.
    """
    has = version()
    if not has:
        return False
    handled = _FIRST | sum(right for since, right in _SINCE.items() if has >= since)
    rules = _Rules(
        handled,
        _BIND_AND_CONNECT if has >= 4 and not network else 0,
        _SOCKETS_AND_SIGNALS if has >= 6 else 0,
    )
    ruleset = _libc.syscall(
        _CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return False
    try:
        for path in dict.fromkeys([*map(str, reads), *SYSTEM]):
            _allow(ruleset, path, _READ & handled)
        for path in dict.fromkeys(map(str, lists)):
            _allow(ruleset, path, _READ_DIR)
        for path in dict.fromkeys(map(str, writes)):
            _allow(ruleset, path, _WRITE & handled)
        for path in DEVICES:
            _allow(ruleset, path, (_WRITE | _IOCTL_DEV) & handled)
        return bool(_libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        number = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            rights &= _OF_FILES
        rule = _Beneath(rights, number)
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(number)
