"""The addresses of RDMA devices, read from the kernel's GID tables: once for each device, and by a thread."""

from __future__ import annotations

import time
from contextlib import suppress

from rocekit.machine.counter_files import SYSFS_RDMA
from rocekit.machine.gid_tables import filled_entries
from rocekit.machine.gid_text import address_of, gid_in_sysfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path
    from typing import Final

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

    def __init__(self, devices: Path | str = SYSFS_RDMA) -> None:
        self._devices = devices
        self._freely: threading.Event | None = None
        """Set while reading need not give way; made when the first table is to be read."""
        self._gives_way = False
        self._threads: dict[str, threading.Thread] = {}
        self._known: dict[str, list[str] | None] = {}

    def ready(self, device: str, *, wait_s: float = 0) -> bool:
        """Whether a device's table was read; the first time, reading starts."""
        if device in self._known:
            return True
        import threading

        if self._freely is None:
            self._freely = threading.Event()
            self.give_way(self._gives_way)
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
        self._gives_way = to_others
        if self._freely is None:
            return
        if to_others:
            self._freely.clear()
        else:
            self._freely.set()

    def of(self, device: str) -> list[str] | None:
        """A device's addresses, without empty entries; None if they are not known."""
        return self._known.get(device)

    def _read(self, device: str) -> None:
        self._known[device] = device_gids(f"{self._devices}/{device}", self._pauses())

    def _pauses(self) -> Callable[[], None]:
        began = time.monotonic()

        def pause() -> None:
            nonlocal began
            took = time.monotonic() - began
            if took > _SLICE_S and self._freely is not None and not self._freely.is_set():
                self._freely.wait(took * _ONE_IN)
                began = time.monotonic()

        return pause


def device_gids(folder: Path | str, pause: Callable[[], None] = lambda: None) -> list[str] | None:
    """A device's addresses from the kernel's GID table of port 1, without the empty ones.

    Args:
        folder: the device's, below /sys/class/infiniband.
        pause: called between two entries.
    """
    found = []
    try:
        for _, value in filled_entries(f"{folder}/ports/1/gids", pause):
            with suppress(ValueError):
                found.append(address_of(gid_in_sysfs(value)))
    except (OSError, ValueError):
        return None
    return list(dict.fromkeys(found))
