"""Running a program and writing its journal."""

from __future__ import annotations

import os
import signal

from rocekit._version import VERSION
from rocekit.errors import JournalError
from rocekit.record.journal_recorder import JournalRecorder
from rocekit.record.program import ProgramError, environment, find_program, has_own_privileges, is_static
from rocekit.record.start import ENDING, HELD, SI_USER_AT_MOST, holding_signals, ring_folders, spawn
from rocekit.record.unseen import UnseenProcesses

TYPE_CHECKING = (
    False  # what records a short program is loaded while it runs: typing takes longer than most of it
)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any, Final

    from rocekit.journal import JournalWriter
    from rocekit.journal.rotating import RotatingJournal
    from rocekit.record.collect import Rings
    from rocekit.record.early import Begun
    from rocekit.record.recording import Recording

_FIRST: Final = 1
"""The number of a container's first process."""


class ProgramRecorder(JournalRecorder):
    """Runs a program and writes its journal.

    Args:
        command: the program and its arguments.
        journal: the file to write; replaced.
        library: the interposer, from ``build``.
        mask: the program's signal mask, from :func:`holding_signals`, if the caller blocks them already.
        children: record also the programs that it starts.
        begun: the program runs already, and this is what was prepared.
        options: those of :class:`JournalRecorder`.
    """

    def __init__(
        self,
        command: Sequence[str],
        journal: Path | str,
        library: Path | str,
        *,
        mask: set[int] | None = None,
        children: bool = True,
        begun: Begun | None = None,
        **options: Any,
    ) -> None:
        if not command:
            raise ValueError("no program to run")
        super().__init__(journal, library, **options)
        self._command = list(command)
        self._children, self._mask, self._begun = children, mask, begun
        if begun is not None:
            self._program = begun.program
            return
        self._program = find_program(self._command[0])
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
        begun = self._begun
        if begun is None:
            folders, pid, opened = ring_folders(self.result.journal), None, None
        else:
            begun.taken = True
            folders, pid, opened = begun.folders, begun.pid, begun.journal
            self._nicer = 0  # it is already
        try:
            with holding_signals() as mask:
                try:
                    with self._open_journal(opened) as writer:
                        rings = self._open_rings(folders, writer)
                        if begun is None:
                            self._start_companions()
                            self._log_counters(writer)
                            pid = self._spawn(folders, mask if self._mask is None else self._mask)
                        self._give_way()
                        assert pid is not None
                        self._record(pid, rings, writer)
                except JournalError as error:
                    if pid is None:
                        raise
                    self._not_written(error)
                    while not self._has_ended(pid):
                        self._wait(pid, None)
                    self._stop_capture()
        finally:
            self._clean_up(folders)
        return self.result

    def _record(self, pid: int, rings: Rings, writer: JournalWriter | RotatingJournal) -> None:
        """The program from its start to its end."""
        about = {
            "arguments": self._command,
            "rank": self._rank,
            "filter": str(self._choice) if self._choice else None,
        }
        if self._begun is not None:
            about |= {"time_ns": self._begun.time_ns, "mono_ns": self._begun.mono_ns}
        self._log_recording(writer, pid, state="started", **about)
        if is_static(self._program):
            what = f"{self._program}: linked statically: no library can be preloaded into it"
            self.result.not_recorded.append(what)
            writer.write("not_recorded", pid=pid, what=what)
        self._follow(pid, rings, writer, UnseenProcesses(pid, self._library) if self._children else None)
        # Signals up to now were meant for the program.
        while signal.sigtimedwait(HELD, 0) is not None:
            pass
        self._log_counters_before(writer)
        rings.finish(lambda: signal.sigtimedwait(ENDING, 0) is not None)
        self._end_companions(writer)
        number = self.result.signal
        name = None if number is None else signal.Signals(number).name
        self._log_recording(
            writer, pid, state="ended", status=self.result.status, signal=name, version=VERSION
        )

    def _log_counters_before(self, writer: JournalWriter | RotatingJournal) -> None:
        """What the counters were before a program that was started early.

        Which device and address they are of is asked for when there is time: that takes longer than to read
        them all.
        """
        if self._begun is not None and self._begun.counters is not None:
            before, self._begun.counters = self._begun.counters, None
            self._log_counters(writer, before)

    def _spawn(self, folders: list[str], mask: set[int]) -> int:
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
            return spawn(self._program, self._command, variables, mask)
        except OSError as error:
            raise ProgramError(f"{self._program}: {error.strerror or error}", 126) from None

    def _follow(
        self,
        pid: int,
        rings: Rings,
        writer: JournalWriter | RotatingJournal,
        unseen: UnseenProcesses | None,
    ) -> None:
        """Until the program ends, pass on signals and empty the rings."""
        while True:
            signalled = self._wait(pid, rings.pause_s)
            worked = rings.tick()
            if rings.spare:
                self._log_counters_before(writer)
            if not worked and not signalled:
                continue
            if self._has_ended(pid):
                return
            self._log_kernel_cm(writer)
            for number, what in unseen.look(self.result.processes) if unseen is not None else ():
                self.result.not_recorded.append(what)
                writer.write("not_recorded", pid=number, what=what)
                writer.flush()  # who reads the journal meanwhile is to know now

    def _wait(self, pid: int, for_s: float | None) -> bool:
        """Wait for a signal, and pass it on unless it is SIGCHLD; whether there was any."""
        got = signal.sigwaitinfo(HELD) if for_s is None else signal.sigtimedwait(HELD, for_s)
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._pass_on(pid, got)
        return got is not None

    def _has_ended(self, pid: int) -> bool:
        """Whether the program has ended, and how; if it is stopped, this process stops, too."""
        if self.result.status is not None or self.result.signal is not None:
            return True
        if os.getpid() == _FIRST:
            self._reap_orphans(pid)
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
    def _reap_orphans(pid: int) -> None:
        """Forget the other processes that have ended: in a container all become children of the first one.

        Nobody else can, and those that are not forgotten count against the container's limit.
        """
        try:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == pid:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)
        except ChildProcessError:
            pass

    @staticmethod
    def _pass_on(pid: int, got: signal.struct_siginfo) -> None:
        """Pass on a signal that a process sent to this one. A terminal's signals the program has already."""
        if got.si_code <= SI_USER_AT_MOST and got.si_pid != pid:
            try:
                os.kill(pid, got.si_signo)
            except ProcessLookupError:
                pass
