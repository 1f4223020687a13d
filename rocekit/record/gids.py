"""The addresses of RDMA devices, read from the kernel's GID tables: once for each device, and by a thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocekit.machine.gid_tables import filled_entries

_DEVICES: Final = Path("/sys/class/infiniband")


class GidTables:
    """The GID tables of port 1 of devices. One has hundreds of files, mostly of empty entries.

    Args:
        devices: the kernel's folder of devices.
    """

    def __init__(self, devices: Path = _DEVICES) -> None:
        self._devices = devices
        self._threads: dict[str, threading.Thread] = {}
        self._known: dict[str, list[str] | None] = {}

    def ready(self, device: str, *, wait_s: float = 0) -> bool:
        """Whether a device's table was read; the first time, reading starts."""
        if device in self._known:
            return True
        thread = self._threads.get(device)
        if thread is None:
            thread = threading.Thread(target=self._read, args=(device,), name="gids", daemon=True)
            self._threads[device] = thread
            thread.start()
        if wait_s:
            thread.join(wait_s)
        return device in self._known

    def of(self, device: str) -> list[str] | None:
        """A device's addresses, without empty entries; None if they are not known."""
        return self._known.get(device)

    def _read(self, device: str) -> None:
        self._known[device] = device_gids(self._devices / device)


def device_gids(folder: Path) -> list[str] | None:
    """A device's addresses from the kernel's GID table of port 1, without the empty ones.

    Args:
        folder: the device's, below /sys/class/infiniband.
    """
    import ipaddress

    found = []
    try:
        for _, value in filled_entries(folder / "ports/1/gids"):
            with suppress(ValueError):
                address = ipaddress.IPv6Address(value)
                found.append(str(address.ipv4_mapped or address))
    except (OSError, ValueError):
        return None
    return list(dict.fromkeys(found))
