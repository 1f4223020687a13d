"""Running a program that knows nothing of it, and writing the journal of what it asks of verbs.

The program gets a library put in (``interposer``) that writes records into shared memory
(``record_ring``). Here the program is started, its rings are emptied while it runs, records become journal
lines (``record_events``), and its end is told as it was.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit.errors import JournalError, RocekitError
from rocekit.journal import JournalWriter
from rocekit.record.collect import Recording, Rings, alive

if TYPE_CHECKING:
    from rocekit.record.capture import PacketCapture
    from rocekit.record.kernel_cm import KernelCm

DEFAULT_SLOTS: Final = 1 << 15
"""Slots of a ring: 2 MiB. A work request takes two as a rule, a receive and a completion one."""
DEFAULT_RINGS: Final = 8
_PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGTSTP),
)
_HELD: Final = frozenset({*_PASSED_ON, signal.SIGCHLD})
_PT_INTERP: Final = 3
"""The program header that names the dynamic linker (elf(5))."""
_SI_USER_AT_MOST: Final = 0
"""A signal's si_code: at most 0 when a process sent it, above when the kernel did (sigaction(2))."""


def is_static(path: str) -> bool:
    """Whether a program needs no dynamic linker, which would put a library into it."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(64)
            if head[:5] != b"\x7fELF\x02":
                return False
            offset, size, count = (
                int.from_bytes(head[32:40], "little"),
                int.from_bytes(head[54:56], "little"),
                int.from_bytes(head[56:58], "little"),
            )
            file.seek(offset)
            table = file.read(size * count)
    except OSError:
        return False
    kinds = [int.from_bytes(table[k : k + 4], "little") for k in range(0, len(table), size or 1)]
    return _PT_INTERP not in kinds


class ProgramError(RocekitError):
    """The program cannot be started. ``status`` is what a shell would exit with: 127 or 126."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


# ---------------------------------------------------------------------- the program


def _folder() -> Path:
    """A folder for ring files, in memory where there is a place for that; leftovers of dead recorders go."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    for old in base.glob("rocekit-record-*"):
        try:
            pid = int(old.name.split("-")[2])
            if old.stat().st_uid == os.geteuid() and not alive(pid):
                shutil.rmtree(old, ignore_errors=True)
        except (OSError, ValueError, IndexError):
            continue
    folder = Path(tempfile.mkdtemp(prefix=f"rocekit-record-{os.getpid()}-", dir=base))
    if os.geteuid() == 0:
        # A program that starts as root may be somebody else by the time it opens a device.
        folder.chmod(0o1733)
    return folder


def environment(
    caller: Mapping[str, str], library: Path, folder: Path, *, slots: int, rings: int, children: bool
) -> dict[str, str]:
    """The program's environment: the caller's, and what puts the interposer in."""
    preload = [str(library), *caller.get("LD_PRELOAD", "").replace(":", " ").split()]
    new = {
        **caller,
        "LD_PRELOAD": ":".join(preload),
        "ROCEKIT_RECORD_FOLDER": str(folder),
        "ROCEKIT_RECORD_SLOTS": str(slots),
        "ROCEKIT_RECORD_RINGS": str(rings),
    }
    new.pop("ROCEKIT_RECORD_PARENT", None)
    if not children:
        new["ROCEKIT_RECORD_PARENT"] = str(os.getpid())
    return new


def find_program(name: str) -> str:
    """The program's path, as the shell would find it.

    Raises:
        ProgramError: there is none, or it is not one.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    if os.sep in name and Path(name).exists():
        raise ProgramError(f"{name}: cannot be run", 126)
    raise ProgramError(f"{name}: no such program", 127)


def _has_privileges_of_its_own(path: str) -> bool:
    """Whether the dynamic linker will leave LD_PRELOAD out (ld.so(8), secure-execution mode)."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
        if mode & 0o6000 and os.geteuid() != 0:
            return True
        return "security.capability" in os.listxattr(path) and os.geteuid() != 0
    except OSError:
        return False


@contextmanager
def holding_signals() -> Iterator[set[int]]:
    """Keep for later what is to be passed on to a program; gives the mask as it was, for the program.

    Threads that are started meanwhile hold them too: else one of them would get a signal in our place.
    """
    before: set[int] = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)}
    try:
        yield before
    finally:
        # What came after the program's end was meant for it as well.
        while signal.sigtimedwait(_HELD, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Recorder:
    """Runs a program and writes its journal.

    Args:
        command: the program and its arguments.
        journal: the file to write; replaced.
        library: the interposer, from ``record_build``.
        mask: the program's signal mask, from :func:`holding_signals`, where the caller holds them already.
        slots: of each ring, a power of two.
        rings: threads that write without meeting each other.
        children: record also what the program starts.
        redact: replace keys and addresses.
        nicer: how much less of a processor to ask for than the program, once it runs; see nice(2). Waking up
            then takes none away from it, either.
        capture: packets to capture while the program runs.
        kernel_cm: the kernel's connection managers, to be written into the same journal.
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
    ) -> None:
        if not command:
            raise ValueError("no program to run")
        if slots < 64 or slots & (slots - 1):
            raise ValueError("slots must be a power of two, 64 at least")
        self._command = list(command)
        self._program = find_program(self._command[0])
        self._slots, self._rings, self._children = slots, rings, children
        self._library = library
        self._capture, self._kernel_cm = capture, kernel_cm
        self._mask = mask
        self._nicer = nicer
        self._redaction = None
        if redact:
            from rocekit.journal.redaction import Redaction

            self._redaction = Redaction()
        self.result = Recording(journal)
        if _has_privileges_of_its_own(self._program):
            raise ProgramError(
                f"{self._program} has privileges of its own (setuid or capabilities), and the system puts no "
                "library into such a program; record it as root",
                126,
            )

    def run(self) -> Recording:
        """Start the program, wait for its end, and finish the journal.

        A journal or packets that cannot be written any more are said in the result, and the program goes on.

        Raises:
            JournalError: the journal cannot be written from the first.
            ProgramError: the program cannot be started.
        """
        folder = _folder()
        pid = None
        try:
            with holding_signals() as mask:
                try:
                    with JournalWriter(self.result.journal, host=socket.gethostname()) as writer:
                        rings = Rings(folder, writer, self.result, self._redaction)
                        self._start_companions()
                        pid = self._spawn(folder, mask if self._mask is None else self._mask)
                        self._give_way()
                        self._record(pid, rings, writer)
                except JournalError as error:
                    if pid is None:
                        raise
                    self.result.failed.append(str(error))
                    while not self._has_ended(pid):
                        self._wait(pid, None)
                    self._stop_capture()
        finally:
            if self._kernel_cm is not None:
                self._kernel_cm.stop()
            shutil.rmtree(folder, ignore_errors=True)
        return self.result

    def _record(self, pid: int, rings: Rings, writer: JournalWriter) -> None:
        """The program from its start to its end."""
        self._tell(writer, pid, state="started", arguments=self._command)
        if is_static(self._program):
            what = f"{self._program}: linked statically, so that no library can be put into it"
            self.result.not_recorded.append(what)
            writer.write("not_recorded", pid=pid, what=what)
        self._follow(pid, rings, writer)
        rings.finish()
        self._stop_capture()
        if self._kernel_cm is not None:
            self._tell_kernel_cm(writer)
            self._kernel_cm.stop()
            if self._kernel_cm.lost:
                writer.write("records_lost", count=self._kernel_cm.lost, others=self._kernel_cm.lost)
        number = self.result.signal
        name = None if number is None else signal.Signals(number).name
        # Looking for the version takes longer than the program may have to spare before.
        self._tell(writer, pid, state="ended", status=self.result.status, signal=name, version=_version())

    def _give_way(self) -> None:
        """Let the program go first where processors are few; SCHED_BATCH interrupts nobody as it wakes up."""
        # What is loaded by now stays; whoever looks for garbage later need not go through it.
        gc.freeze()
        if self._nicer:
            os.nice(self._nicer)
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    @staticmethod
    def _tell(writer: JournalWriter, pid: int, **fields: Any) -> None:
        writer.write("recording", pid=pid, mono_ns=time.monotonic_ns(), **fields)

    def _spawn(self, folder: Path, mask: set[int]) -> int:
        variables = environment(
            os.environ,
            self._library,
            folder,
            slots=self._slots,
            rings=self._rings,
            children=self._children,
        )
        try:
            # Python ignores these two, and what is ignored stays so over exec.
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
            self.result.failed.append(str(error))

    def _tell_kernel_cm(self, writer: JournalWriter) -> None:
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

    def _follow(self, pid: int, rings: Rings, writer: JournalWriter) -> None:
        """Until the program ends: pass on signals, empty rings."""
        while True:
            told = self._wait(pid, rings.pause_s)
            if not rings.tick() and not told:
                continue
            if self._has_ended(pid):
                return
            self._tell_kernel_cm(writer)

    def _wait(self, pid: int, for_s: float | None) -> bool:
        """Wait for a signal, and pass on what is not the program's own end; whether there was any."""
        told = signal.sigwaitinfo(_HELD) if for_s is None else signal.sigtimedwait(_HELD, for_s)
        if told is not None and told.si_signo != signal.SIGCHLD:
            self._pass_on(pid, told)
        return told is not None

    def _has_ended(self, pid: int) -> bool:
        """Whether the program is gone, and how; one that is stopped stops us too."""
        if self.result.status is not None or self.result.signal is not None:
            return True
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if not ended:
            return False
        if os.WIFSTOPPED(status):
            # As a shell sees a stopped program: its parent stops too, and goes on when told to.
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
            return False
        if os.WIFSIGNALED(status):
            self.result.signal = os.WTERMSIG(status)
        else:
            self.result.status = os.WEXITSTATUS(status)
        return True

    @staticmethod
    def _pass_on(pid: int, told: signal.struct_siginfo) -> None:
        """What somebody sent to us is meant for the program. A terminal has sent it to both already."""
        if told.si_code <= _SI_USER_AT_MOST and told.si_pid != pid:
            try:
                os.kill(pid, told.si_signo)
            except ProcessLookupError:
                pass


def _version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("rocekit")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
