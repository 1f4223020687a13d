"""A recorded process: its devices, QPs and address handles, from its records so far."""

from __future__ import annotations

import os

from rocekit.record.start import alive, pid_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import TypeAlias

    Addresses: TypeAlias = tuple[str | None, str | None]


class RecordedQp:
    """A QP: the part of its lines that names it, and the attributes that its work requests depend on."""

    __slots__ = ("last_post_ns", "local_ip", "prefix", "signals_all", "sq_psn", "transport")

    def __init__(self, prefix: str, transport: str, signals_all: bool) -> None:
        self.prefix, self.transport, self.signals_all = prefix, transport, signals_all
        self.local_ip: str | None = None
        self.sq_psn: int | None = None
        self.last_post_ns = 0


class Process:
    """A process, from its records so far.

    Attributes:
        devices: names by number. qps: by (device, QPN). handles: (local, remote) address by address handle.
        parent: the process that it was forked from, whose devices and QPs it may use.
    """

    __slots__ = ("devices", "handles", "host", "parent", "pid", "qps")

    def __init__(self, host: str, pid: int, devices: dict[int, str] | None = None) -> None:
        self.host, self.pid = host, pid
        self.devices: dict[int, str] = devices or {}
        self.qps: dict[tuple[int, int], RecordedQp] = {}
        self.handles: dict[int, Addresses] = {}
        self.parent: Process | None = None

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

    def addresses(self, handle: int) -> Addresses:
        """The local and the remote address of an address handle."""
        found = self.handles.get(handle)
        if found is None:
            return (None, None) if self.parent is None else self.parent.addresses(handle)
        return found


def running_with(variable: str) -> list[int]:
    """Processes that were started with an environment variable (``NAME=VALUE``), where they can be seen."""
    found = []
    wanted = variable.encode()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name[0].isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                environment = file.read()
            # Most have no such variable: to look at each of theirs would take longer than all else.
            if wanted in environment and wanted in environment.split(b"\0") and alive(int(name)):
                found.append(int(name))
        except OSError:
            continue
    return sorted(found)


def going_on(recorded: Iterable[tuple[int, int]], folder: Path | str) -> tuple[list[int], list[int]]:
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
