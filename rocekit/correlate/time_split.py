"""Timing: a transfer's time, split into software, wire and completion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocekit.correlate.clocks import Clock
    from rocekit.track.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Timing:
    """A transfer's time, split up; in ns, None where one end of a span is unknown.

    Attributes:
        software_ns: WR posted to first packet; None where the first packet in the capture came before.
        sending_ns: first to last packet of the message.
        acknowledging_ns: last packet to last ACK.
        wire_ns: first packet to last ACK (to the last packet where nothing is acknowledged, or where the
        requester did not get that ACK: ``sent_again_later_ns``; or got one before that the capture lacks).
        recovery_ns: the part of ``wire_ns`` that repeats took, with the waits before them.
        completion_ns: last ACK to WC polled (from the last packet where ``wire_ns`` ends there).
        total_ns: WR posted to WC polled.
    """

    software_ns: int | None
    sending_ns: int
    acknowledging_ns: int | None
    wire_ns: int
    recovery_ns: int
    completion_ns: int | None
    total_ns: int | None

    def to_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__slots__}


def timing(transfer: Transfer, clocks: dict[str, Clock] | None = None) -> Timing:
    """Where a transfer's time went, host times converted to the capture's clock."""
    wr, wc = transfer.wr, transfer.wc
    offset = 0
    if wr is not None and clocks:
        clock = clocks.get(wr.qp.host)
        offset = clock.offset_ns if clock is not None else 0
    posted = None if wr is None else wr.posted_ns - offset
    polled = None if wc is None else wc.polled_ns - offset
    again_ns = sent_again_later_ns(transfer, offset)
    acked_ns = transfer.acked_ns if again_ns is None else None
    if acked_ns is not None and polled is not None and polled < acked_ns:
        acked_ns = None  # what completed it is not in the capture
    end = acked_ns if acked_ns is not None else transfer.last_ns
    return Timing(
        software_ns=_span(posted, transfer.first_ns),
        sending_ns=max(0, transfer.last_ns - transfer.first_ns),
        acknowledging_ns=None if acked_ns is None else max(0, acked_ns - transfer.last_ns),
        wire_ns=end - transfer.first_ns,
        recovery_ns=recovery_ns(transfer),
        completion_ns=_span(end, polled),
        total_ns=None if posted is None or polled is None else polled - posted,
    )


def _span(begin_ns: int | None, end_ns: int | None) -> int | None:
    """From one time to another; None where one is unknown, or the end is before the beginning.

    Then the capture has later packets of the message only, or times of two clocks that fit nowhere.
    """
    return None if begin_ns is None or end_ns is None or end_ns < begin_ns else end_ns - begin_ns


def sent_again_later_ns(transfer: Transfer, offset_ns: int = 0) -> int | None:
    """When the last packet of a message came that was sent again although the capture has its ACK; else None.

    The requester had not got that ACK, or it would not have waited on: the ACK was lost behind this capture.
    One that came just before the repeat crossed it, and a completion before the repeat shows that it arrived.

    Args:
        offset_ns: of the journal's clock.
    """
    acked_ns, wc = transfer.acked_ns, transfer.wc
    if acked_ns is None or transfer.last_ns <= acked_ns:
        return None
    polled_ns = None if wc is None else wc.polled_ns - offset_ns
    for event in transfer.events:
        after_ns = event.time_ns - acked_ns
        if event.kind == "repeat" and 0 < event.waited_ns <= 2 * after_ns:
            return transfer.last_ns if polled_ns is None or polled_ns >= event.time_ns else None
    return None


def recovery_ns(transfer: Transfer) -> int:
    """The time that repeats took: each from its cause (a NAK, a timeout's silence) to its last packet.

    Overlapping recoveries are counted once.
    """
    spans = sorted(
        (event.time_ns - event.waited_ns, event.last_ns)
        for event in transfer.events
        if event.kind == "repeat"
    )
    total, until = 0, 0
    for begin, end in spans:
        begin = max(begin, until, transfer.first_ns)
        if end > begin:
            total += end - begin
            until = end
    return total
