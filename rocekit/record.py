"""Running a program that knows nothing of it, and writing the journal of what it asks of verbs.

The program gets a library put in (``interposer``) that writes records into shared memory
(``record_ring``). Here the program is started, its rings are emptied while it runs, records become journal
lines (``record_events``), and its end is told as it was.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocekit.errors import RocekitError
from rocekit.journal import JournalWriter
from rocekit.record_collect import Recording, Rings, alive

DEFAULT_SLOTS: Final = 1 << 15
"""Slots of a ring: 2 MiB. A work request takes two as a rule, a receive and a completion one."""
DEFAULT_RINGS: Final = 8
TICK_S: Final = 0.01
_PASSED_ON: Final = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGWINCH, signal.SIGCONT, signal.SIGALRM, signal.SIGTSTP),
)
_SI_USER_AT_MOST: Final = 0
"""A signal's si_code: at most 0 when a process sent it, above when the kernel did (sigaction(2))."""


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


class Recorder:
    """Runs a program and writes its journal.

    Args:
        command: the program and its arguments.
        journal: the file to write; replaced.
        library: the interposer, from ``record_build``.
        slots: of each ring, a power of two.
        rings: threads that write without meeting each other.
        children: record also what the program starts.
        redact: replace keys and addresses.
    """

    def __init__(
        self,
        command: Sequence[str],
        journal: Path,
        library: Path,
        *,
        slots: int = DEFAULT_SLOTS,
        rings: int = DEFAULT_RINGS,
        children: bool = True,
        redact: bool = False,
    ) -> None:
        if not command:
            raise ValueError("no program to run")
        if slots < 64 or slots & (slots - 1):
            raise ValueError("slots must be a power of two, 64 at least")
        self._command = list(command)
        self._program = find_program(self._command[0])
        self._slots, self._rings, self._children = slots, rings, children
        self._library = library
        self._redaction = None
        if redact:
            from rocekit.record_redact import Redaction

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

        Raises:
            JournalError: the journal cannot be written.
            ProgramError: the program cannot be started.
        """
        folder = _folder()
        try:
            with JournalWriter(self.result.journal, host=socket.gethostname()) as writer:
                rings = Rings(folder, writer, self.result, self._redaction)
                passed = {*_PASSED_ON, signal.SIGCHLD}
                before = signal.pthread_sigmask(signal.SIG_BLOCK, passed)
                try:
                    pid = self._spawn(folder, before)
                    writer.write(
                        "recording",
                        pid=pid,
                        state="started",
                        mono_ns=time.monotonic_ns(),
                        arguments=self._command,
                        version=_version(),
                    )
                    self._follow(pid, passed, rings)
                    rings.finish()
                    writer.write(
                        "recording",
                        pid=pid,
                        state="ended",
                        mono_ns=time.monotonic_ns(),
                        status=self.result.status,
                        signal=None
                        if self.result.signal is None
                        else signal.Signals(self.result.signal).name,
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.result

    def _spawn(self, folder: Path, mask: set[signal.Signals] | set[int]) -> int:
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

    def _follow(self, pid: int, passed: set[signal.Signals], rings: Rings) -> None:
        """Until the program ends: pass on signals, empty rings."""
        while True:
            told = signal.sigtimedwait(passed, TICK_S)
            if told is not None and told.si_signo != signal.SIGCHLD:
                self._pass_on(pid, told)
            ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if ended and os.WIFSTOPPED(status):
                # As a shell sees a stopped program: its parent stops too, and goes on when told to.
                os.kill(os.getpid(), signal.SIGSTOP)
                os.kill(pid, signal.SIGCONT)
            elif ended:
                if os.WIFSIGNALED(status):
                    self.result.signal = os.WTERMSIG(status)
                else:
                    self.result.status = os.WEXITSTATUS(status)
                return
            rings.tick()

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
