"""What recorders of programs have in common: their options, their journal, and what runs beside."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit.errors import RocekitError
from rocekit.journal import JournalWriter
from rocekit.journal.counters import write_snapshots
from rocekit.journal.rotating import FileLimits, RotatingJournal
from rocekit.record.collect import Rings
from rocekit.record.process import alive
from rocekit.record.recording import Recording
from rocekit.record.selection import ALL, RecordFilter

if TYPE_CHECKING:
    from rocekit.machine.counters import CounterSnapshot
    from rocekit.record.capture import PacketCapture
    from rocekit.record.kernel_cm import KernelCm

DEFAULT_SLOTS: Final = 1 << 15
"""Slots of a ring: 2 MiB. A work request usually takes two, a receive and a completion one."""
DEFAULT_RINGS: Final = 8
PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGTSTP),
)
ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""After the program's end, these end the writing of what is left."""
HELD: Final = frozenset({*PASSED_ON, signal.SIGCHLD})
SI_USER_AT_MOST: Final = 0
"""A signal's si_code: at most 0 if a process sent it, above if the kernel did (sigaction(2))."""


@contextmanager
def holding_signals() -> Iterator[set[int]]:
    """Block the signals that are to be passed on to a program; gives the mask as it was, for the program.

    Threads that are started meanwhile block them too: else one of them would get a signal instead.
    """
    before: set[int] = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, HELD)}
    try:
        yield before
    finally:
        # Signals after the program's end were meant for it, too.
        while signal.sigtimedwait(HELD, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _memory() -> Path:
    """Where ring files are in memory, if possible."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _folder(base: Path, prefix: str = "rocekit-record-") -> Path:
    """A folder for ring files; removes leftovers of dead recorders."""
    for old in base.glob(f"{prefix}*"):
        try:
            pid = int(old.name.removeprefix(prefix).split("-")[0])
            if old.stat().st_uid == os.geteuid() and not alive(pid):
                shutil.rmtree(old, ignore_errors=True)
        except (OSError, ValueError, IndexError):
            continue
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=base))
    if os.geteuid() == 0:
        # A program that starts as root may be another user when it opens a device.
        folder.chmod(0o1733)
    return folder


def ring_folders(journal: Path) -> list[Path]:
    """Folders for ring files: in memory, and beside the journal for those that find no room there.

    Docker gives a container 64 MiB of /dev/shm, enough for the rings of three processes.
    """
    found = [_folder(_memory())]
    try:
        found.append(_folder(journal.absolute().parent, ".rocekit-record-"))
    except OSError:
        pass
    return found


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
        choice: which work requests to record.
    """

    def __init__(
        self,
        journal: Path,
        library: Path,
        *,
        slots: int = DEFAULT_SLOTS,
        rings: int = DEFAULT_RINGS,
        redact: bool = False,
        nicer: int = 0,
        capture: PacketCapture | None = None,
        kernel_cm: KernelCm | None = None,
        counters: Callable[[], list[CounterSnapshot]] | None = None,
        rank: int | None = None,
        limits: FileLimits | None = None,
        choice: RecordFilter = ALL,
    ) -> None:
        if slots < 64 or slots & (slots - 1):
            raise ValueError("slots must be a power of two, 64 at least")
        self._slots, self._rings = slots, rings
        self._library = library
        self._capture, self._kernel_cm, self._counters = capture, kernel_cm, counters
        self._nicer = nicer
        self._rank, self._limits, self._choice = rank, limits, choice
        self._redaction = None
        if redact:
            from rocekit.journal.redaction import Redaction

            self._redaction = Redaction()
        self.result = Recording(journal)

    def _open_rings(self, folders: list[Path], writer: JournalWriter | RotatingJournal) -> Rings:
        rings = Rings(folders, writer, self.result, self._redaction, choice=self._choice)
        if isinstance(writer, RotatingJournal):
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

    def _clean_up(self, folders: list[Path]) -> None:
        if self._kernel_cm is not None:
            self._kernel_cm.stop()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _open_journal(self) -> JournalWriter | RotatingJournal:
        host = socket.gethostname()
        if self._limits is None:
            return JournalWriter(self.result.journal, host=host)
        journal = RotatingJournal(self.result.journal, self._limits, host=host)
        self.result.files = journal.files
        return journal

    def _give_way(self) -> None:
        """Let the program go first if processors are few; SCHED_BATCH does not interrupt it on waking."""
        # Loaded objects stay; garbage collection need not look at them.
        gc.freeze()
        if self._nicer:
            os.nice(self._nicer)
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    @staticmethod
    def _log_recording(writer: JournalWriter | RotatingJournal, pid: int, **fields: Any) -> None:
        writer.write("recording", pid=pid, mono_ns=time.monotonic_ns(), **fields)

    def _log_counters(self, writer: JournalWriter | RotatingJournal) -> None:
        """Write snapshots of counters. If there are none, the program is recorded all the same."""
        if self._counters is None:
            return
        try:
            snapshots = self._counters()
        except (RocekitError, OSError, ValueError) as error:
            self.result.not_recorded.append(f"counters: {error}")
            return
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


def version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("rocekit")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
