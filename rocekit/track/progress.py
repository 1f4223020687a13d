"""How far the requests of one side of a connection have come, by PSN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.bulk import Chain

    Held = tuple[Rows, int, Chain | None]

#: A PSN this far from what is known belongs to another life of the QP, or to a hole of the capture as large.
RESYNC: Final = 1 << 17


class Progress:
    """The PSNs that one side's requests have reached; all PSNs are unwrapped.

    Args:
        reliable: False for UC, which nobody acknowledges.

    Attributes:
        started: whether the starting PSN is known; until then requests wait in ``held``.
        begin: the starting PSN.
        expected: every PSN below is part of a transfer, or given up as not in the capture.
        high: one past the highest PSN seen. ``expected == high`` is the plain course, else there are holes.
        acked: every PSN below is acknowledged, by the ACK in ``acked_frame`` at ``acked_ns``.
        msn: the MSN of the ACK or NAK at hand; −1: there is none, or it does not count.
        cut_psn: the PSN of the last response that was cut before its AETH, if it is not acknowledged by
        others: an ACK, NAK or RNR NAK; −1: there is none. It came at cut_ns, in cut_frame.
        cut_again: whether its PSN, or one before, was sent again since.
        by_cut: whether the response at hand is such a one.
        gapped: whether the pass under way skipped PSNs that nothing acknowledged so far (see ``passes``);
        it stands here because each response asks for it, and has these numbers at hand.
        held: requests kept until the starting PSN is known: the batch and the row, or the first of a chain;
        holds: how many they are.
    """

    def __init__(self, reliable: bool) -> None:
        self.set_up(reliable)

    def set_up(self, reliable: bool) -> None:
        self.reliable = reliable
        self.started = False
        self.begin = 0
        self.expected = 0
        self.high = 0
        self.acked = 0
        self.acked_ns = 0
        self.acked_frame = 0
        self.msn = -1
        self.cut_psn = -1
        self.cut_ns = 0
        self.cut_frame = 0
        self.cut_again = False
        self.by_cut = False
        self.gapped = False
        self.held: Sequence[Held] = ()
        self.holds = 0

    def start(self, psn: int) -> None:
        """Everything begins at ``psn``."""
        self.started = True
        self.begin = self.expected = self.high = self.acked = psn
        self.cut_psn = -1

    def hold(self, packet: Held, count: int) -> None:
        """Keep a packet, or a chain of ``count``, until the starting PSN is known."""
        if isinstance(self.held, list):
            self.held.append(packet)
        else:
            self.held = [packet]
        self.holds += count


def unstarted(reliable: bool) -> Progress:
    """That of a side's first request, without the time that a constructor's arguments take."""
    progress: Progress = Progress.__new__(Progress)
    progress.set_up(reliable)
    return progress
