"""What a stretch of a program costs: processor time, context switches, and what the machine did meanwhile."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
#: The columns of a line of /proc/stat that are time spent waiting: idle and iowait (proc(5)).
_IDLE: Final = (3, 4)
#: The columns that are counted in others already: guest and guest_nice.
_COLUMNS: Final = 8


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of a stretch.

    Attributes:
        cpu_ns: user and system time of the process, all its threads (getrusage).
        voluntary, involuntary: its context switches: it waited, or was taken off the CPU.
        elapsed_ns: how long it took.
        machine_ns: busy time of all CPUs in it, other programs' too, in steps of 10 ms; None: unknown.
    """

    cpu_ns: int
    voluntary: int
    involuntary: int
    elapsed_ns: int
    machine_ns: int | None

    @property
    def switches(self) -> int:
        return self.voluntary + self.involuntary


class UsageMeter:
    """Measures from its creation on."""

    def __init__(self) -> None:
        self._machine = _busy_ns()
        self._before = resource.getrusage(resource.RUSAGE_SELF)
        self._started = time.perf_counter_ns()

    def stop(self) -> Usage:
        """The usage since the start."""
        elapsed = time.perf_counter_ns() - self._started
        before, after = self._before, resource.getrusage(resource.RUSAGE_SELF)
        machine = _busy_ns()
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Usage(
            round(cpu * 1e9),
            after.ru_nvcsw - before.ru_nvcsw,
            after.ru_nivcsw - before.ru_nivcsw,
            elapsed,
            None if machine is None or self._machine is None else machine - self._machine,
        )


def _busy_ns() -> int | None:
    """Time that all CPUs together have not been idle since the machine started."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        columns = [int(n) for n in _STAT.read_text().split("\n", 1)[0].split()[1:]][:_COLUMNS]
        busy = sum(columns) - sum(columns[i] for i in _IDLE)
        return busy * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return None
