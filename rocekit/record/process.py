"""A recorded process: its devices, QPs and address handles, from its records so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rocekit.record.start import alive, pid_namespace


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


def going_on(recorded: Iterable[tuple[int, int]], folder: Path) -> tuple[list[int], list[int]]:
    """Processes that still run, and those of which nobody here can know.

    Args:
        recorded: their numbers and PID namespaces.
        folder: of the rings; also who was told of it and opened no device may run.
    """
    ours = pid_namespace()
    known = list(recorded)
    running = {pid for pid, namespace in known if namespace in (0, ours) and alive(pid)}
    running.update(running_with(f"ROCEKIT_RECORD_FOLDER={folder}"))
    return sorted(running), [pid for pid, namespace in known if namespace not in (0, ours)]
