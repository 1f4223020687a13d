"""What recorders of programs have in common: their options, their journal, and what runs beside."""

from __future__ import annotations

import gc
import os
import time

from rocekit.errors import RocekitError
from rocekit.journal.writing import JournalWriter
from rocekit.record.collect import Rings
from rocekit.record.gids import GidTables
from rocekit.record.recording import Recording
from rocekit.record.start import DEFAULT_RINGS, DEFAULT_SLOTS, give_way, remove_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any, Protocol

    from rocekit.files.new_file import NewFile
    from rocekit.journal.rotating import FileLimits, RotatingJournal
    from rocekit.machine.counter_files import FolderRead
    from rocekit.machine.counters import CounterSnapshot
    from rocekit.record.capture import PacketCapture
    from rocekit.record.kernel_cm import KernelCm
    from rocekit.record.lines.selection import RecordFilter

    class CountersTaken(Protocol):
        """Gives snapshots of counters, as they are or as they were read before.

        Attributes:
            gids: the addresses in the table of each device's port 1, as far as they were read for this.
        """

        @property
        def gids(self) -> Mapping[str, list[str]]: ...

        def __call__(
            self, before: Callable[[str], FolderRead | None] | None = None
        ) -> list[CounterSnapshot]: ...


class JournalRecorder:
    """Writes what a program's rings have into a journal.

    Args:
        journal: the file to write; replaced.
        library: the interposer, from ``build``.
        slots: of each ring, a power of two.
        rings: how many threads can write without sharing a ring.
        redact: replace keys and addresses.
        nicer: how much lower a priority to take than the program's, once it runs; see nice(2). Then waking up
            does not interrupt the program, either.
        capture: packets to capture while the program runs.
        kernel_cm: the kernel's connection managers, whose events go into the same journal.
        counters: gives snapshots of counters; called before the program is recorded and after.
        rank: the program's rank in a parallel program.
        limits: write the journal into several files, and when the next one begins.
        choice: which work requests to record; None: all.
    """

    def __init__(
        self,
        journal: Path | str,
        library: Path | str,
        *,
        slots: int = DEFAULT_SLOTS,
        rings: int = DEFAULT_RINGS,
        redact: bool = False,
        nicer: int = 0,
        capture: PacketCapture | None = None,
        kernel_cm: KernelCm | None = None,
        counters: CountersTaken | None = None,
        rank: int | None = None,
        limits: FileLimits | None = None,
        choice: RecordFilter | None = None,
    ) -> None:
        if slots < 64 or slots & (slots - 1):
            raise ValueError("slots must be a power of two, 64 at least")
        self._slots, self._rings = slots, rings
        self._library = library
        self._capture, self._kernel_cm, self._counters = capture, kernel_cm, counters
        self._gids = GidTables()
        self._nicer = nicer
        self._rank, self._limits, self._choice = rank, limits, choice
        self._redaction = None
        if redact:
            from rocekit.journal.redaction import Redaction

            self._redaction = Redaction()
        self.result = Recording(journal)

    def _open_rings(self, folders: Sequence[Path | str], writer: JournalWriter | RotatingJournal) -> Rings:
        rings = Rings(folders, writer, self.result, self._redaction, self._gids, self._choice)
        if not isinstance(writer, JournalWriter):
            writer.at_start = rings.left_out
        return rings

    def _end_companions(self, writer: JournalWriter | RotatingJournal) -> None:
        """What ran beside the program, and what the counters say after it."""
        self._log_counters(writer)
        self._stop_capture()
        if self._kernel_cm is not None:
            self._log_kernel_cm(writer)
            self._kernel_cm.stop()
            if self._kernel_cm.lost:
                writer.write("records_lost", count=self._kernel_cm.lost, others=self._kernel_cm.lost)

    def _clean_up(self, folders: Sequence[Path | str]) -> None:
        if self._kernel_cm is not None:
            self._kernel_cm.stop()
        for folder in folders:
            remove_folder(folder)

    def _open_journal(self, opened: NewFile | None = None) -> JournalWriter | RotatingJournal:
        host = os.uname().nodename
        if self._limits is None:
            return JournalWriter(self.result.journal, host=host, opened=opened)
        from rocekit.journal.rotating import RotatingJournal

        journal = RotatingJournal(self.result.journal, self._limits, host=host)
        self.result.files = journal.files
        return journal

    def _give_way(self) -> None:
        """Let the program go first if processors are few; SCHED_BATCH does not interrupt it on waking."""
        # Loaded objects stay; garbage collection need not look at them.
        gc.freeze()
        give_way(self._nicer)

    @staticmethod
    def _log_recording(writer: JournalWriter | RotatingJournal, pid: int, **fields: Any) -> None:
        writer.write("recording", pid=pid, **{"mono_ns": time.monotonic_ns(), **fields})

    def _log_counters(
        self,
        writer: JournalWriter | RotatingJournal,
        before: Callable[[str], FolderRead | None] | None = None,
    ) -> None:
        """Write snapshots of counters. If there are none, the program is recorded all the same."""
        if self._counters is None:
            return
        try:
            snapshots = self._counters(before)
        except (RocekitError, OSError, ValueError) as error:
            self.result.not_recorded.append(f"counters: {error}")
            return
        for device, addresses in self._counters.gids.items():
            self._gids.know(device, addresses)
        from rocekit.journal.counters import write_snapshots

        write_snapshots(writer, snapshots)

    def _start_companions(self) -> None:
        if self._kernel_cm is not None:
            self._kernel_cm.start()
        if self._capture is not None:
            self._capture.start()

    def _stop_capture(self) -> None:
        if self._capture is None:
            return
        try:
            self._capture.stop()
        except (RocekitError, OSError) as error:
            self._not_written(error)

    def _not_written(self, error: Exception) -> None:
        self.result.failed.append(str(error))
        self.result.unwritten = True

    def _log_kernel_cm(self, writer: JournalWriter | RotatingJournal) -> None:
        if self._kernel_cm is None:
            return
        ahead = time.time_ns() - time.monotonic_ns()
        for event in self._kernel_cm.events():
            writer.write(
                "kernel_cm",
                time_ns=event.mono_ns + ahead,
                mono_ns=event.mono_ns,
                pid=event.pid,
                **event.fields,
            )
