# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""What becomes of a row of the clean lane that leaves the table: an object, or nothing but a count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.track.lane.clean_side import NONE, CleanSide
from rocekit.track.lane.row_layout import BYTES, IS_A_READ, IS_ACKED, IS_MADE, NEXT, PACKETS, WHAT
from rocekit.track.ledger import READ_KIND, WINDOW
from rocekit.track.transfers import ACKED, SENT

if TYPE_CHECKING:
    from rocekit.track.lane.transfer_rows import TransferRows
    from rocekit.track.ledger import Sink
    from rocekit.track.transfers import Transfer


class LeavingRows:
    """Takes rows out of the table.

    Args:
        rows: the table.
        sink: takes the transfers that become objects, and counts the others.
    """

    def __init__(self, rows: TransferRows, sink: Sink) -> None:
        self._rows = rows
        self._sink = sink

    def report(self, side: CleanSide, at: int, shows: bool) -> None:
        """A transfer has ended, and somebody is to hear of it; who keeps transfers keeps this one.

        Args:
            shows: whether somebody looks at the transfers between two batches.
        """
        is_made = self._rows.words[at + WHAT] & IS_MADE
        transfer = self._rows.object_of(at, side.connection, side.number, side.reliable)
        if shows and not is_made:
            self._sink.made(transfer)
        if shows or is_made:
            self._rows.keep(at, transfer)
        self._sink.ended(transfer)

    def hand_over(self, side: CleanSide) -> list[Transfer]:
        """The state machine gets a side; gives those of its transfers that nobody has heard of as objects."""
        unmade: list[Transfer] = []
        at = side.first
        while at >= 0:
            at = self.make(side, at, unmade)
        side.clear()
        return unmade

    def end(self, side: CleanSide) -> None:
        """Nothing more comes, so that a summary needs no objects of what is over."""
        at, forgets = side.first, self._sink.forgets()
        if forgets:
            self._sink.settled(side.requests.ledger.window)
        unmade: list[Transfer] = []
        while at >= 0:
            at = (
                self.settle(side, at)
                if forgets and self._rows.is_over(at, side.reliable)
                else self.make(side, at, unmade)
            )
        side.clear()
        for transfer in unmade:
            self._sink.made(transfer)

    def make(self, side: CleanSide, at: int, unmade: list[Transfer]) -> int:
        """Make an object of a side's oldest row, for the state machine; gives the next row.

        Args:
            unmade: gets the object if nobody has heard of it.
        """
        requests, what = side.requests, self._rows.words[at + WHAT]
        transfer = self._rows.object_of(at, side.connection, side.number, side.reliable)
        if not what & IS_MADE:
            unmade.append(transfer)
        requests.ledger.add(transfer)
        if side.reliable and not what & IS_ACKED:
            requests.outcomes.unacked.append(transfer)
        if at == side.building:
            requests.ledger.building = transfer
        return self._rows.free(at)

    def drop_oldest(self, side: CleanSide) -> bool:
        """Let go of a side's oldest transfers, as the ledger does; False: the state machine has to do it."""
        requests = side.requests
        if side.reliable and not requests.recent.last_rx_ns and self._sink.forgets():
            return False  # a capture of one direction: there they are given up
        objects = min(WINDOW, side.before)
        at = side.first
        for _ in range(WINDOW - objects):
            if not self._rows.is_over(at, side.reliable):
                return False
            at = self._rows.words[at + NEXT]
        if objects:
            window = requests.ledger.window
            settled = window[:objects]
            del window[:objects]
            side.before -= objects
            self._sink.settled(settled)
        while side.first != at:
            side.first = self.settle(side, side.first)
            side.count -= 1
        if at < 0:
            side.last = NONE
        return True

    def settle(self, side: CleanSide, at: int) -> int:
        """A transfer is over, and nothing changes it any more; gives the next row."""
        rows, status = self._rows, ACKED if side.reliable else SENT
        what, duration_ns = rows.words[at + WHAT], rows.duration_ns(at)
        kind = (rows.words[at + PACKETS] > 1) + (READ_KIND if what & IS_A_READ else 0)
        if what & IS_MADE or not self._sink.leaves_out(
            side.connection, side.number, kind, status, rows.words[at + BYTES], duration_ns
        ):
            transfer = rows.object_of(at, side.connection, side.number, side.reliable)
            if not what & IS_MADE:
                self._sink.made(transfer)
            self._sink.settled([transfer])
        return self._rows.free(at)
