"""A recorded process: its devices, QPs and address handles, from its records so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class RecordedQp:
    """A QP: the part of its lines that names it, and the attributes that its work requests depend on."""

    prefix: str
    transport: str
    signals_all: bool
    local_ip: str | None = None
    sq_psn: int | None = None
    last_post_ns: int = 0


@dataclass(slots=True)
class Process:
    """A process, from its records so far.

    Attributes:
        devices: names by number. qps: by (device, QPN). handles: (local, remote) address by address handle.
        parent: the process that it was forked from, whose devices and QPs it may use.
    """

    host: str
    pid: int
    devices: dict[int, str] = field(default_factory=dict)
    qps: dict[tuple[int, int], RecordedQp] = field(default_factory=dict)
    handles: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    parent: Process | None = None

    def device(self, number: int) -> str:
        """A device's name, ``?`` if it was opened before the recording."""
        name = self.devices.get(number)
        if name is None:
            return "?" if self.parent is None else self.parent.device(number)
        return name

    def qp(self, device: int, number: int) -> RecordedQp | None:
        found = self.qps.get((device, number))
        if found is None and self.parent is not None:
            return self.parent.qp(device, number)
        return found

    def addresses(self, handle: int) -> tuple[str | None, str | None]:
        """The local and the remote address of an address handle."""
        found = self.handles.get(handle)
        if found is None:
            return (None, None) if self.parent is None else self.parent.addresses(handle)
        return found


def pid_namespace() -> int:
    """The PID namespace of this process, 0 if the kernel has none."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def running_with(variable: str) -> list[int]:
    """Processes that were started with an environment variable (``NAME=VALUE``), where they can be seen."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (path / "environ").read_bytes().split(b"\0") and alive(int(path.name)):
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"
