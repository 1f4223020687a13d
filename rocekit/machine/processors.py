"""Whether this machine has a processor that nobody wants at this moment."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # to import pathlib takes longer than all of this
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

_LOAD: Final = "/proc/loadavg"
_GROUPS: Final = "/sys/fs/cgroup"
_CPUS: Final = "/sys/devices/system/cpu"


def allowed(
    process: Path | str = "/proc/self/cgroup", groups: Path | str = _GROUPS, cpus: Path | str = _CPUS
) -> int:
    """How many cores this process may use: by its mask and the quotas of its control groups.

    Two threads of one core take time from each other, so they count once.
    """
    count = len({_core(cpus, number) for number in os.sched_getaffinity(0)})
    try:
        lines = _text(process).splitlines()
    except OSError:
        return count
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = os.fspath(groups) if not controllers else f"{groups}/{controllers}"
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path is often that of the host, and the own group is at the top.
        names = [name for name in path.split("/") if name]
        for depth in range(len(names), -1, -1):
            quota = _quota("/".join([own, *names[:depth]]))
            if quota is not None:
                count = min(count, int(quota))
    return count


def _text(path: Path | str) -> str:
    with open(path) as file:  # noqa: PTH123
        return file.read()


def _core(cpus: Path | str, number: int) -> str:
    """The processors that are one core with this one."""
    try:
        return _text(f"{cpus}/cpu{number}/topology/thread_siblings_list").strip()
    except OSError:
        return str(number)


def _quota(folder: str) -> float | None:
    """The processors that a control group may use (cgroup v2's cpu.max, v1's cfs_quota_us); None: all."""
    try:
        if os.path.exists(f"{folder}/cpu.max"):  # noqa: PTH110
            quota, period = _text(f"{folder}/cpu.max").split()
        else:
            quota = _text(f"{folder}/cpu.cfs_quota_us").strip()
            period = _text(f"{folder}/cpu.cfs_period_us").strip()
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
