"""Whether this machine has a processor that nobody wants at this moment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LOAD: Final = "/proc/loadavg"
_GROUPS: Final = Path("/sys/fs/cgroup")
_CPUS: Final = Path("/sys/devices/system/cpu")


def allowed(process: Path = Path("/proc/self/cgroup"), groups: Path = _GROUPS, cpus: Path = _CPUS) -> int:
    """How many cores this process may use: by its mask and the quotas of its control groups.

    Two threads of one core take time from each other, so they count once.
    """
    count = len({_core(cpus, number) for number in os.sched_getaffinity(0)})
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return count
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = groups if not controllers else groups / controllers
        if controllers and "cpu" not in controllers.split(","):
            continue
        inside = own / path.lstrip("/")
        # In a container the path is often that of the host, and the own group is at the top.
        for folder in (inside, *inside.parents):
            if folder == own.parent:
                break
            quota = _quota(folder)
            if quota is not None:
                count = min(count, int(quota))
    return count


def _core(cpus: Path, number: int) -> str:
    """The processors that are one core with this one."""
    try:
        return (cpus / f"cpu{number}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def _quota(folder: Path) -> float | None:
    """The processors that a control group may use (cgroup v2's cpu.max, v1's cfs_quota_us); None: all."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


class SpareProcessors:
    """Tells whether there are as many cores as threads that want one, the asking one included.

    Args:
        count: of cores; by default those that this process may use.
        load: the kernel's file /proc/loadavg.
    """

    def __init__(self, count: int | None = None, load: str = _LOAD) -> None:
        self._count = allowed() if count is None else count
        self._file: int | None = None
        if self._count > 1:
            try:
                self._file = os.open(load, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._file = None

    def __bool__(self) -> bool:
        if self._file is None:
            return False
        try:
            running = os.pread(self._file, 128, 0).split()[3].partition(b"/")[0]
            return int(running) <= self._count
        except (OSError, ValueError, IndexError):
            return False

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
