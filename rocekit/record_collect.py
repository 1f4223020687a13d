"""What recorded programs write, collected while they run: shared memory emptied into a journal."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit import record_ring
from rocekit.errors import JournalError
from rocekit.record_events import Lines
from rocekit.record_lines import Process
from rocekit.record_ring import RingFile, records

if TYPE_CHECKING:
    from rocekit.journal import JournalWriter
    from rocekit.record_redact import Redaction

HOLD_NS: Final = 200_000_000
"""How long records wait for others of an earlier time: a thread may be put to sleep before it has written."""
MOST_BACKLOG: Final = 64 << 20
"""Bytes of records waiting to become lines; beyond that they stay in the rings."""
_HURRY: Final = 16 << 20
"""Above this the backlog is worked on without regard to what it takes from the program."""
_SHARE_S: Final = 0.002
"""Time for making lines in a tick while the program runs and the backlog is small."""


@dataclass(slots=True)
class Recording:
    """What became of it.

    Attributes:
        status: the program's exit status, or None when a signal ended it; ``signal``: that signal.
        processes: those that opened a device, by pid: their program's name.
        sends, receives, completions, others: records written.
        lost: records that found no room in the rings, by kind.
        not_recorded: what the program did that cannot be seen.
    """

    journal: Path
    status: int | None = None
    signal: int | None = None
    processes: dict[int, str] = field(default_factory=dict)
    sends: int = 0
    receives: int = 0
    completions: int = 0
    others: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    not_recorded: list[str] = field(default_factory=list)
    going_on: list[int] = field(default_factory=list)

    @property
    def total_lost(self) -> int:
        return sum(self.lost.values())


class Rings:
    """The ring files of all recorded processes, emptied into a journal.

    Args:
        folder: where processes make their files.
        writer: the journal.
        redaction: what becomes of keys and addresses.
    """

    def __init__(
        self, folder: Path, writer: JournalWriter, result: Recording, redaction: Redaction | None
    ) -> None:
        self._folder = folder
        self._writer = writer
        self._result = result
        self._redaction = redaction
        self._files: dict[Path, tuple[RingFile, Lines]] = {}
        self._bad: set[Path] = set()
        self._looked = -1
        self._processes: dict[int, Process] = {}
        self._expected: dict[int, Process] = {}
        self._waiting: list[tuple[int, int, bytes, Lines, bool]] = []
        self._backlog = 0
        self._count = 0
        self._last_ns = time.time_ns()

    # ------------------------------------------------------------------ taking

    def collect(self) -> None:
        """Take what the processes have written since the last time."""
        began = time.time_ns()
        changed = self._folder.stat().st_mtime_ns
        if changed != self._looked:
            # A file that is not whole yet is looked at again.
            self._looked = changed if self._look() else -1
        for file, lines in self._files.values():
            if self._backlog < MOST_BACKLOG:
                for chunk in file.drain():
                    self._keep(chunk, lines, finished=True)
            self._tell_lost(lines, file.lost(), self._last_ns)
        self._last_ns = began

    def _look(self) -> bool:
        """Take up new files; whether none of them is still in the making."""
        whole = True
        for path in self._folder.iterdir():
            if path in self._files or path in self._bad:
                continue
            if path.suffix == ".ring":
                whole = self._open(path) and whole
            elif path.suffix == ".failed":
                self._bad.add(path)
                self._tell_failed(path)
        return whole

    def _open(self, path: Path) -> bool:
        try:
            file = RingFile(path)
        except JournalError:
            if time.time() - path.stat().st_mtime > 5:
                self._bad.add(path)
            return path in self._bad
        process = self._process(file.pid, file.forked_from)
        lines = Lines(process, self._redaction, gids=device_gids)
        self._files[path] = (file, lines)
        self._result.processes[file.pid] = file.program
        self._tell(
            "recording",
            process.pid,
            time_ns=file.started_ns,
            mono_ns=file.started_mono_ns,
            state="began",
            program=file.program,
            forked_from=file.forked_from or None,
            redacted=True if self._redaction else None,
        )
        return True

    def _tell_failed(self, path: Path) -> None:
        """A process that could not make its rings."""
        try:
            pid, reason = int(path.name.split(".")[0]), os.strerror(int(path.read_text() or 0))
        except (OSError, ValueError):
            return
        what = f"process {pid}: no room for its rings ({reason}); a smaller --ring-size may fit"
        self._result.not_recorded.append(what)
        self._tell("not_recorded", pid, what=what)

    def _process(self, pid: int, forked_from: int) -> Process:
        """What is known of a process whose file was found. A child's may be found before its parent's."""
        process = self._expected.pop(pid, None) or Process(self._writer.host, pid)
        self._processes[pid] = process
        if forked_from:
            parent = self._processes.get(forked_from)
            if parent is None:
                parent = self._expected.setdefault(forked_from, Process(self._writer.host, forked_from))
            process.parent = parent
        return process

    def _keep(self, chunk: bytes, lines: Lines, *, finished: bool) -> None:
        """Put a chunk's records with those waiting for their time to be put in order."""
        at = 0
        size = len(chunk)
        self._backlog += size
        while at < size:
            after = at + 64 * (chunk[at + 9] or 1)
            mono = int.from_bytes(chunk[at + 16 : at + 24], "little")
            self._count += 1
            self._waiting.append((mono, self._count, chunk[at:after], lines, finished))
            at = after

    def _tell_lost(self, lines: Lines, lost: Mapping[str, int], since_ns: int) -> None:
        if not lost:
            return
        for kind, count in lost.items():
            self._result.lost[kind] = self._result.lost.get(kind, 0) + count
        self._tell("records_lost", lines.process.pid, count=sum(lost.values()), since_ns=since_ns, **lost)

    def _tell(self, event: str, pid: int, **fields: Any) -> None:
        self._writer.write(event, pid=pid, **fields)

    # ------------------------------------------------------------------ writing

    def write(self, *, until_mono_ns: int | None = None, for_s: float | None = None) -> bool:
        """Make lines of the records that are due, oldest first. True when none of those is left.

        Args:
            until_mono_ns: leave what is younger, by the monotonic clock.
            for_s: stop after this time.
        """
        if not self._waiting:
            return True
        self._waiting.sort()
        stop = None if for_s is None else time.monotonic() + for_s
        done = 0
        out: list[str] = []
        whole = True
        for mono, _count, raw, lines, finished in self._waiting:
            if until_mono_ns is not None and mono > until_mono_ns:
                break
            for record in records(raw, finished=finished):
                self._tally(record.type)
                out.extend(lines.of(record))
                if record.type == record_ring.NOT_COVERED:
                    what = record.payload.split(b"\0", 1)[0].decode(errors="replace")
                    self._result.not_recorded.append(what)
            self._backlog -= len(raw)
            done += 1
            if stop is not None and done % 64 == 0 and time.monotonic() > stop:
                whole = False
                break
        del self._waiting[:done]
        self._writer.write_lines(out)
        return whole

    def _tally(self, kind: int) -> None:
        if kind == record_ring.SEND:
            self._result.sends += 1
        elif kind == record_ring.RECV:
            self._result.receives += 1
        elif kind == record_ring.WC:
            self._result.completions += 1
        else:
            self._result.others += 1

    def tick(self) -> None:
        """What is to be done now and then while the program runs: all taking, a little writing."""
        self.collect()
        due = time.monotonic_ns() - HOLD_NS
        if self._waiting:
            self.write(until_mono_ns=due, for_s=None if self._backlog > _HURRY else _SHARE_S)
            self._writer.flush()

    def finish(self) -> None:
        """The rest, when the program has ended. Processes that go on are named and not waited for."""
        self.collect()
        for file, lines in self._files.values():
            whole, unfinished, holes = file.finish()
            for chunk in whole:
                self._keep(chunk, lines, finished=True)
            for chunk in unfinished:
                self._keep(chunk, lines, finished=False)
            lost = file.lost()
            if holes:
                lost["others"] = lost.get("others", 0) + holes
            self._tell_lost(lines, lost, self._last_ns)
            if alive(file.pid):
                self._result.going_on.append(file.pid)
                self._tell(
                    "not_recorded", file.pid, what="what this process did after the recorded program's end"
                )
        self.write()
        self._writer.flush()
        for file, _ in self._files.values():
            file.close()


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


def device_gids(device: str) -> list[str] | None:
    """A device's addresses, in words, by the kernel's table; port 1's, without the empty ones."""
    import ipaddress

    folder = Path("/sys/class/infiniband", device, "ports/1/gids")
    found = []
    try:
        for path in sorted(folder.iterdir(), key=lambda path: int(path.name)):
            try:
                address = ipaddress.IPv6Address(path.read_text().strip())
            except (OSError, ValueError):
                continue
            if int(address):
                found.append(str(address.ipv4_mapped or address))
    except (OSError, ValueError):
        return None
    return list(dict.fromkeys(found))
