"""Clocks: how far each host's clock is from the capture's, and within what bounds.

Causes come before their effects: a WR is posted before its first packet, a WC is polled after its last ACK,
and a receive completes after its message's last packet. Each gives a bound of the offset.

What the capture missed, or what came before it began, makes some of these false: the first ACK of a message
may be missing, or its first packet be one that was sent again. So only an ACK that covers its message alone
counts where there is one; and where the capture lacks messages, three of four bounds are taken to be right,
if the other side does not contradict that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from rocekit.files.frame_names import FRAME_BITS
from rocekit.wire.words import duration

if TYPE_CHECKING:
    from rocekit.journal.work_requests import WorkRequest
    from rocekit.packets.merging.alignment import Alignment
    from rocekit.track.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock: host time − capture time lies between ``low_ns`` and ``high_ns``.

    Attributes:
        offset_ns: the assumed offset: zero where the bounds allow it, else their middle.
        low_ns, high_ns: None where there is no such bound. Where ``low_ns`` is above ``high_ns``,
        no constant offset fits.
    """

    host: str
    offset_ns: int
    low_ns: int | None
    high_ns: int | None

    @property
    def crossed_ns(self) -> int:
        """By how much the bounds cross: a clock was set or drifts, or the capture's times are not right."""
        if self.low_ns is None or self.high_ns is None:
            return 0
        return max(self.low_ns - self.high_ns, 0)

    @property
    def crossing(self) -> str:
        """That the bounds cross, in words."""
        return (
            f"clock of {self.host}: its bounds cross by {duration(self.crossed_ns)}: no constant offset puts "
            "each work request before its packets and each completion after its ACK, so this clock or the "
            "capture's was set or drifts; times between the two are wrong by half of that at least"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "offset_ns": self.offset_ns,
            "low_ns": self.low_ns,
            "high_ns": self.high_ns,
            "crossed_ns": self.crossed_ns,
        }


class SeenTimes(Protocol):
    """When each of several captures has a packet (``points.sightings``)."""

    @property
    def alignments(self) -> Sequence[Alignment]:
        """Of the captures' clocks."""

    def row_of(self, frame: int) -> int:
        """The row of a frame reference; −1 for a frame without a RoCE packet."""

    def times_of(self, row: int) -> Mapping[int, int]:
        """The aligned time of a packet in each capture that has it."""


def bound_clocks(
    sends: Iterable[tuple[WorkRequest, Transfer]],
    transfers: Iterable[Transfer],
    seen: SeenTimes | None = None,
) -> dict[str, Clock]:
    """The clock of each host.

    Args:
        sends: each matched work request with its transfer.
        transfers: all, of which those with a matched receive give bounds.
        seen: of several captures. No time bounds anything of a capture whose clock is estimated, and
        bounded by nothing; nor does the time at which a packet passed a capture that has it not.
    """
    alignments = () if seen is None else seen.alignments
    unaligned = {a.file for a in alignments if a.offset_ns and a.bound_ns is None}
    bounds: dict[str, _Bounds] = {}
    for matches in _by_qp(sends):
        of_host = bounds.setdefault(matches[0][0].qp.host, _Bounds())
        of_host.whole = of_host.whole and _is_whole(matches)
        for (wr, transfer), (_, following) in zip(matches, [*matches[1:], (None, None)], strict=True):
            if transfer.first_frame >> FRAME_BITS not in unaligned and _is_measured(transfer, seen):
                of_host.posted.append(wr.posted_ns - transfer.first_ns)
            if transfer.acked_ns is None or transfer.ack_frame >> FRAME_BITS in unaligned:
                continue
            if wr.wc is not None and wr.wc.status == "SUCCESS":
                own = _is_its_own_answer(wr, transfer, following)
                (of_host.polled if own else of_host.perhaps).append(wr.wc.polled_ns - transfer.acked_ns)
    for transfer in transfers:
        # Where packets were sent again, it is unknown which of them arrived: no bound.
        if transfer.recv_wc is not None and transfer.recv_wr is not None and not transfer.events:
            of_host = bounds.setdefault(transfer.recv_wr.qp.host, _Bounds())
            if transfer.first_frame >> FRAME_BITS in unaligned:
                continue
            of_host.polled.append(transfer.recv_wc.polled_ns - transfer.request_end_ns)
    return {host: _clock(host, *of_host.ends()) for host, of_host in bounds.items()}


@dataclass(slots=True)
class _Bounds:
    """What bounds the clock of a host: differences of its times and the capture's, in ns.

    Attributes:
        posted: it is not less ahead than any of these.
        polled: it is not more ahead than any of these; perhaps: than most of these.
        whole: whether the capture has all messages up to the last one.
    """

    posted: list[int] = field(default_factory=list)
    polled: list[int] = field(default_factory=list)
    perhaps: list[int] = field(default_factory=list)
    whole: bool = True

    def ends(self) -> tuple[int | None, int | None]:
        """The lowest and the highest that it can be ahead; None where nothing says so."""
        low = max(self.posted, default=None)
        if self.polled and self.whole:
            return low, min(self.polled)
        likely = sorted(self.polled or self.perhaps)
        high = likely[len(likely) * 3 // 4] if likely else None
        return low, None if high is not None and low is not None and high < low else high


def _by_qp(sends: Iterable[tuple[WorkRequest, Transfer]]) -> Iterable[list[tuple[WorkRequest, Transfer]]]:
    """The matched work requests of each QP, in order of their PSNs."""
    found: dict[int, list[tuple[WorkRequest, Transfer]]] = {}
    for match in sends:
        found.setdefault(id(match[0].qp), []).append(match)
    for matches in found.values():
        matches.sort(key=lambda match: match[1].first_psn)
    return found.values()


def _is_whole(matches: list[tuple[WorkRequest, Transfer]]) -> bool:
    """Whether a capture has all that a QP sent up to the last message: it began before, and misses none."""
    sends = [wr for wr in matches[0][0].qp.sends if not wr.refused and not wr.local]
    until = sends[: len(matches)]
    return bool(sends) and until[-1] is matches[-1][0] and not any(t.missing for _, t in matches)


def _is_measured(transfer: Transfer, seen: SeenTimes | None) -> bool:
    """Whether a capture has a transfer's first packet at its time: else that is estimated (``passing``)."""
    row = -1 if seen is None else seen.row_of(transfer.first_frame)
    if seen is None or row < 0:
        return True
    return transfer.first_ns >= min(seen.times_of(row).values())


def _is_its_own_answer(wr: WorkRequest, transfer: Transfer, following: Transfer | None) -> bool:
    """Whether no answer before the one in the capture can have completed a work request.

    A capture may miss packets, and so the first ACK; a later one that covers the message came after the
    completion, perhaps. It is no such ACK where it does not cover the message behind it as well.
    """
    if transfer.events or transfer.retransmitted_packets or transfer.acked_by_cut:
        return False
    if following is None:
        return wr.qp.ends and wr is next((each for each in reversed(wr.qp.sends) if not each.refused), None)
    apart = following.acked_frame not in (None, transfer.acked_frame)
    return following.first_psn == transfer.last_psn + 1 and apart


def _clock(host: str, low: int | None, high: int | None) -> Clock:
    if (low is None or low <= 0) and (high is None or high >= 0):
        offset = 0
    elif low is not None and high is not None:
        offset = (low + high) // 2
    else:
        offset = low if low is not None else (high or 0)
    return Clock(host, offset, low, high)
