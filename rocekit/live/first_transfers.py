"""What a trace with a journal keeps: its first transfers, so that it may run for weeks.

The journal is matched when the trace ends, by PSNs or by order from the first message on. So the first
transfers are kept, as if the trace had ended behind them, and later ones are reported and counted only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.journal import Journal
from rocekit.track.transfers import INCOMPLETE, UNACKNOWLEDGED

if TYPE_CHECKING:
    from rocekit.track.tracker import Tracker
    from rocekit.track.transfers import Transfer

_POSTED: Final = frozenset({"wr_posted", "recv_posted"})
#: How many more there are before any are let go.
_AT_ONCE: Final = 8


class FirstTransfers:
    """Lets go of what a tracker that keeps all transfers has beyond the first ``most``.

    Attributes:
        until_ns: when the first transfer began that is not kept; None while all are.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last_id = -1
        self.until_ns: int | None = None

    def trim(self, tracker: Tracker) -> None:
        """Between two batches: let go of those that have ended, and of the oldest others if they are many."""
        transfers = tracker.transfers
        if len(transfers) <= self._most + self._most // _AT_ONCE:
            return
        if self.until_ns is None:
            self._last_id = transfers[self._most - 1].id
            self.until_ns = transfers[self._most].first_ns
        first = [t for t in transfers if t.id <= self._last_id]
        later = transfers[len(first) :]
        going_on = [t for t in later if t.status in (INCOMPLETE, UNACKNOWLEDGED)][-self._most :]
        staying = {t.id for t in going_on}
        gone = [t for t in later if t.id not in staying]
        for transfer in gone:
            transfer.connection.bytes += transfer.bytes
        self._count(tracker, gone)
        tracker.transfers = first + going_on

    def finish(self, tracker: Tracker, journal: Journal | None) -> Journal | None:
        """The trace has ended, and the tracker too: the journal, without what was posted later."""
        if self.until_ns is None:
            return journal
        first = [t for t in tracker.transfers if t.id <= self._last_id]
        self._count(tracker, tracker.transfers[len(first) :])
        tracker.transfers = first
        if journal is None:
            return None
        until_ns = self.until_ns
        events = [e for e in journal.events if e.time_ns < until_ns or e.event not in _POSTED]
        return Journal(events, journal.problems, journal.empty)

    @staticmethod
    def _count(tracker: Tracker, gone: list[Transfer]) -> None:
        for transfer in gone:
            tracker.left_out[transfer.status] += 1
