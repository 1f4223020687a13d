"""Looking at processes of this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


def exists(pid: int) -> bool:
    """Whether a process runs; one that is dead but not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(claim: Any) -> bool:
    """Whether a claim becomes true within a while."""
    end = time.monotonic() + 120
    while not claim():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def command_line(process: Path) -> bytes:
    """The command line of a process, by its folder in /proc."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def status_of(pid: int) -> list[dict[str, str]]:
    """What the kernel says of each thread of a process, by the names in /proc/PID/status."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        found.append({name: value.strip() for name, _, value in (line.partition(":") for line in lines)})
    return found
