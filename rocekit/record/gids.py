"""The addresses of RDMA devices, read from the kernel's GID tables: once for each device, and by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocekit.machine.gid_tables import filled_entries

_DEVICES: Final = Path("/sys/class/infiniband")
_SLICE_S: Final = 0.002
_ONE_IN: Final = 1000
"""A program that needs the processor goes first: reading takes so long at a time, and one part in so many.

Lines wait for it, as long as records have room; then it is no longer put off.
"""


class GidTables:
    """The GID tables of port 1 of devices. One has hundreds of files, mostly of empty entries.

    Args:
        devices: the kernel's folder of devices.
    """

    def __init__(self, devices: Path = _DEVICES) -> None:
        self._devices = devices
        self._freely = threading.Event()
        self._freely.set()
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
            self._freely.set()
            thread.join(wait_s)
        return device in self._known

    def know(self, device: str, addresses: list[str]) -> None:
        """Somebody else has read a device's table."""
        self._known.setdefault(device, addresses)

    def give_way(self, to_others: bool) -> None:
        """Read only now and then from now on, or as fast as possible again."""
        if to_others:
            self._freely.clear()
        else:
            self._freely.set()

    def of(self, device: str) -> list[str] | None:
        """A device's addresses, without empty entries; None if they are not known."""
        return self._known.get(device)

    def _read(self, device: str) -> None:
        self._known[device] = device_gids(self._devices / device, self._pauses())

    def _pauses(self) -> Callable[[], None]:
        began = time.monotonic()

        def pause() -> None:
            nonlocal began
            took = time.monotonic() - began
            if took > _SLICE_S and not self._freely.is_set():
                self._freely.wait(took * _ONE_IN)
                began = time.monotonic()

        return pause


def device_gids(folder: Path, pause: Callable[[], None] = lambda: None) -> list[str] | None:
    """A device's addresses from the kernel's GID table of port 1, without the empty ones.

    Args:
        folder: the device's, below /sys/class/infiniband.
        pause: called between two entries.
    """
    import ipaddress

    found = []
    try:
        for _, value in filled_entries(folder / "ports/1/gids", pause):
            with suppress(ValueError):
                address = ipaddress.IPv6Address(value)
                found.append(str(address.ipv4_mapped or address))
    except (OSError, ValueError):
        return None
    return list(dict.fromkeys(found))
