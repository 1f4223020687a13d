"""Snapshots of counters at the start and at the end of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rocekit.analysis import JOURNAL_SUFFIX
from rocekit.counters.trial import CounterTrial
from rocekit.files.outputs import stem
from rocekit.journal import Journal, JournalWriter
from rocekit.journal.counters import snapshots_in, write_snapshots
from rocekit.machine.counters import CounterPlace, Machine, snapshots

#: Packets that are kept to compare counters with them: a trace may run for days.
_MOST: Final = 2_000_000


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
        self._interface = interface
        self._wanted = wanted
        self._file = None if write is None else write.parent / f"{stem(write)}.counters{JOURNAL_SUFFIX}"
        self._places: list[CounterPlace] = Machine().places([interface]) if wanted else []
        before = snapshots(self._places, captured_on=interface) if wanted else snapshots_in(journal)
        self.trial = CounterTrial(before, _MOST)

    def end(self) -> None:
        """Take the last snapshots, unless they have been taken."""
        places, self._places = self._places, []
        self.trial.snapshots += snapshots(places, captured_on=self._interface)

    def finish(self, journal: Journal | None) -> None:
        """Write the snapshots taken, or else use those of the journals as they are now.

        Raises:
            JournalError: they cannot be written.
        """
        if not self._wanted:
            self.trial.snapshots.clear()
            self.trial.snapshots += snapshots_in(journal)
        elif self._file is not None:
            with JournalWriter(self._file) as writer:
                write_snapshots(writer, self.trial.snapshots)
