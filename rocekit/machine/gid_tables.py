"""A port's GID table in the kernel's sysfs: hundreds of small files, nearly all of them of empty entries."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def filled_entries(gids: Path | str, pause: Callable[[], None] = lambda: None) -> list[tuple[int, str]]:
    """(index, 128 bits in sysfs' notation) of the entries that hold a GID, in order.

    A table has 256 or 1,024 entries, and a filled one may follow empty ones, so all are read. Each is read
    with three system calls: an ordinary text file takes ten times as long, a second per device where the
    processor is slow.

    Args:
        gids: the port's folder "gids".
        pause: called between two entries.

    Raises:
        OSError: there is no such folder, or it is just going away.
        ValueError: a file in it is no entry.
    """
    found = []
    folder = os.open(gids, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in sorted(os.listdir(folder), key=int):  # noqa: PTH208
            pause()
            value = _read(folder, name)
            if value.strip(b"0:\n"):
                found.append((int(name), value.decode("ascii", "replace").strip()))
    finally:
        os.close(folder)
    return found


def _read(folder: int, name: str) -> bytes:
    # An entry may disappear meanwhile, and an unused one may fail with EINVAL.
    try:
        entry = os.open(name, os.O_RDONLY, dir_fd=folder)
    except OSError:
        return b""
    try:
        return os.read(entry, 64)
    except OSError:
        return b""
    finally:
        os.close(entry)
