"""How many messages ended where the capture has a hole, by the responder's MSN.

A responder counts the requests that it completed, and every ACK carries the count (IBA Vol. 1, 9.7.7.1).
Between two ACKs it grew by the messages that end in the capture and by those that ended unseen: then what
looks like one message with a hole is two or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.track.recent import RING
from rocekit.wire import ENDS, OPERATION
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocekit.packets.rows import Rows
    from rocekit.track.ledger import Ledger
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent
    from rocekit.track.transfers import Transfer


class MsnCount:
    """Counts messages in holes.

    Args:
        ahead: packets behind a hole, by PSN.
    """

    def __init__(
        self, ledger: Ledger, progress: Progress, recent: Recent, ahead: Mapping[int, tuple[Rows, int]]
    ) -> None:
        self._ledger = ledger
        self._progress = progress
        self._recent = recent
        self._ahead = ahead

    def ended_unseen(self, building: Transfer, to: int) -> int | None:
        """How many messages ended behind the last seen packet of ``building``, in front of PSN ``to``.

        Args:
            to: the next packet that was seen, else one past the PSN that the acknowledgement at hand names.

        Returns:
            None where the acknowledgements do not tell.
        """
        hole = building.last_psn + 1
        before = self._counted_before(hole)
        if self._progress.msn < 0 or before is None:
            return None
        since, msn = before
        behind = self._ends_behind(to)
        in_front = self._ends_in_front(building, since)
        if behind is None or in_front is None:
            return None
        seen = behind + in_front
        unseen = ((self._progress.msn - msn) & MASK) - seen
        # An end and a beginning take two packets, and what goes on behind the hole began in it.
        most = to - hole - (to in self._ahead)
        if not 0 <= unseen <= most or unseen + seen == 0:  # not a count, or none that has been seen to grow
            return None
        return unseen

    def begun_within(self, read: Transfer, to: int) -> int | None:
        """How many messages stand between the first PSN of a READ and PSN ``to``, itself included.

        A READ is counted when it is accepted (9.7.7.1), so that the answer need not have been seen.

        Returns:
            None where the acknowledgements do not tell.
        """
        before = self._counted_before(read.first_psn)
        if self._progress.msn < 0 or before is None:
            return None
        since, msn = before
        behind = self._ends_behind(to)
        in_front = self._ends_in_front(read, since)
        if behind is None or in_front is None:
            return None
        messages = ((self._progress.msn - msn) & MASK) - behind - in_front
        return messages if 1 <= messages <= to - read.first_psn else None

    def _counted_before(self, hole: int) -> tuple[int, int] | None:
        """The last acknowledgement in front of a hole: one past its PSN, and its MSN."""
        since, msn = -1, -1
        for slot in range(RING):
            upto = self._recent.covered_upto(slot)
            if since < upto <= hole and self._recent.covered_msn(slot) >= 0:
                since, msn = upto, self._recent.covered_msn(slot)
        if since >= 0:
            return since, msn
        starting_psn = self._ledger.connection.negotiated[self._ledger.side].starting_psn
        if (
            starting_psn == self._progress.begin
        ):  # from the first request on, which is the first that is counted
            return self._progress.begin, 0
        return None

    def _ends_behind(self, to: int) -> int | None:
        """How many messages end from PSN ``to`` on, as far as was acknowledged; None: another hole."""
        ends, p = 0, to
        while p < self._progress.acked:
            row = self._ahead.get(p)
            if row is None:
                return None
            r, i = row
            opcode = r.opcode[i]
            span = self._ledger.connection.psns_of_read(r.dma_length[i]) if OPERATION[opcode] == "READ" else 1
            if span == 0 or p + span > self._progress.acked:
                return None
            ends += ENDS[opcode]
            p += span
        return ends

    def _ends_in_front(self, building: Transfer, since: int) -> int | None:
        """How many messages end from PSN ``since`` on in front of ``building``; None: not all is known."""
        if _is_unsure(building, since):
            return None
        ends, p = 0, building.first_psn
        for transfer in reversed(self._ledger.window):
            if transfer is building:
                continue
            if p <= since:
                break
            if transfer.last_psn + 1 != p or not transfer.ended or _is_unsure(transfer, since):
                return None
            ends += 1
            p = transfer.first_psn
        return ends if p <= since else None


def _is_unsure(transfer: Transfer, since: int) -> bool:
    """Whether an end may hide in a hole of this message, or behind a READ whose size is a guess."""
    if transfer.is_read and transfer.maybe_several:
        return True
    return transfer.missing.has_two_in_a_row(since, transfer.last_psn)
