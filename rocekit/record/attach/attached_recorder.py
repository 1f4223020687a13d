"""Recording a program that runs already, until a signal or its end."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit._version import VERSION
from rocekit.errors import JournalError
from rocekit.journal.work_requests import ATTACHED
from rocekit.record.attach.attachment import Attachment
from rocekit.record.attach.target import AttachError, RunningProgram
from rocekit.record.journal_recorder import JournalRecorder
from rocekit.record.recording import Recording
from rocekit.record.start import ENDING, HELD, holding_signals, ring_folders

if TYPE_CHECKING:
    from rocekit.journal import JournalWriter
    from rocekit.journal.rotating import RotatingJournal
    from rocekit.record.collect import Rings

_LOOK_S: Final = 1.0
"""How often it is looked whether the process is still the same program."""
_LET_GO_S: Final = 1.0
"""How long its next verbs call is waited for at the end."""
_NOT_HAD: Final = (
    "what it did before the recorder was attached: completions of earlier work requests belong to none here",
    "set-up calls that it makes through functions found by dlsym, or in libraries that it loads later",
    "the processes that it starts",
)


class AttachedRecorder(JournalRecorder):
    """Records a program that runs already.

    Args:
        target: the process; closed at the end.
        journal: the file to write; replaced.
        library: the interposer, from ``build``.
        told: called with what there is to say: that it is attached, that the program is not yet let go.
        options: those of :class:`JournalRecorder`.
    """

    def __init__(
        self,
        target: RunningProgram,
        journal: Path,
        library: Path,
        *,
        told: Callable[[str], None] = lambda words: None,
        **options: Any,
    ) -> None:
        super().__init__(journal, library, **options)
        self._target, self._told = target, told
        self._let = False
        self._pid = target.own_pid

    def run(self) -> Recording:
        """Attach, record until a signal or the program's end, let go of the program, finish the journal.

        Raises:
            AttachError: it cannot be attached to; it is as it was, and no journal is written.
            JournalError: the journal cannot be written.
        """
        folders = list(map(Path, ring_folders(self.result.journal)))
        try:
            with holding_signals():
                attachment = Attachment(self._target, Path(self._library), folders, self._slots, self._rings)
                attachment.begin()
                try:
                    self._run(folders, attachment)
                finally:
                    self._let_go(attachment)
        finally:
            self._clean_up(folders)
            self._target.close()
        return self.result

    def _run(self, folders: list[Path], attachment: Attachment) -> None:
        try:
            with self._open_journal() as writer:
                rings = self._open_rings(folders, writer)
                self._start_companions()
                self._log_counters(writer)
                self._give_way()
                self._begin(writer)
                self._follow(rings, writer, attachment)
                self._let_go(attachment)
                rings.finish(lambda: signal.sigtimedwait(ENDING, 0) is not None, detached=True)
                self._end_companions(writer)
                state = "detached" if self._target.alive() else "ended"
                self._log_recording(writer, self._pid, state=state, version=VERSION)
        except JournalError as error:
            if not self.result.processes:
                raise
            self._not_written(error)
            self._stop_capture()

    def _begin(self, writer: JournalWriter | RotatingJournal) -> None:
        about = {
            "program": self._target.exe,
            "rank": self._rank,
            "filter": str(self._choice) if self._choice else None,
        }
        self._log_recording(writer, self._pid, state=ATTACHED, **about)
        for what in _NOT_HAD:
            writer.write("not_recorded", pid=self._pid, what=what)

    def _follow(self, rings: Rings, writer: JournalWriter | RotatingJournal, attachment: Attachment) -> None:
        """Until a signal or the program's end, empty the rings."""
        inside = False
        looked = time.monotonic()
        ended = select.poll()
        ended.register(self._target.pidfd, select.POLLIN)
        while True:
            got = signal.sigtimedwait(HELD, rings.pause_s)
            if got is not None and got.si_signo in ENDING:
                return
            if ended.poll(0):
                return
            if not inside and (inside := attachment.attached):
                self._told(
                    f"attached to process {self._target.pid} ({self._target.exe}); Ctrl-C lets go of it"
                )
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                if not self._target.alive():
                    return
            if rings.tick():
                self._log_kernel_cm(writer)

    def _let_go(self, attachment: Attachment) -> None:
        if self._let:
            return
        self._let = True
        try:
            attachment.end()
            until = time.monotonic() + _LET_GO_S
            while not attachment.ended and time.monotonic() < until:
                time.sleep(0.002)
        except AttachError as error:
            self.result.failed.append(str(error))
            return
        if not attachment.ended:
            self._told(
                f"process {self._target.pid} has posted and polled nothing for {_LET_GO_S:g} s: "
                "its next verbs call takes the recorder out, and records nothing"
            )
