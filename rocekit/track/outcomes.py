"""When a transfer is over: acknowledged, answered, or given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.track.ledger import WINDOW
from rocekit.track.transfers import ACKED, INCOMPLETE, RESPONSE_CUT, UNACKNOWLEDGED, Transfer
from rocekit.wire import OWN_RESPONSE

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.ledger import Ledger
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent

#: More PSNs than a requester has outstanding: 64 MB at the largest path MTU, which is 400 Gb/s for over a
#: millisecond. What lies farther back was answered, whether or not the capture shows it.
OUTSTANDING: Final = 1 << 14


class Outcomes:
    """The transfers of one side that are not over yet.

    Attributes:
        unacked: transfers that no ACK covers, in order, from ``first`` on.
        awaiting: READs and atomics that an ACK covers, but whose responses are not in the capture yet;
        None before the first.
    """

    def set_up(self, ledger: Ledger, progress: Progress, recent: Recent) -> None:
        self.ledger = ledger
        self.progress = progress
        self.recent = recent
        self.unacked: list[Transfer] = []
        self.first = 0
        self.awaiting: dict[Transfer, None] | None = None

    def begin(self, r: Rows, i: int, p: int, operation: str) -> Transfer:
        """A transfer begins at PSN ``p`` with the packet at row ``i``."""
        if self.ledger.is_full():
            settled = self.ledger.drop_oldest()
            self._give_up(p)
            self.ledger.sink.settled(settled)
        transfer = self.ledger.open(r, i, p, operation)
        if self.progress.reliable:
            self.unacked.append(transfer)
        return transfer

    def settle(self) -> None:
        """Close the transfers that the last ACK covers."""
        first, end = self.first, len(self.unacked)
        while first < end:
            transfer = self.unacked[first]
            if not transfer.ended or transfer.last_psn >= self.progress.acked:
                break
            first += 1
            if transfer.status != UNACKNOWLEDGED:
                continue
            if transfer.operation in OWN_RESPONSE:
                self._await(transfer)
            else:
                self.acknowledge(transfer, self.progress.acked_ns, self.progress.acked_frame)
        self._start_at(first)

    def is_open(self) -> bool:
        """Whether a transfer waits for an ACK."""
        return self.first < len(self.unacked)

    def _await(self, transfer: Transfer) -> None:
        if self.awaiting is None:
            self.awaiting = {}
        self.awaiting[transfer] = None

    def _start_at(self, first: int) -> None:
        """The transfers before ``first`` are closed. They leave the list in large parts."""
        if 2 * first >= len(self.unacked):
            del self.unacked[:first]
            first = 0
        self.first = first

    def acknowledge(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        """The response in ``frame`` completes the transfer."""
        transfer.status = ACKED if transfer.started else INCOMPLETE
        transfer.ack_ns, transfer.ack_frame = time_ns, frame
        transfer.acked_by_cut = self.progress.by_cut
        if time_ns >= transfer.last_ns:
            transfer.last_frame = frame
        self.ledger.sink.ended(transfer)

    def drop(self, transfer: Transfer) -> None:
        """The transfer waits for nothing any more."""
        if self.first < len(self.unacked) and self.unacked[self.first] is transfer:
            self._start_at(self.first + 1)
        elif self.awaiting is not None and transfer in self.awaiting:
            del self.awaiting[transfer]
        else:
            self.drop_unacked(transfer)

    def drop_unacked(self, transfer: Transfer) -> None:
        """No ACK is to cover the transfer, which is one of the window's."""
        at = len(self.unacked) - 1
        last = max(self.first - 1, at - 2 * WINDOW)
        while at > last:
            if self.unacked[at] is transfer:
                del self.unacked[at]
                return
            at -= 1

    def _give_up(self, p: int) -> None:
        """Wait no longer for responses to what lies far before PSN ``p``, where the capture has none at all.

        The requester has gone on, so it was answered; a capture of one direction does not show it.
        """
        if self.recent.last_rx_ns or not self.ledger.sink.forgets():
            return
        transfer = self.ledger.window[0]
        first = transfer.first_psn
        if first > p - OUTSTANDING:
            first = p - OUTSTANDING
        end = self.first
        while end < len(self.unacked):
            transfer = self.unacked[end]
            if transfer.last_psn >= first:
                break
            end += 1
        given_up = self.unacked[self.first : end]
        self._start_at(end)
        others = []  # in a comprehension the names have no C types
        for transfer in given_up:
            self._end_unanswered(transfer)
            if transfer.first_psn != self.progress.begin:
                others.append(transfer)
        self.ledger.sink.given_up(others)

    def _end_unanswered(self, transfer: Transfer) -> None:
        if not transfer.started or not transfer.ended:
            transfer.status = INCOMPLETE
        elif transfer.last_psn <= self.progress.cut_psn and transfer.operation not in OWN_RESPONSE:
            transfer.status = RESPONSE_CUT
        self.ledger.sink.ended(transfer)

    def finish(self) -> None:
        """The capture ends here: nothing that is open gets a response."""
        open_ones = self.unacked
        if self.awaiting is not None or self.first:
            open_ones = [*(self.awaiting or ()), *self.unacked[self.first :]]
        for transfer in open_ones:
            if transfer.status != UNACKNOWLEDGED:
                self.ledger.sink.ended(transfer)
                continue
            if transfer.response_next > transfer.first_psn and transfer.is_read:
                if transfer.response_next > transfer.last_psn and transfer.started:
                    # The requester never asked again: it had what the capture missed.
                    self.acknowledge(transfer, transfer.last_ns, transfer.last_frame)
                    continue
                transfer.status = INCOMPLETE
            self._end_unanswered(transfer)
        self.awaiting = None
        self.unacked = []
        self.first = 0
