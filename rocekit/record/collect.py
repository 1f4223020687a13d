"""Emptying the shared memory of recorded programs into a journal, while they run."""

from __future__ import annotations

import struct
import time
from bisect import bisect_left
from collections import deque

from rocekit.machine.processors import SpareProcessors
from rocekit.record import ring as record_ring
from rocekit.record.gids import GidTables
from rocekit.record.lines.journal_lines import JournalLines
from rocekit.record.lines.native import native
from rocekit.record.new_rings import NewRings
from rocekit.record.process import Process, going_on
from rocekit.record.ring import LossCounts, RingFile, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any, Final, TypeAlias

    from rocekit.journal import JournalWriter
    from rocekit.journal.redaction import Redaction
    from rocekit.journal.rotating import RotatingJournal
    from rocekit.record.lines.selection import RecordFilter
    from rocekit.record.recording import Recording

    _Chunk: TypeAlias = tuple[RingFile, JournalLines, int, memoryview]
    """Slots of a process's ring."""
    _Taken: TypeAlias = tuple[int, deque[_Chunk]]
    """Chunks taken together, and the time (monotonic) up to which all records are known with them."""

HOLD_NS: Final = 200_000_000
"""How long records wait for earlier ones: a thread may sleep between taking the time and writing."""
TAKE_NS: Final = 250_000_000
"""How long records stay in the rings, unless a ring becomes a quarter full before."""
LEAST_PAUSE_S: Final = 0.005
MOST_PAUSE_S: Final = 0.025
"""Pauses between two looks at the rings; with the longer one, 32,768 slots take 1.3 million a second."""
QUIET_NS: Final = 100_000_000
"""A program that has written nothing for so long is not disturbed by making lines."""
STUCK_NS: Final = 5_000_000_000
"""How long a ring that is half full waits for a call to return."""
MOST_BACKLOG: Final = 128 << 20
"""Bytes of records waiting to become lines; beyond that they stay in the rings."""
_HURRY: Final = 64 << 20
"""Above this, lines are made even if that takes processor time from the program."""
_SHARE_S: Final = 0.002
"""Time for making lines in one tick."""
_HURRIED_S: Final = 0.02
"""The same where there is more to be done than can wait."""
_ONE_IN: Final = 1000
"""Making lines takes one part in so many of the time while the program writes."""
_SPARE_S: Final = 0.01
"""Time for making lines in one tick while there is a processor that nobody else wants."""
_GIDS_S: Final = 30.0
"""How long a program's end waits for the addresses of its devices."""
_SLICE_S: Final = 0.2
"""How long finishing goes on without looking for a signal."""
_LOOKS: Final = 16
"""After how many lines it is looked whether time is over; those that are made in C are made many at once."""
_MANY: Final = 256
_ALL: Final = 1 << 63
_PART: Final = 256 * record_ring.SLOT
"""Bytes that are unpacked at a time."""
_COMMON: Final = (record_ring.SEND, record_ring.RECV, record_ring.WC)
"""Kinds of which lines are made in C."""
_run: Final = getattr(native(), "run", None)
"""Makes lines of many of them at once, where it was compiled."""


class Rings:
    """The ring files of all recorded processes, emptied into a journal.

    Args:
        folders: where processes make their files.
        writer: the journal.
        redaction: replaces keys and addresses.
        choice: which work requests become lines; None: all.

    Attributes:
        pause_s: how long after a tick the next one is due, in seconds.
        spare: whether what is done now takes no time from the program: it is quiet, or a processor is free.
    """

    def __init__(
        self,
        folders: Sequence[Path | str],
        writer: JournalWriter | RotatingJournal,
        result: Recording,
        redaction: Redaction | None,
        gids: GidTables | None = None,
        choice: RecordFilter | None = None,
    ) -> None:
        self._new = NewRings(folders)
        self._gids, self._choice = gids or GidTables(), choice
        self._stuck: dict[str, int] = {}
        self._writer = writer
        self._result = result
        self._redaction = redaction
        self._files: dict[str, tuple[RingFile, JournalLines]] = {}
        self._taken_ns = self._wrote_ns = time.monotonic_ns()
        self._complete_ns = 0
        self._fullest = 0.0
        self._write_next_ns = self._taken_ns + TAKE_NS
        self.pause_s = LEAST_PAUSE_S
        self.spare = False
        self._processes: dict[int, Process] = {}
        self._expected: dict[int, Process] = {}
        self._taken: deque[_Taken] = deque()
        self._unpacked: list[record_ring.Tagged] = []
        self._waiting: list[record_ring.Tagged] = []
        self._backlog = 0
        self._count = 0
        self._finishing = self._stopped = self._due = False
        self._processors = SpareProcessors()
        self._began_ns = self._last_ns = time.time_ns()

    def collect(self) -> None:
        """Copy what the processes have written since the last time, without unpacking it."""
        began, self._taken_ns = time.time_ns(), time.monotonic_ns()
        self._find()
        chunks: deque[_Chunk] = deque()
        for file, lines in self._files.values():
            if self._backlog < MOST_BACKLOG:
                for ring, slots in file.take():
                    self._backlog += len(slots)
                    chunks.append((file, lines, ring, memoryview(slots)))
                self._step_over(file, lines)
            self._log_lost(lines, file.lost(), self._last_ns)
            self._take_losses(file, lines)
        # If not all was taken, what stayed may be older than what is taken later.
        complete_ns = self._taken_ns - HOLD_NS if self._backlog < MOST_BACKLOG else 0
        if complete_ns or chunks:
            self._taken.append((complete_ns, chunks))
        self._wrote_ns = self._taken_ns if chunks else self._wrote_ns
        self._last_ns, self._due = began, True

    def _take_losses(self, file: RingFile, lines: JournalLines) -> None:
        """Put what queues have lost among the records."""
        for loss in file.lost_of_queues():
            self._add_lost(loss.counts())
            lines.lose(loss)
            raw = record_ring.lost_record(loss, self._last_ns, (time.monotonic_ns(), time.time_ns()))
            self._backlog += len(raw)
            self._wait([raw], lines, finished=True)

    def _add_lost(self, lost: Mapping[str, int]) -> None:
        for kind, count in lost.items():
            self._result.lost[kind] = self._result.lost.get(kind, 0) + count

    def _step_over(self, file: RingFile, lines: JournalLines) -> None:
        """Let a ring go on that has been waiting too long for a call to return."""
        if file.most_waiting() < file.slots // 2:
            self._stuck.pop(file.path, None)
            return
        if self._taken_ns - self._stuck.setdefault(file.path, self._taken_ns) < STUCK_NS:
            return
        left, holes = file.step_over()
        self._backlog += sum(map(len, left))
        self._wait(left, lines, finished=False)
        if holes:
            self._log_lost(lines, {"others": holes}, self._last_ns)

    def _find(self, *, last: bool = False) -> None:
        """Open the files of new processes, and log what processes have told apart from their rings."""
        for found in self._new.look(last=last):
            if isinstance(found, RingFile):
                self._begin(found)
            else:
                pid, what = found
                self._result.not_recorded.append(what)
                self._log("not_recorded", pid, what=what)

    def _begin(self, file: RingFile) -> None:
        """Log that a process opened its first device."""
        process = self._process(file.pid, file.forked_from)
        lines = self._lines_for(process)
        self._files[file.path] = (file, lines)
        self._result.processes[file.pid] = file.program
        self._log(
            "recording",
            process.pid,
            time_ns=file.started_ns,
            mono_ns=file.started_mono_ns,
            state="began",
            program=file.program,
            forked_from=file.forked_from or None,
            redacted=True if self._redaction else None,
            filter=str(self._choice) if self._choice else None,
        )

    def _lines_for(self, process: Process) -> JournalLines:
        if self._choice:
            from rocekit.record.lines.chosen_lines import ChosenLines

            return ChosenLines(self._choice, process, self._redaction, gids=self._gids.of)
        return JournalLines(process, self._redaction, gids=self._gids.of)

    def left_out(self) -> list[str]:
        """Lines that say what the filter has left out since the last time."""
        found = [line for _, lines in self._files.values() for line in lines.left_out()]
        self._result.left_out = sum(lines.left_out_records for _, lines in self._files.values())
        return found

    def _process(self, pid: int, forked_from: int) -> Process:
        """The state of a process whose file was found. A child's may be found before its parent's."""
        process = self._expected.pop(pid, None) or Process(self._writer.host, pid)
        self._processes[pid] = process
        if forked_from:
            parent = self._processes.get(forked_from)
            if parent is None:
                parent = self._expected.setdefault(forked_from, Process(self._writer.host, forked_from))
            process.parent = parent
        return process

    def _log_lost(self, lines: JournalLines, lost: Mapping[str, int], since_ns: int) -> None:
        if not lost:
            return
        lines.lose(None)
        self._add_lost(lost)
        self._log("records_lost", lines.process.pid, count=sum(lost.values()), since_ns=since_ns, **lost)

    def _log(self, event: str, pid: int, **fields: Any) -> None:
        self._writer.write(event, pid=pid, **fields)

    def write(self, *, for_s: float | None = None) -> bool:
        """Make lines of what was taken, oldest first; records before which older ones may still come wait.

        Args:
            for_s: stop after this time.

        Returns:
            Whether no record is left that is due.
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
        self._due = not whole
        return whole

    def _unpack(self, stop: float | None) -> bool:
        """Merge the records of the oldest chunks with those that wait, in the order of their times.

        False if time is over before: records unpacked by then are kept apart, because older ones may follow.
        """
        complete_ns, chunks = self._taken[0]
        while chunks:
            file, lines, ring, slots = chunks.popleft()
            if len(slots) > _PART:
                chunks.appendleft((file, lines, ring, slots[_PART:]))
            found = file.tagged(ring, slots[:_PART], self._count, lines)
            self._count += len(found)
            self._unpacked += found
            if stop is not None and chunks and time.monotonic() > stop:
                return False
        self._taken.popleft()
        self._put_in_order(complete_ns)
        return True

    def _wait(self, raws: Iterable[bytes], lines: JournalLines, *, finished: bool) -> None:
        for raw in raws:
            self._count += 1
            self._unpacked.append((int.from_bytes(raw[16:24], "little"), self._count, raw, lines, finished))

    def _put_in_order(self, complete_ns: int) -> None:
        """Sort the unpacked records into those that wait; up to this time all are there."""
        self._complete_ns = max(self._complete_ns, complete_ns)
        new, waiting = self._unpacked, self._waiting
        if new and waiting:
            # Only the last of many that wait are younger than these.
            at = bisect_left(waiting, min(new))
            new += waiting[at:]
            del waiting[at:]
        new.sort()
        waiting += new
        new.clear()

    def _make_lines(self, out: list[str], stop: float | None) -> bool:
        """Lines of the records up to the time until which all are known; False if time is over before."""
        waiting = self._waiting
        done = looked = 0
        whole = True
        while done < len(waiting):
            if stop is not None and done >= looked + _LOOKS:
                looked = done
                if time.monotonic() > stop:
                    whole = False
                    break
            if _run is not None:
                at, *counts = _run(waiting, done, self._complete_ns, _MANY, out)
                if at > done:
                    done = at
                    for kind, count in zip(_COMMON, counts, strict=True):
                        self._result.tally(kind, count)
                    continue
            mono, _count, raw, lines, finished = waiting[done]
            if mono > self._complete_ns:
                break
            if finished and (line := lines.direct(raw)) is not None:
                if line:
                    out.append(line)
                self._result.tally(raw[8])
            else:
                opens = raw[8] in (record_ring.DEVICE, record_ring.DEVICE_FOUND)
                if opens and not self._knows_gids(raw):
                    whole = False
                    break
                out.extend(self._lines_of(raw, lines, finished))
            done += 1
        self._backlog -= sum([len(one[2]) for one in waiting[:done]])
        del waiting[:done]
        return whole

    def _knows_gids(self, raw: bytes) -> bool:
        """Whether the addresses of a device that was opened are known by now; reading them takes long."""
        name = record_of(raw).payload.split(b"\0", 1)[0].decode(errors="replace")
        if self._finishing:
            self._gids.ready(name, wait_s=_GIDS_S)
            return True
        return self._gids.ready(name)

    def _lines_of(self, raw: bytes, lines: JournalLines, finished: bool) -> list[str]:
        """A record's lines; none if it is invalid: a program may overwrite it by mistake."""
        try:
            record = record_of(raw, finished)
            if record.type == record_ring.QUEUE_LOST and any(raw[:8]):
                raise ValueError("only the reader makes such a record")
            made = list(lines.of(record))
        except (struct.error, ValueError, LookupError):
            self._log_lost(lines, {"others": 1}, self._began_ns)
            return []
        self._result.tally(record.type)
        if record.type == record_ring.NOT_COVERED:
            what = record.payload.split(b"\0", 1)[0].decode(errors="replace")
            self._result.not_recorded.append(what)
        return made

    def tick(self) -> bool:
        """Do the periodic work while the program runs; whether there was any.

        The program may need all processors, so this usually only looks at the rings. ``pause_s`` is how long
        after it the next one is due.
        """
        now = time.monotonic_ns()
        self._find()
        fullest = max([file.most_waiting() / file.slots for file, _ in self._files.values()], default=0.0)
        grown, self._fullest = fullest - self._fullest, fullest
        # Soon enough that a ring that fills up at this rate is not half full by then.
        self.pause_s = min(
            max(max(self.pause_s, LEAST_PAUSE_S) * 0.25 / max(grown, 0.01), LEAST_PAUSE_S), MOST_PAUSE_S
        )
        taking = fullest > 0.25 or now - self._taken_ns >= TAKE_NS
        if taking:
            self.collect()
            self._fullest = 0.0
        quiet = not fullest and now - self._wrote_ns >= QUIET_NS
        waiting = self._due and self._backlog > 0
        free = waiting and bool(self._processors)
        self.spare = quiet or free
        self._gids.give_way(not self.spare and self._backlog <= _HURRY)
        if self._backlog > _HURRY:
            # Soon back to the rings: they must not become full meanwhile.
            self.write(for_s=_HURRIED_S)
            self.pause_s = 0.0
        elif free:
            self.write(for_s=_SPARE_S)
            self.pause_s = LEAST_PAUSE_S if self._due else self.pause_s
        elif waiting and (quiet or now >= self._write_next_ns):
            began = time.monotonic_ns()
            self.write(for_s=_SHARE_S)
            self._write_next_ns = began + _ONE_IN * (time.monotonic_ns() - began)
        elif not taking:
            return False
        return True

    def finish(self, stopped: Callable[[], bool] = lambda: False, *, detached: bool = False) -> None:
        """Write the rest after the program's end. Processes that still run are named and not waited for.

        Args:
            stopped: whether to write no more; what is not written by then is counted as lost.
            detached: the processes go on, as they should.
        """
        self._finishing = True
        self._find(last=True)
        self.collect()
        while self._taken:
            self._unpack(None)
        late: list[tuple[list[bytes], JournalLines]] = []
        for file, lines in self._files.values():
            whole, unfinished, holes = file.finish()
            self._backlog += sum(map(len, (*whole, *unfinished)))
            self._wait(whole, lines, finished=True)
            late.append((unfinished, lines))
            lost = file.lost()
            if holes:
                lost["others"] = lost.get("others", 0) + holes
            self._log_lost(lines, lost, self._last_ns)
            self._take_losses(file, lines)
        self._put_in_order(_ALL)
        self._write_all(stopped)
        # Calls that never returned come after all others: whether their PSNs are certain depends on those.
        for unfinished, lines in late:
            self._wait(unfinished, lines, finished=False)
        self._put_in_order(_ALL)
        if not self._write_all(stopped):
            self._give_up()
        if not detached:
            self._log_going_on()
        self._writer.write_lines(self.left_out())
        self._writer.flush()
        self._processors.close()
        for file, _ in self._files.values():
            file.close()

    def _write_all(self, stopped: Callable[[], bool]) -> bool:
        """Whether all that is due was written, and the recorder was not told to stop before."""
        while not self._stopped:
            if self.write(for_s=_SLICE_S):
                return True
            self._stopped = stopped()
        return False

    def _give_up(self) -> None:
        """Count what was not written, by queue."""
        out: list[str] = []
        since: dict[int, tuple[JournalLines, int]] = {}
        counts: dict[int, LossCounts] = {}
        others: dict[int, int] = {}
        for _mono, _count, raw, lines, _finished in self._waiting:
            record = record_of(raw)
            if record.type == record_ring.QUEUE_LOST:
                out += self._lines_of(raw, lines, True)
                continue
            since.setdefault(id(lines), (lines, record.real_ns))
            if not counts.setdefault(id(lines), LossCounts()).add(record):
                others[id(lines)] = others.get(id(lines), 0) + 1
        until = (time.monotonic_ns(), time.time_ns())
        for key, (lines, began) in since.items():
            self._log_lost(lines, {"others": others[key]} if key in others else {}, began)
            for loss in counts[key].losses():
                self._add_lost(loss.counts())
                out += self._lines_of(record_ring.lost_record(loss, began, until), lines, True)
        self._writer.write_lines(out)
        self._waiting.clear()
        self._result.failed.append("stopped by a signal before all records were written")

    def _log_going_on(self) -> None:
        """Name the processes that still run."""
        files = [(file.pid, file.pid_namespace) for file, _ in self._files.values()]
        pids, elsewhere = going_on(files, self._new.folders[0])
        for pid in pids:
            self._result.going_on.append(pid)
            self._log("not_recorded", pid, what="what this process did after the recorded program's end")
        for pid in elsewhere:
            where = f"process {pid} of another PID namespace"
            what = f"{where}: whether it went on after the recorded program's end is not known"
            self._result.not_recorded.append(what)
            self._log("not_recorded", pid, what=what)
