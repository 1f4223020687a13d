"""RDMA devices' ports, their GIDs and interfaces, as sysfs has them: a recording asks for them.

Paths are strings here, and nothing is a dataclass: to import pathlib and dataclasses takes longer than to
read all of this.
"""

from __future__ import annotations

import os

from rocekit.machine.gid_tables import filled_entries
from rocekit.machine.gid_text import address_of, gid_in_sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_GID_TYPES: Final = {"IB/RoCE v1": "RoCE v1"}


class PortGid:
    """An entry of a GID table.

    Attributes:
        index: its index. gid: its bytes.
        type: "RoCE v2", "RoCE v1" or "IB".
        netdev: the network interface that has the address, or None.
    """

    __slots__ = ("gid", "index", "netdev", "type")

    def __init__(self, index: int, gid: bytes, type_: str, netdev: str | None) -> None:
        self.index, self.gid, self.type, self.netdev = index, gid, type_, netdev

    @property
    def ip(self) -> str:
        """The GID as an IP address: IPv4 if it is IPv4-mapped."""
        return address_of(self.gid)


def ports_of(device: str) -> list[int]:
    """The numbers of a device's ports, by its folder.

    Raises:
        OSError, ValueError: it has none, or is just going away.
    """
    return sorted(map(int, os.listdir(f"{device}/ports")))  # noqa: PTH208


def gids_of(port: str) -> list[PortGid]:
    """The filled entries of a port's GID table, by its folder.

    Raises:
        OSError, ValueError: there is none, or it is just going away.
    """
    found = []
    for index, value in filled_entries(f"{port}/gids"):
        netdev = text_of(f"{port}/gid_attrs/ndevs/{index}") or None
        kind = text_of(f"{port}/gid_attrs/types/{index}")
        found.append(PortGid(index, gid_in_sysfs(value), _GID_TYPES.get(kind, kind), netdev))
    return found


def driver_of(device: str) -> str | None:
    """The name of a device's driver, by its folder."""
    driver = f"{device}/device/driver"
    if os.path.exists(driver):  # noqa: PTH110
        return os.path.basename(os.path.realpath(driver))  # noqa: PTH119
    # A software device has no device/driver; rxe has a file "parent".
    return "rxe" if os.path.exists(f"{device}/parent") else None  # noqa: PTH110


def text_of(path: str) -> str:
    """What a file has; nothing where it cannot be read."""
    # An unused GID's attributes fail with EINVAL; a file may disappear meanwhile.
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""
