"""The events of the kernel's connection managers, for every process, from their tracepoints.

``rdma_cma`` is the RDMA connection manager (addresses, events, queue pairs), ``ib_cma`` the one below it
(messages, states, reasons for rejections). They are read from a tracing instance made for this, so that other
tracing is not affected; it is removed at the end. Sources: Linux Documentation/trace/ftrace.rst; for the
events the drivers' cma_trace.h and cm_trace.h.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocekit.errors import RocekitError

GROUPS: Final = ("rdma_cma", "ib_cma")
_PLACES: Final = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_INSTANCE: Final = "rocekit-"
_BUFFER_KB: Final = 1024

_LINE = re.compile(
    r"\s*(?P<process>.+)-(?P<pid>\d+)\s+\[\d+\]\s+(?:\S+\s+)?(?P<seconds>\d+)\.(?P<part>\d+): "
    r"(?P<type>\w+): (?P<text>.*)"
)
_PAIR = re.compile(r"([\w.]+)=(\S+)")
_EVENT = re.compile(r"tos=\d+ ([A-Z][A-Z_]+) \((\d+)(?:/(-?\d+))?\)")
_ADDRESS = re.compile(r"\[?([0-9a-fA-F:.]+?)\]?:(\d+)")
_LOST = re.compile(r"CPU:\d+ \[LOST (\d+) EVENTS\]")


class TracingError(RocekitError):
    """The kernel's tracepoints cannot be read."""


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """An event of a tracepoint: journal fields, and its time by the monotonic clock."""

    mono_ns: int
    pid: int
    fields: dict[str, Any]


def parse(line: str) -> KernelEvent | None:
    """The event in a line of ``trace_pipe``; None if the line has none."""
    found = _LINE.match(line)
    if found is None:
        return None
    text = found["text"].strip()
    pairs = dict(_PAIR.findall(text))
    fields: dict[str, Any] = {"type": found["type"], "process": found["process"].strip(), "text": text}
    for side, key in (("local", "src"), ("remote", "dst")):
        address = _ADDRESS.fullmatch(pairs.get(key, ""))
        if address is not None:
            fields[f"{side}_ip"], fields[f"{side}_port"] = address[1], int(address[2])
    for ours, theirs in (("local_id", "local_id"), ("remote_id", "remote_id"), ("qpn", "qp_num")):
        if pairs.get(theirs, "").isdigit():
            fields[ours] = int(pairs[theirs])
    if "cm.id" in pairs:
        fields["cm_id"] = int(pairs["cm.id"])
    for key in ("state", "device"):
        if key in pairs:
            fields[key] = pairs[key]
    if "reason" in pairs:
        fields["reason"] = pairs["reason"].removeprefix("REJ_")
    event = _EVENT.search(text)
    if event is not None:
        fields["event_type"] = event[1]
        if event[3] is not None:
            fields["status"] = int(event[3])
    mono_ns = int(found["seconds"]) * 10**9 + int(found["part"].ljust(9, "0")[:9])
    return KernelEvent(mono_ns, int(found["pid"]), fields)


class KernelCm:
    """The connection managers' events from :meth:`start` to :meth:`stop`.

    Raises:
        TracingError: no root, no tracefs, or no such tracepoints; says what to do.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise TracingError("--attach-cm reads the kernel's tracepoints, which needs root: use sudo")
        self._mounted: tempfile.TemporaryDirectory[str] | None = None
        self._root = self._find_tracefs()
        self._pipe = -1
        self._rest = b""
        self.lost = 0
        missing = [group for group in GROUPS if not (self._root / "events" / group).is_dir()]
        if missing:
            self._unmount()
            raise TracingError(f"this kernel has no tracepoints of {', '.join(missing)}: modprobe rdma_cm")
        for old in (self._root / "instances").glob(f"{_INSTANCE}*"):
            if not Path("/proc", old.name.removeprefix(_INSTANCE)).exists():
                self._remove(old)
        self._instance = self._root / "instances" / f"{_INSTANCE}{os.getpid()}"

    def _find_tracefs(self) -> Path:
        for place in map(Path, _PLACES):
            if (place / "instances").is_dir():
                return place
        self._mounted = tempfile.TemporaryDirectory(prefix="rocekit-tracefs-")
        done = subprocess.run(
            ["mount", "-t", "tracefs", "nodev", self._mounted.name],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self._mounted.cleanup()
            self._mounted = None
            raise TracingError(f"no tracefs, and it cannot be mounted: {done.stderr.strip()}")
        return Path(self._mounted.name)

    def start(self) -> None:
        """Start tracing."""
        try:
            self._instance.mkdir()
            # The clock that recorded events have beside the real one.
            (self._instance / "trace_clock").write_text("mono")
            (self._instance / "buffer_size_kb").write_text(str(_BUFFER_KB))
            for group in GROUPS:
                (self._instance / "events" / group / "enable").write_text("1")
            self._pipe = os.open(self._instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            self.stop()
            raise TracingError(f"the kernel's tracepoints: {error.strerror or error}") from None

    def events(self) -> Iterator[KernelEvent]:
        """The events since the last time."""
        while self._pipe >= 0:
            try:
                got = os.read(self._pipe, 65536)
            except BlockingIOError:
                return
            if not got:
                return
            *lines, self._rest = (self._rest + got).split(b"\n")
            for raw in lines:
                line = raw.decode(errors="replace")
                lost = _LOST.search(line)
                if lost is not None:
                    self.lost += int(lost[1])
                event = parse(line)
                if event is not None:
                    yield event

    def stop(self) -> None:
        """End tracing, and remove the instance."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self._remove(self._instance)
        self._unmount()

    @staticmethod
    def _remove(instance: Path) -> None:
        for _ in range(50):
            try:
                instance.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:  # a reader has not closed it yet
                time.sleep(0.02)

    def _unmount(self) -> None:
        if self._mounted is not None:
            subprocess.run(["umount", self._mounted.name], capture_output=True, check=False)
            self._mounted.cleanup()
            self._mounted = None
