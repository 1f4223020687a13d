"""A story: one cause that made a requester send again, from its first sign to the end of the repeats.

``build`` puts the events of a story together, and ``causes`` names its rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocekit import wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.findings.stories.loss_place import LossPlace, LostCopy
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

LOSS: Final = "loss"
TAIL_LOSS: Final = "tail-loss"
ACK_LOSS: Final = "ack-loss"
#: The response that may have been the NAK or RNR NAK is cut: there is no finding.
UNDECIDED: Final = "undecided"
IMPLIED_NAK: Final = "implied-nak"
REORDERING: Final = "reordering"
RNR: Final = "rnr"
RETRY_EXCEEDED: Final = "retry-exceeded"
PEER_SILENT: Final = "peer-silent"
ICRC_BAD: Final = "icrc-bad"
DEAD_QP: Final = "dead-qp"
MTU_MISMATCH: Final = "mtu-mismatch"
NEEDLESS: Final = "needless-repeat"
DUPLICATE: Final = "duplicate"
PAUSE_STALL: Final = "pause-stall"
TIMEOUT_TOO_SHORT: Final = "timeout-too-short"


_NEVER_NS: Final = 1 << 62


@dataclass(slots=True)
class GoBack:
    """One time gone back: a run of repeated packets, whose events lie on one or more transfers."""

    cause: str
    events: list[Event]
    transfers: list[Transfer]

    @property
    def opener(self) -> Event:
        return self.events[0]

    @property
    def time_ns(self) -> int:
        return self.events[0].time_ns

    @property
    def frame(self) -> int:
        return self.events[0].frame

    @property
    def first_psn(self) -> int:
        return self.events[0].psn

    @property
    def last_psn(self) -> int:
        last = self.events[0].last_psn
        for event in self.events:  # mostly one: a generator takes longer
            if event.last_psn > last:
                last = event.last_psn
        return last

    @property
    def packets(self) -> int:
        total = 0
        for event in self.events:
            total += event.count
        return total

    @property
    def bytes(self) -> int:
        total = 0
        for event in self.events:
            total += event.bytes
        return total

    @property
    def first_sight(self) -> int:
        total = 0
        for event in self.events:
            total += event.first_sight
        return total

    @property
    def resent(self) -> int:
        """How many of its packets are no copies, by their IPv4 identifications."""
        return sum(e.resent for e in self.events)

    @property
    def waited_ns(self) -> int:
        return self.opener.waited_ns

    @property
    def after_ack(self) -> bool:
        return self.opener.after_ack


@dataclass(slots=True, eq=False)
class Story:
    """What one cause did to one direction of a connection.

    Attributes:
        side: the requester's side.
        psn: the PSN (unwrapped) that was lost, got a NAK or was repeated first.
        naks, rnrs: the NAKs "PSN sequence error", and the RNR NAKs.
        hole: the gap in the PSNs that contains ``psn``.
        late: packets that came out of order.
        rule: the name of its rule.
        certain: False if the packets allow another explanation.
        naks_lacking: whether it is not certain because the capture lacks NAKs (``doubts``).
        gappy: whether the capture lacks so many packets that a gap proves no loss (``doubts``).
        early: whether it is not certain because the wait is much shorter than the timeout (``doubts``).
        or_overtaken: whether the packet may also have been overtaken, though the receiver takes others out of
        order.
        lost: how many packets were lost according to the capture, at least 1 for the losses.
        bad_frames: corrupted packets that are the cause.
        gave_up: whether the requester stopped trying.
        passed: whether the requester went back later to a PSN behind this one, which was acknowledged then.
        received: whether the message was received before the repeat, by the responder's journal; None if
            unknown.
        paused: when the whole traffic class of its requests was silent, if that is the cause.
        places: where its packets were lost, by several captures; None if they do not decide.
        copies: the packets that it lost, once they are known (``copies.lost_copies``).
        of_response: whether responses were reordered, or late, and not requests.
        added_ns: how long the delay was; cost_ns: the part of it that no earlier story caused (``stalls``).
        unseen: the wait before a transfer whose first transmission is not in the capture.
    """

    connection: Connection
    side: int
    psn: int
    naks: list[Event] = field(default_factory=list)
    rnrs: list[Event] = field(default_factory=list)
    go_backs: list[GoBack] = field(default_factory=list)
    hole: Event | None = None
    late: list[Event] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    rule: str = ""
    certain: bool = True
    naks_lacking: bool = False
    gappy: bool = False
    early: bool = False
    or_overtaken: bool = False
    lost: int = 1
    bad_frames: list[int] = field(default_factory=list)
    gave_up: bool = False
    passed: bool = False
    unseen: Event | None = None
    received: bool | None = None
    paused: tuple[int, int] | None = None
    added_ns: int = 0
    cost_ns: int = 0
    places: list[LossPlace] | None = None
    of_response: bool = False
    copies: list[LostCopy] | None = None

    @property
    def time_ns(self) -> int:
        """The time of its first event."""
        first_ns = _NEVER_NS  # asked for every story several times: no list is made
        for events in (self.naks, self.rnrs, self.late):
            for event in events:
                if event.time_ns < first_ns:
                    first_ns = event.time_ns
        for run in self.go_backs:
            if run.events[0].time_ns < first_ns:
                first_ns = run.events[0].time_ns
        if self.hole is not None and self.hole.time_ns < first_ns:
            first_ns = self.hole.time_ns
        if self.unseen is not None and self.unseen.time_ns < first_ns:
            first_ns = self.unseen.time_ns
        return first_ns

    @property
    def frames(self) -> list[int]:
        """Its frames in order: hole, NAKs, late packets, first packet of each repeat and its response."""
        marks = [(e.time_ns, e.frame) for e in (self.hole, self.unseen) if e is not None]
        for events in (self.naks, self.rnrs, self.late):
            for event in events:
                marks.append((event.time_ns, event.frame))
        for run in self.go_backs:
            opener = run.events[0]
            marks.append((opener.time_ns, opener.frame))
            if opener.answer_frame:
                marks.append((opener.time_ns, opener.answer_frame))
        marks.sort()
        return [*self.bad_frames, *dict.fromkeys([frame for _, frame in marks])]

    @property
    def repeats(self) -> list[GoBack]:
        """The go-backs without late packets."""
        for run in self.go_backs:
            if run.cause == "late":
                return [g for g in self.go_backs if g.cause != "late"]
        return self.go_backs

    @property
    def repeated_packets(self) -> int:
        total = 0
        for run in self.repeats:
            for event in run.events:
                total += event.count
        return total

    @property
    def repeated_bytes(self) -> int:
        total = 0
        for run in self.repeats:
            for event in run.events:
                total += event.bytes
        return total

    @property
    def transmissions(self) -> int:
        """How often the PSN was sent, the first time included."""
        sent = 1
        for run in self.repeats:
            sent += run.events[0].psn <= self.psn <= run.last_psn
        return sent

    @property
    def stall(self) -> tuple[int, int]:
        """The delay: from the first sign (hole, else silence, else NAK) to the start of the last repeat."""
        repeats = self.repeats
        if self.unseen is not None:
            return self.unseen.time_ns - self.unseen.waited_ns, self.unseen.time_ns
        start = self.time_ns
        if not repeats:
            return start, start
        if not self.naks and not self.rnrs:
            start = min(start, repeats[0].time_ns - repeats[0].waited_ns)
        return start, max(start, repeats[-1].time_ns)

    def add_transfers(self, transfers: Iterable[Transfer | None]) -> None:
        for transfer in transfers:
            if transfer is not None and transfer not in self.transfers:
                self.transfers.append(transfer)

    @property
    def transfer(self) -> Transfer | None:
        """The transfer that holds the PSN, else the first one affected."""
        for transfer in self.transfers:
            if transfer.first_psn <= self.psn <= transfer.last_psn:
                return transfer
        return self.transfers[0] if self.transfers else None


def is_nak(event: Event, code: int) -> bool:
    """Whether an event is a NAK with ``code``."""
    return event.kind == "nak" and wire.syndrome_value(event.syndrome or 0) == code


def is_sequence_nak(event: Event) -> bool:
    """Whether a ``nak`` event requests a PSN again (any other NAK is fatal)."""
    return wire.syndrome_value(event.syndrome or 0) == wire.NAK_SEQUENCE_ERROR
