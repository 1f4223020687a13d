"""The kernel's folders of counters, read as they are: before a program starts there is no time for more."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

SYSFS_RDMA: Final = "/sys/class/infiniband"
SYSFS_NET: Final = "/sys/class/net"
_SETTING: Final = "lifespan"
"""A setting, and not a counter, in the folder of the counters."""
_OF_PORTS: Final = ("hw_counters", "counters")
_MOST: Final = 16
"""So many devices or interfaces are read all, before it is known which belong together."""


class FolderRead:
    """What the files in a folder had: numbers by name.

    Attributes:
        time_ns: when reading started; took_ns: how long it took.
    """

    __slots__ = ("counts", "time_ns", "took_ns")

    def __init__(self, folder: str) -> None:
        self.time_ns, began = time.time_ns(), time.monotonic_ns()
        self.counts: dict[str, int] = {}
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except OSError:
            names = []
        for name in names:
            value = _read(f"{folder}/{name}")
            if name != _SETTING and value.isascii() and value.isdigit():
                self.counts[name] = int(value)
        self.took_ns = time.monotonic_ns() - began


def _read(path: str) -> bytes:
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(number, 4096).strip()
    except OSError:
        return b""
    finally:
        os.close(number)


def read_all(rdma: str = SYSFS_RDMA, net: str = SYSFS_NET) -> Callable[[str], FolderRead | None] | None:
    """All counters of RDMA devices and interfaces now, by folder; None: too many to read them all."""
    try:
        devices = os.listdir(rdma)  # noqa: PTH208
    except OSError:
        devices = []
    interfaces = os.listdir(net) if devices else []  # noqa: PTH208
    if max(len(devices), len(interfaces)) > _MOST:
        return None
    found: dict[str, FolderRead] = {}
    for device in devices:
        try:
            ports = os.listdir(f"{rdma}/{device}/ports")  # noqa: PTH208
        except OSError:
            ports = []
        folders = [f"{rdma}/{device}/ports/{port}/{kind}" for port in ports for kind in _OF_PORTS]
        found |= {folder: FolderRead(folder) for folder in (*folders, f"{rdma}/{device}/hw_counters")}
    folders = [f"{net}/{interface}/statistics" for interface in interfaces]
    found |= {folder: FolderRead(folder) for folder in folders}
    return found.get
