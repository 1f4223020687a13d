"""What recorded programs write, collected while they run: shared memory emptied into a journal."""

from __future__ import annotations

import os
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rocekit.errors import JournalError
from rocekit.record import ring as record_ring
from rocekit.record.events import Lines
from rocekit.record.lines import Process
from rocekit.record.ring import RingFile, records

if TYPE_CHECKING:
    from rocekit.journal import JournalWriter
    from rocekit.journal.redaction import Redaction

HOLD_NS: Final = 200_000_000
"""How long records wait for others of an earlier time: a thread may be put to sleep before it has written."""
TAKE_NS: Final = 250_000_000
"""How long records stay in the rings, unless one of these fills up to a quarter before."""
LEAST_PAUSE_S: Final = 0.005
MOST_PAUSE_S: Final = 0.02
"""Between two looks at the rings. At the longer one a ring of 32,768 slots takes 1.6 million in a second."""
QUIET_NS: Final = 100_000_000
"""A program that has written nothing for so long is not disturbed by what is done meanwhile."""
MOST_BACKLOG: Final = 128 << 20
"""Bytes of records waiting to become lines; beyond that they stay in the rings."""
_HURRY: Final = 64 << 20
"""Above this the backlog is worked on without regard to what it takes from the program."""
_SHARE_S: Final = 0.002
"""Time for making lines in one tick."""
_ONE_IN: Final = 100
"""The share of all time that making lines has while the program goes on writing."""


_ALL: Final = 1 << 63
_PART: Final = 256 * record_ring.SLOT
"""Bytes that are unpacked at a time."""
_Chunk: TypeAlias = "tuple[RingFile, Lines, int, memoryview]"
"""Slots of a process's ring."""
_Taken: TypeAlias = "tuple[int, deque[_Chunk]]"
"""What was taken together, and until when (by the monotonic clock) everything is known with that."""
_Waiting: TypeAlias = "tuple[int, int, bytes, Lines, bool]"
"""A record: its time, its number, itself, what makes lines of it, and whether its call came to its end."""


@dataclass(slots=True)
class Recording:
    """What became of it.

    Attributes:
        status: the program's exit status, or None when a signal ended it; ``signal``: that signal.
        processes: those that opened a device, by pid: their program's name.
        sends, receives, completions, others: records written.
        lost: records that found no room in the rings, by kind.
        not_recorded: what the program did that cannot be seen.
        going_on: processes that went on when the program had ended.
        failed: what could not be written, journal or packets; what was written before is there.
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
    failed: list[str] = field(default_factory=list)

    @property
    def total_lost(self) -> int:
        return sum(self.lost.values())


class Rings:
    """The ring files of all recorded processes, emptied into a journal.

    Args:
        folder: where processes make their files.
        writer: the journal.
        redaction: what becomes of keys and addresses.

    Attributes:
        pause_s: how long after a tick the next one is due, in seconds.
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
        self._taken_ns = self._wrote_ns = time.monotonic_ns()
        self._complete_ns = 0
        self._fullest = 0.0
        self._write_next_ns = self._taken_ns + TAKE_NS
        self.pause_s = LEAST_PAUSE_S
        self._processes: dict[int, Process] = {}
        self._expected: dict[int, Process] = {}
        self._taken: deque[_Taken] = deque()
        self._unpacked: list[_Waiting] = []
        self._waiting: list[_Waiting] = []
        self._backlog = 0
        self._count = 0
        self._began_ns = self._last_ns = time.time_ns()

    # ------------------------------------------------------------------ taking

    def collect(self) -> None:
        """Take what the processes have written since the last time, and look at none of it."""
        began, self._taken_ns = time.time_ns(), time.monotonic_ns()
        self._find()
        chunks: deque[_Chunk] = deque()
        for file, lines in self._files.values():
            if self._backlog < MOST_BACKLOG:
                for ring, slots in file.take():
                    self._backlog += len(slots)
                    chunks.append((file, lines, ring, memoryview(slots)))
            self._tell_lost(lines, file.lost(), self._last_ns)
        # Where not all was taken, what stayed there may be older than what comes after it.
        complete_ns = self._taken_ns - HOLD_NS if self._backlog < MOST_BACKLOG else 0
        if complete_ns or chunks:
            self._taken.append((complete_ns, chunks))
        if chunks:
            self._wrote_ns = self._taken_ns
        self._last_ns = began

    def _find(self) -> None:
        """Take up the files of processes that are new."""
        changed = os.stat(self._folder).st_mtime_ns  # noqa: PTH116  (this is done a hundred times a second)
        if changed != self._looked:
            # A file that is not whole yet is looked at again.
            self._looked = changed if self._look() else -1

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

    def _tell_lost(self, lines: Lines, lost: Mapping[str, int], since_ns: int) -> None:
        if not lost:
            return
        for kind, count in lost.items():
            self._result.lost[kind] = self._result.lost.get(kind, 0) + count
        self._tell("records_lost", lines.process.pid, count=sum(lost.values()), since_ns=since_ns, **lost)

    def _tell(self, event: str, pid: int, **fields: Any) -> None:
        self._writer.write(event, pid=pid, **fields)

    # ------------------------------------------------------------------ writing

    def write(self, *, for_s: float | None = None) -> bool:
        """Make lines of what was taken, oldest first; what may still be joined by something older waits.

        Args:
            for_s: stop after this time.

        Returns:
            Whether nothing is left that is due.
        """
        stop = None if for_s is None else time.monotonic() + for_s
        out: list[str] = []
        while (whole := self._make_lines(out, stop)) and self._taken:
            if not self._unpack(stop):
                whole = False
                break
        if out:
            self._writer.write_lines(out)
            self._writer.flush()
        return whole

    def _unpack(self, stop: float | None) -> bool:
        """Put the records of what was taken first together with those that wait, in the order of their times.

        False when time is over before: what is unpacked by then is kept apart, since older may follow.
        """
        complete_ns, chunks = self._taken[0]
        while chunks:
            file, lines, ring, slots = chunks.popleft()
            if len(slots) > _PART:
                chunks.appendleft((file, lines, ring, slots[_PART:]))
            self._wait(file.split(ring, slots[:_PART]), lines, finished=True)
            if stop is not None and chunks and time.monotonic() > stop:
                return False
        self._taken.popleft()
        self._put_in_order(complete_ns)
        return True

    def _wait(self, raws: Iterable[bytes], lines: Lines, *, finished: bool) -> None:
        for raw in raws:
            self._count += 1
            mono = int.from_bytes(raw[16:24], "little")
            self._unpacked.append((mono, self._count, raw, lines, finished))

    def _put_in_order(self, complete_ns: int) -> None:
        """Let what is unpacked wait for its turn; up to this time everything is there."""
        self._complete_ns = max(self._complete_ns, complete_ns)
        self._waiting += self._unpacked
        self._unpacked.clear()
        self._waiting.sort()

    def _make_lines(self, out: list[str], stop: float | None) -> bool:
        """Lines of the records up to where all are known; False when time is over before."""
        done = 0
        whole = True
        for mono, _count, raw, lines, finished in self._waiting:
            if mono > self._complete_ns:
                break
            if stop is not None and done and time.monotonic() > stop:
                whole = False
                break
            out.extend(self._lines_of(raw, lines, finished))
            self._backlog -= len(raw)
            done += 1
        del self._waiting[:done]
        return whole

    def _lines_of(self, raw: bytes, lines: Lines, finished: bool) -> list[str]:
        """A record's lines; none of one that makes no sense: a program may write where it must not."""
        try:
            (record,) = records(raw, finished=finished)
            made = list(lines.of(record))
        except (struct.error, ValueError, LookupError):
            self._tell_lost(lines, {"others": 1}, self._began_ns)
            return []
        self._tally(record.type)
        if record.type == record_ring.NOT_COVERED:
            what = record.payload.split(b"\0", 1)[0].decode(errors="replace")
            self._result.not_recorded.append(what)
        return made

    def _tally(self, kind: int) -> None:
        if kind == record_ring.SEND:
            self._result.sends += 1
        elif kind == record_ring.RECV:
            self._result.receives += 1
        elif kind == record_ring.WC:
            self._result.completions += 1
        else:
            self._result.others += 1

    def tick(self) -> bool:
        """What is to be done now and then while the program runs; whether there was anything to do.

        The program may have no processor to spare for this: as a rule it is a look at the rings and no more.
        ``pause_s`` is how long after it the next one is due.
        """
        now = time.monotonic_ns()
        self._find()
        fullest = max([file.most_waiting() / file.slots for file, _ in self._files.values()], default=0.0)
        grown, self._fullest = fullest - self._fullest, fullest
        # In time for a ring that goes on filling up as fast not to be half full.
        self.pause_s = min(max(self.pause_s * 0.25 / max(grown, 0.01), LEAST_PAUSE_S), MOST_PAUSE_S)
        taking = fullest > 0.25 or now - self._taken_ns >= TAKE_NS
        if taking:
            self.collect()
            self._fullest = 0.0
        quiet = not fullest and now - self._wrote_ns >= QUIET_NS
        if self._backlog > _HURRY:
            self.write()
        elif self._backlog and (quiet or now >= self._write_next_ns):
            began = time.monotonic_ns()
            self.write(for_s=_SHARE_S)
            self._write_next_ns = began + _ONE_IN * (time.monotonic_ns() - began)
        elif not taking:
            return False
        return True

    def finish(self) -> None:
        """The rest, when the program has ended. Processes that go on are named and not waited for."""
        self.collect()
        self.write()
        for file, lines in self._files.values():
            whole, unfinished, holes = file.finish()
            for raws, finished in ((whole, True), (unfinished, False)):
                self._backlog += sum(map(len, raws))
                self._wait(raws, lines, finished=finished)
            lost = file.lost()
            if holes:
                lost["others"] = lost.get("others", 0) + holes
            self._tell_lost(lines, lost, self._last_ns)
            if alive(file.pid):
                self._result.going_on.append(file.pid)
                self._tell(
                    "not_recorded", file.pid, what="what this process did after the recorded program's end"
                )
        self._put_in_order(_ALL)
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
