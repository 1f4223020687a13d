"""Snapshots of counters at the start and at the end of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocekit.counters.trial import CounterTrial
from rocekit.files.capture_names import JOURNAL_SUFFIX, stem
from rocekit.journal import Journal, JournalWriter
from rocekit.journal.counters import snapshots_in, write_snapshots
from rocekit.machine.counters import CounterPlace, CounterReader, CounterSnapshot, RunningCapture

#: Packets that are kept to compare counters with them: a trace may run for days.
_MOST: Final = 2_000_000


def counters_journal(capture: Path) -> Path:
    """The journal with the snapshots of a trace that is written to ``capture``."""
    return capture.parent / f"{stem(capture)}.counters{JOURNAL_SUFFIX}"


class CountedTrace:
    """The counters of the interface that is traced, and of the RDMA devices on it.

    The first snapshots are taken at once, when the capture has started; the last ones before it stops. So the
    capture covers the time between them.

    Args:
        wanted: whether to take snapshots; else only those of journals count.
        journal: what is in the journals before the trace.
        write: the file that the packets are written to; a journal with the snapshots is put beside it.

    Attributes:
        trial: compares them with the packets.

    Raises:
        RocekitError: there is no such interface.
    """

    def __init__(self, interface: str, *, wanted: bool, journal: Journal | None, write: Path | None) -> None:
        self._wanted = wanted
        self._reader = CounterReader()
        self._places: list[CounterPlace] = self._reader.places([interface]) if wanted else []
        self._write = write
        # The trace's own analysis has the interface's name for a file's.
        self._capture = RunningCapture(interface, interface)
        self.trial = CounterTrial(self._take() if wanted else snapshots_in(journal), _MOST)

    def _take(self) -> list[CounterSnapshot]:
        return [self._reader.snapshot(place, self._capture) for place in self._places]

    def end(self) -> None:
        """Take the last snapshots, unless they have been taken."""
        self.trial.snapshots += self._take()
        self._places = []

    def finish(self, journal: Journal | None) -> None:
        """Write the snapshots taken, or else use those of the journals as they are now.

        Raises:
            JournalError: they cannot be written.
        """
        if not self._wanted:
            self.trial.snapshots.clear()
            self.trial.snapshots += snapshots_in(journal)
        elif self._write is not None:
            name = self._write.name
            with JournalWriter(counters_journal(self._write)) as writer:
                write_snapshots(writer, [s.captured(name) for s in self.trial.snapshots])
