"""Running a program and writing its journal."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit.errors import JournalError, RocekitError
from rocekit.journal import JournalWriter
from rocekit.journal.counters import write_snapshots
from rocekit.journal.rotating import FileLimits, RotatingJournal
from rocekit.record.collect import Rings
from rocekit.record.process import alive
from rocekit.record.program import ProgramError, environment, find_program, has_own_privileges, is_static
from rocekit.record.recording import Recording
from rocekit.record.selection import ALL, RecordFilter

if TYPE_CHECKING:
    from rocekit.machine.counters import CounterSnapshot
    from rocekit.record.capture import PacketCapture
    from rocekit.record.kernel_cm import KernelCm

DEFAULT_SLOTS: Final = 1 << 15
"""Slots of a ring: 2 MiB. A work request usually takes two, a receive and a completion one."""
DEFAULT_RINGS: Final = 8
_PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGTSTP),
)
_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""After the program's end, these end the writing of what is left."""
_HELD: Final = frozenset({*_PASSED_ON, signal.SIGCHLD})
_SI_USER_AT_MOST: Final = 0
"""A signal's si_code: at most 0 if a process sent it, above if the kernel did (sigaction(2))."""


@contextmanager
def holding_signals() -> Iterator[set[int]]:
    """Block the signals that are to be passed on to a program; gives the mask as it was, for the program.

    Threads that are started meanwhile block them too: else one of them would get a signal instead.
    """
    before: set[int] = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)}
    try:
        yield before
    finally:
        # Signals after the program's end were meant for it, too.
        while signal.sigtimedwait(_HELD, 0) is not None:
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


def _folders(journal: Path) -> list[Path]:
    """Folders for ring files: in memory, and beside the journal for those that find no room there.

    Docker gives a container 64 MiB of /dev/shm, enough for the rings of three processes.
    """
    found = [_folder(_memory())]
    try:
        found.append(_folder(journal.absolute().parent, ".rocekit-record-"))
    except OSError:
        pass
    return found


class ProgramRecorder:
    """Runs a program and writes its journal.

    Args:
        command: the program and its arguments.
        journal: the file to write; replaced.
        library: the interposer, from ``build``.
        mask: the program's signal mask, from :func:`holding_signals`, if the caller blocks them already.
        slots: of each ring, a power of two.
        rings: how many threads can write without sharing a ring.
        children: record also the programs that it starts.
        redact: replace keys and addresses.
        nicer: how much lower a priority to take than the program's, once it runs; see nice(2). Then waking up
            does not interrupt the program, either.
        capture: packets to capture while the program runs.
        kernel_cm: the kernel's connection managers, whose events go into the same journal.
        counters: gives snapshots of counters; called before the program starts and after it has ended.
        rank: the program's rank in a parallel program.
        choice: which work requests to record.
        limits: write the journal into several files, and when the next one begins.
    """

    def __init__(
        self,
        command: Sequence[str],
        journal: Path,
        library: Path,
        *,
        mask: set[int] | None = None,
        slots: int = DEFAULT_SLOTS,
        rings: int = DEFAULT_RINGS,
        children: bool = True,
        redact: bool = False,
        nicer: int = 0,
        capture: PacketCapture | None = None,
        kernel_cm: KernelCm | None = None,
        counters: Callable[[], list[CounterSnapshot]] | None = None,
        rank: int | None = None,
        limits: FileLimits | None = None,
        choice: RecordFilter = ALL,
    ) -> None:
        if not command:
            raise ValueError("no program to run")
        if slots < 64 or slots & (slots - 1):
            raise ValueError("slots must be a power of two, 64 at least")
        self._command = list(command)
        self._program = find_program(self._command[0])
        self._slots, self._rings, self._children = slots, rings, children
        self._library = library
        self._capture, self._kernel_cm, self._counters = capture, kernel_cm, counters
        self._mask = mask
        self._nicer = nicer
        self._rank, self._limits, self._choice = rank, limits, choice
        self._redaction = None
        if redact:
            from rocekit.journal.redaction import Redaction

            self._redaction = Redaction()
        self.result = Recording(journal)
        if has_own_privileges(self._program):
            raise ProgramError(
                f"{self._program} has privileges of its own (setuid or capabilities), and the system "
                "preloads no library into such a program; record it as root",
                126,
            )

    def run(self) -> Recording:
        """Start the program, wait for its end, and finish the journal.

        If the journal or packets can no longer be written, the result says so, and the program continues.

        Raises:
            JournalError: the journal cannot be written at the start.
            ProgramError: the program cannot be started.
        """
        folders = _folders(self.result.journal)
        pid = None
        try:
            with holding_signals() as mask:
                try:
                    with self._open_journal() as writer:
                        rings = Rings(folders, writer, self.result, self._redaction, choice=self._choice)
                        if isinstance(writer, RotatingJournal):
                            writer.at_start = rings.left_out
                        self._start_companions()
                        self._log_counters(writer)
                        pid = self._spawn(folders, mask if self._mask is None else self._mask)
                        self._give_way()
                        self._record(pid, rings, writer)
                except JournalError as error:
                    if pid is None:
                        raise
                    self._not_written(error)
                    while not self._has_ended(pid):
                        self._wait(pid, None)
                    self._stop_capture()
        finally:
            if self._kernel_cm is not None:
                self._kernel_cm.stop()
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        return self.result

    def _open_journal(self) -> JournalWriter | RotatingJournal:
        host = socket.gethostname()
        if self._limits is None:
            return JournalWriter(self.result.journal, host=host)
        journal = RotatingJournal(self.result.journal, self._limits, host=host)
        self.result.files = journal.files
        return journal

    def _record(self, pid: int, rings: Rings, writer: JournalWriter | RotatingJournal) -> None:
        """The program from its start to its end."""
        about = {"arguments": self._command, "rank": self._rank, "filter": str(self._choice) or None}
        self._log_recording(writer, pid, state="started", **about)
        if is_static(self._program):
            what = f"{self._program}: linked statically: no library can be preloaded into it"
            self.result.not_recorded.append(what)
            writer.write("not_recorded", pid=pid, what=what)
        self._follow(pid, rings, writer)
        # Signals up to now were meant for the program.
        while signal.sigtimedwait(_HELD, 0) is not None:
            pass
        rings.finish(lambda: signal.sigtimedwait(_ENDING, 0) is not None)
        self._log_counters(writer)
        self._stop_capture()
        if self._kernel_cm is not None:
            self._log_kernel_cm(writer)
            self._kernel_cm.stop()
            if self._kernel_cm.lost:
                writer.write("records_lost", count=self._kernel_cm.lost, others=self._kernel_cm.lost)
        number = self.result.signal
        name = None if number is None else signal.Signals(number).name
        # Last, because looking up the version takes time that the program may need.
        self._log_recording(
            writer, pid, state="ended", status=self.result.status, signal=name, version=_version()
        )

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

    def _spawn(self, folders: list[Path], mask: set[int]) -> int:
        variables = environment(
            os.environ,
            self._library,
            folders[0],
            spill=folders[1] if len(folders) > 1 else None,
            slots=self._slots,
            rings=self._rings,
            children=self._children,
        )
        try:
            # Python ignores these two, and an ignored signal stays ignored after exec.
            return os.posix_spawn(
                self._program,
                self._command,
                variables,
                setsigmask=mask,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError as error:
            raise ProgramError(f"{self._program}: {error.strerror or error}", 126) from None

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

    def _follow(self, pid: int, rings: Rings, writer: JournalWriter | RotatingJournal) -> None:
        """Until the program ends, pass on signals and empty the rings."""
        while True:
            signalled = self._wait(pid, rings.pause_s)
            if not rings.tick() and not signalled:
                continue
            if self._has_ended(pid):
                return
            self._log_kernel_cm(writer)

    def _wait(self, pid: int, for_s: float | None) -> bool:
        """Wait for a signal, and pass it on unless it is SIGCHLD; whether there was any."""
        got = signal.sigwaitinfo(_HELD) if for_s is None else signal.sigtimedwait(_HELD, for_s)
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._pass_on(pid, got)
        return got is not None

    def _has_ended(self, pid: int) -> bool:
        """Whether the program has ended, and how; if it is stopped, this process stops, too."""
        if self.result.status is not None or self.result.signal is not None:
            return True
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if not ended:
            return False
        if os.WIFSTOPPED(status):
            # As for a shell: the parent of a stopped program stops, too, and both continue together.
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
            return False
        if os.WIFSIGNALED(status):
            self.result.signal = os.WTERMSIG(status)
        else:
            self.result.status = os.WEXITSTATUS(status)
        return True

    @staticmethod
    def _pass_on(pid: int, got: signal.struct_siginfo) -> None:
        """Pass on a signal that a process sent to this one. A terminal's signals the program has already."""
        if got.si_code <= _SI_USER_AT_MOST and got.si_pid != pid:
            try:
                os.kill(pid, got.si_signo)
            except ProcessLookupError:
                pass


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("rocekit")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
