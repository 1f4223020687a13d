"""One story per cause: what made a requester send again, from the first sign to the end of the repeats.

The tracker leaves events on transfers: holes, NAKs, runs of repeats. Here they are put back together, in
time, as what one cause did to one direction of a connection, and the cause is named (IBA Vol. 1, 9.7.5 and
9.7.6):

* a NAK "PSN sequence error", or a hole that only a repeat closed: ``loss``; where the packet came after all:
  ``reordering``;
* an RNR NAK: ``rnr``, with all that the silence after it brought about;
* a repeat after silence: ``tail-loss`` or ``ack-loss``. What the responder acknowledges when the repeat
  begins decides: it answers a duplicate with the last PSN it has (9.7.5.1.2), so an acknowledgement of what
  has not been repeated yet says that it had arrived the first time;
* a READ or atomic asked again because of its answer: ``implied-nak``;
* a repeat for which there was no need, because the timer ran out although nothing was missing:
  ``needless-repeat``;
* a repeat that nothing ever answered: ``retry-exceeded``, or ``peer-silent`` where the peer never said
  anything; ``dead-qp`` where the connection had been closed or began with the wrong PSN, ``mtu-mismatch``
  where only large packets get no answer.

Where a corrupted packet of the right PSN was captured, that is the cause: ``icrc-bad``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.findings.corruption import blame_corruption
from rocekit.findings.evidence import status_of
from rocekit.findings.stragglers import settle_stragglers
from rocekit.findings.unseen import unseen_losses
from rocekit.transfers import ACKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocekit.connections import Connection
    from rocekit.findings.evidence import Evidence
    from rocekit.transfers import Event, Transfer

LOSS: Final = "loss"
TAIL_LOSS: Final = "tail-loss"
ACK_LOSS: Final = "ack-loss"
IMPLIED_NAK: Final = "implied-nak"
REORDERING: Final = "reordering"
RNR: Final = "rnr"
RETRY_EXCEEDED: Final = "retry-exceeded"
PEER_SILENT: Final = "peer-silent"
ICRC_BAD: Final = "icrc-bad"
DEAD_QP: Final = "dead-qp"
MTU_MISMATCH: Final = "mtu-mismatch"
NEEDLESS: Final = "needless-repeat"

#: Operations whose answer carries data: what a lost answer costs, an acknowledgement cannot make good.
ANSWERED: Final = frozenset({"READ", "FETCH_ADD", "CMP_SWAP", "FLUSH", "ATOMIC_WRITE"})
#: Silence after the last repeat, in its own intervals, that says the requester gave up and not only the
#: capture.
_GAVE_UP_INTERVALS: Final = 2.5
#: A repeat sooner than this share of the local ACK timeout was not its doing.
_EARLY: Final = 0.9
#: Timers that are kept well run out between these shares of the timeout, in the middle of a message too.
_ON_TIME: Final = (0.95, 1.25)
#: Nor does a sender stall this long by itself; the usual timeouts (code 14 and up) are longer.
_STALL_NS: Final = 60_000_000
#: This many PSNs outstanding look like a sender that waits for its window and not for a lost packet.
_WINDOW: Final = 64


@dataclass(slots=True)
class GoBack:
    """One run of repeats; its events lie on one or more transfers."""

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
        return max(e.last_psn for e in self.events)

    @property
    def packets(self) -> int:
        return sum(e.count for e in self.events)

    @property
    def bytes(self) -> int:
        return sum(e.bytes for e in self.events)

    @property
    def first_sight(self) -> int:
        return sum(e.first_sight for e in self.events)

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
        side: the requester's.
        psn: the PSN (unwrapped) that was lost, refused or repeated first.
        rule: the finding's rule.
        certain: False where the packets allow another explanation.
        lost: how many packets the capture shows to have been lost, at least 1 for the losses.
        bad_frames: corrupted packets that are the cause.
        gave_up: whether the requester stopped trying.
        unseen: the wait before a transfer whose first transmission the capture does not show.
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
    lost: int = 1
    bad_frames: list[int] = field(default_factory=list)
    gave_up: bool = False
    unseen: Event | None = None

    @property
    def time_ns(self) -> int:
        """When the first sign of it was seen."""
        return min(e.time_ns for e in self._events())

    @property
    def frames(self) -> list[int]:
        """The frames that tell it, in order: hole, NAKs, what came late, the first packet of each repeat and
        its answer.
        """
        marks = [(e.time_ns, e.frame) for e in self._events()]
        marks += [(g.time_ns, g.opener.answer_frame) for g in self.go_backs if g.opener.answer_frame]
        return [*self.bad_frames, *dict.fromkeys(frame for _, frame in sorted(marks))]

    def _events(self) -> list[Event]:
        own = [*self.naks, *self.rnrs, *self.late, *(g.opener for g in self.go_backs)]
        return [e for e in (self.hole, self.unseen) if e is not None] + own

    @property
    def repeats(self) -> list[GoBack]:
        """The go-backs, without what only came late."""
        return [g for g in self.go_backs if g.cause != "late"]

    @property
    def repeated_packets(self) -> int:
        return sum(g.packets for g in self.repeats)

    @property
    def repeated_bytes(self) -> int:
        return sum(g.bytes for g in self.repeats)

    @property
    def transmissions(self) -> int:
        """How often the PSN was sent, the first time included."""
        return 1 + sum(g.first_psn <= self.psn <= g.last_psn for g in self.repeats)

    @property
    def added_ns(self) -> int:
        """Time lost: from the first sign (the hole, else the silence, else the NAK) to the last repeat's
        begin.
        """
        repeats = self.repeats
        if self.unseen is not None:
            return self.unseen.waited_ns
        if not repeats:
            return 0
        first = repeats[0]
        start = self.time_ns
        if not self.naks and not self.rnrs:
            start = min(start, first.time_ns - first.waited_ns)
        return max(0, repeats[-1].time_ns - start)

    def add_transfers(self, transfers: Iterable[Transfer | None]) -> None:
        for transfer in transfers:
            if transfer is not None and transfer not in self.transfers:
                self.transfers.append(transfer)

    @property
    def transfer(self) -> Transfer | None:
        """The transfer that holds the PSN, else the first one touched."""
        for transfer in self.transfers:
            if transfer.first_psn <= self.psn <= transfer.last_psn:
                return transfer
        return self.transfers[0] if self.transfers else None


def is_sequence_nak(event: Event) -> bool:
    """Whether a ``nak`` event asks for a PSN again rather than ending everything."""
    return wire.syndrome_value(event.syndrome or 0) == wire.NAK_SEQUENCE_ERROR


def is_spoken(evidence: Evidence, connection: Connection, side: int) -> bool:
    """Whether ``side`` ever heard anything from its peer on this connection."""
    mine, theirs = connection.requests[side], connection.requests[1 - side]
    if theirs is not None and theirs.started:
        return True
    if mine is None or mine.acked > mine.begin or connection.naks or connection.rnr_naks:
        return True
    return any(t.acked_ns is not None for t in evidence.transfers_of.get((connection.id, side), ()))


def tell(evidence: Evidence) -> list[Story]:
    """The stories of a capture, in order of time."""
    stories: list[Story] = []
    for connection, side, marks in _directions(evidence):
        stories += _Teller(connection, side, marks).tell()
    doubtful = [story for story in stories if not _name(evidence, story)]
    _decide(evidence, doubtful, [story for story in stories if story.rule])
    stories += unseen_losses(evidence, stories)
    for story in stories:
        if story.rule == ACK_LOSS:
            story.psn = _acknowledging(story)
    stories = settle_stragglers(evidence, sorted(stories, key=lambda s: s.time_ns))
    blame_corruption(evidence, stories)
    return stories


_Mark = tuple["Event", "Transfer | None"]


def _directions(evidence: Evidence) -> Iterator[tuple[Connection, int, list[_Mark]]]:
    """The events of each direction of each connection, in order of time."""
    found: dict[tuple[int, int], list[_Mark]] = defaultdict(list)
    for transfer in evidence.transfers:
        if transfer.events:
            found[transfer.connection.id, transfer.side] += [(e, transfer) for e in transfer.events]
    by_id = {c.id: c for c in evidence.connections}
    for connection in evidence.connections:
        for event in connection.stray_events:
            found[connection.id, event.side].append((event, None))
    for (number, side), marks in found.items():
        marks.sort(key=lambda m: (m[0].time_ns, m[0].frame))
        yield by_id[number], side, marks


class _Teller:
    """Puts the events of one direction together."""

    def __init__(self, connection: Connection, side: int, marks: list[_Mark]) -> None:
        self.connection = connection
        self.side = side
        self.marks = marks
        self.stories: list[Story] = []
        self.holes: list[Event] = []
        self.late: list[Event] = []
        self.runs = self._runs()

    def _runs(self) -> dict[int, GoBack]:
        runs: dict[int, GoBack] = {}
        for event, transfer in self.marks:
            if event.kind != "repeat":
                continue
            run = runs.setdefault(event.run, GoBack(event.cause or "timeout", [], []))
            run.events.append(event)
            if transfer is not None and transfer not in run.transfers:
                run.transfers.append(transfer)
        return runs

    def tell(self) -> list[Story]:
        for event, transfer in self.marks:
            kind = event.kind
            if kind == "hole":
                self.holes.append(event)
            elif kind == "late":
                self._came_late(event, transfer)
            elif kind == "rnr_nak" or (kind == "nak" and is_sequence_nak(event)):
                self._refused(event, transfer)
            elif kind == "repeat" and (run := self.runs.pop(event.run, None)) is not None:
                self._repeated(run)
        for story in self.stories:
            story.hole = story.hole or self._hole(story)
        return self.stories

    def _hole(self, story: Story) -> Event | None:
        """The hole that the story's PSN fell into, seen before it."""
        before = [h for h in self.holes if h.psn <= story.psn <= h.last_psn and h.time_ns <= story.time_ns]
        return before[-1] if before else None

    def _new(self, psn: int) -> Story:
        story = Story(self.connection, self.side, psn)
        self.stories.append(story)
        return story

    def _open(self) -> Story | None:
        return self.stories[-1] if self.stories else None

    def _came_late(self, event: Event, transfer: Transfer | None) -> None:
        self.late.append(event)
        story = self._open()
        if story is not None and story.naks and not story.go_backs and story.psn == event.psn:
            story.late.append(event)
            return
        story = self._new(event.psn)
        story.late.append(event)
        story.add_transfers([transfer])

    def _refused(self, event: Event, transfer: Transfer | None) -> None:
        story = self._open()
        same = story is not None and story.psn == event.psn and not self._over(story, event.time_ns)
        if event.kind == "rnr_nak":
            if story is None or not same or (story.naks and not story.rnrs):
                story = self._new(event.psn)
            story.rnrs.append(event)
        else:
            late_before = story is not None and story.psn == event.psn and story.late and not story.naks
            if story is None or not (same or late_before):
                story = self._new(event.psn)
            story.naks.append(event)
        story.add_transfers([transfer])

    def _repeated(self, run: GoBack) -> None:
        story = self._open()
        if story is None or not self._goes_on(story, run):
            story = self._new(run.first_psn)
        story.go_backs.append(run)
        story.add_transfers(run.transfers)

    def _over(self, story: Story, time_ns: int) -> bool:
        """Whether the PSN was acknowledged by then."""
        transfer = story.transfer
        if transfer is None or transfer.acked_ns is None or not transfer.first_psn <= story.psn:
            return False
        return transfer.status == ACKED and transfer.acked_ns <= time_ns and transfer.last_psn >= story.psn

    def _goes_on(self, story: Story, run: GoBack) -> bool:
        """Whether a run belongs to the last story."""
        if story.naks and run.first_psn == story.psn and not story.repeats:
            return True  # the answer to the NAK, even where the PSN came late and was acknowledged meanwhile
        last = story.go_backs[-1] if story.go_backs else None
        if (
            last is not None
            and run.first_psn == last.last_psn + 1
            and run.cause == last.cause in ("nak", "rnr")
        ):
            return True  # one go-back that an answer cut in two
        if story.naks and last is not None and run.first_psn == story.psn and self._only_late(story, last):
            last.cause = "late"
            return True
        if run.after_ack or self._over(story, run.time_ns):
            return False
        return run.first_psn <= story.psn <= run.last_psn

    def _only_late(self, story: Story, run: GoBack) -> bool:
        """Whether what looked like the go-back only closed the hole: a go-back sends again what came behind
        it.
        """
        hole = self._hole(story)
        return hole is not None and run.first_sight == run.packets and run.last_psn <= hole.last_psn


def _name(evidence: Evidence, story: Story) -> bool:
    """Name the story's rule. False where the packets alone do not decide."""
    if evidence.starts_wrong(story.connection, story.side):
        story.rule = DEAD_QP
        return True
    if story.hole is not None:
        story.lost = story.hole.last_psn - max(story.psn, story.hole.psn) + 1
    if story.rnrs:
        story.rule = RNR
        story.gave_up = _is_open(story)
        return True
    if story.repeats and _gave_up(evidence, story):
        return True
    if story.late or any(g.cause == "late" for g in story.go_backs):
        story.rule = REORDERING
        return True
    if story.naks:
        answered = bool(story.go_backs) and story.go_backs[0].after_ack
        story.rule = REORDERING if answered else LOSS
        return True
    return _name_by_silence(evidence, story)


def _is_open(story: Story) -> bool:
    """Whether the capture never shows the PSN acknowledged."""
    requests = story.connection.requests[story.side]
    transfer = story.transfer
    if requests is None or requests.acked > story.psn:
        return False
    return transfer is None or transfer.status != ACKED


def _gave_up(evidence: Evidence, story: Story) -> bool:
    """Whether the repeats were never answered and ended: then it is the end that has to be named."""
    if not _is_open(story):
        return False
    repeats = story.repeats
    statuses = {status_of(t) for t in story.transfers}
    limit = story.connection.negotiated[story.side].retry_count
    intervals = [b.time_ns - a.time_ns for a, b in itertools.pairwise(repeats)]
    interval = max([*intervals, repeats[0].waited_ns])
    silence = evidence.last_ns - repeats[-1].events[-1].last_ns
    tries = story.transmissions - 1
    told = "RETRY_EXC_ERR" in statuses
    story.gave_up = (
        told
        or (limit is not None and 0 < limit <= tries)
        or (tries >= 2 and interval > 0 and silence > _GAVE_UP_INTERVALS * interval)
    )
    closed_ns = evidence.closed_ns(story.connection)
    if closed_ns is not None and closed_ns < repeats[0].time_ns:
        story.rule = DEAD_QP
        return True
    if tries >= 2 and evidence.vanished_size(story) != (0, 0):
        story.rule = MTU_MISMATCH
        return True
    spoken = is_spoken(evidence, story.connection, story.side)
    if story.gave_up or (tries >= 2 and not spoken):
        story.rule = RETRY_EXCEEDED if spoken else PEER_SILENT
        return True
    return False


def _acknowledging(story: Story) -> int:
    """The PSN that a lost acknowledgement was to name: the last one of the message."""
    transfer = story.transfer
    return story.psn if transfer is None else min(transfer.last_psn, story.go_backs[0].opener.sent_psn)


def _is_early(evidence: Evidence, story: Story) -> bool:
    """Whether an acknowledged packet was repeated before its timer can have run out, or just behind the
    answer.
    """
    run = story.go_backs[0]
    timeout_ns = evidence.timeout_ns(story.connection, story.side)
    if run.cause == "implied_nak":
        return False
    if timeout_ns is not None and run.waited_ns < _EARLY * timeout_ns:
        return True
    transfer = story.transfer
    if transfer is None or transfer.acked_ns is None or transfer.acked_ns > run.time_ns:
        return False
    return (run.time_ns - transfer.acked_ns) * 2 < run.waited_ns


def _stalled(evidence: Evidence, story: Story) -> bool:
    """Whether a repeat in the middle of a message may be the sender's own stall, with nothing lost."""
    waited = story.go_backs[0].waited_ns
    timeout_ns = evidence.timeout_ns(story.connection, story.side)
    if timeout_ns is not None and _ON_TIME[0] * timeout_ns <= waited <= _ON_TIME[1] * timeout_ns:
        return False
    return waited < _STALL_NS


def _name_by_silence(evidence: Evidence, story: Story) -> bool:
    run = story.go_backs[0]
    opener = run.opener
    transfer = story.transfer
    if opener.after_ack and _is_early(evidence, story):
        story.rule = NEEDLESS
        return True
    answered = transfer is not None and transfer.operation in ANSWERED
    in_part = transfer is not None and transfer.is_read and run.first_psn > transfer.first_psn
    was_answered = opener.after_ack or in_part or _has_response_hole(transfer)
    if run.cause == "implied_nak" or (answered and was_answered):
        story.rule = IMPLIED_NAK
        return True
    if opener.after_ack:
        story.rule = ACK_LOSS
        return True
    if opener.mid_message and story.hole is None and not run.first_sight:
        return False
    answer, reached, sent = opener.answer_psn, opener.reached_psn, opener.sent_psn
    ahead = answer is not None and reached < answer
    hole = story.hole
    if hole is None and opener.first_sight == 0:
        hole = _hole_in(story, run)
    if hole is not None and not (ahead and answer is not None and answer >= hole.psn):
        story.hole, story.psn = hole, max(hole.psn, story.psn)
        story.lost = hole.last_psn - hole.psn + 1
        story.rule = LOSS
        return True
    if opener.first_sight:
        story.rule = TAIL_LOSS
        return True
    if answer is not None and ahead:
        if answer < sent:
            story.psn, story.rule = answer + 1, TAIL_LOSS
            return True
        unfinished = transfer_after(story, sent)
        if unfinished and sent - run.first_psn + 1 < _WINDOW:
            story.psn, story.rule = sent + 1, TAIL_LOSS
            return True
        story.rule = ACK_LOSS
        return True
    if answer is not None and answer < sent and reached < sent:
        story.rule = TAIL_LOSS
        return True
    return False


def transfer_after(story: Story, sent: int) -> bool:
    """Whether the message that was being sent when silence fell goes on behind ``sent``."""
    return any(t.first_psn <= sent < t.last_psn and not t.is_read for t in story.transfers)


def _has_response_hole(transfer: Transfer | None) -> bool:
    return transfer is not None and any(e.kind == "response_hole" for e in transfer.events)


def _hole_in(story: Story, run: GoBack) -> Event | None:
    """A hole inside what was repeated, which the repeat closed."""
    for transfer in run.transfers:
        for event in transfer.events:
            if (
                event.kind == "hole"
                and event.time_ns < run.time_ns
                and run.first_psn <= event.psn <= run.last_psn
                and run.first_sight
            ):
                return event
    return None


def _decide_mid_message(evidence: Evidence, story: Story, *, lossy: bool) -> None:
    """The rest of a message did not follow: lost before the capture point, or not sent yet?"""
    opener = story.go_backs[0].opener
    story.certain = not _stalled(evidence, story)
    if story.certain or lossy:
        story.rule = TAIL_LOSS
        if transfer_after(story, opener.sent_psn):
            story.psn = opener.sent_psn + 1
    else:
        story.rule = NEEDLESS


def _decide(evidence: Evidence, doubtful: list[Story], named: list[Story]) -> None:
    """A message and its acknowledgement, one of them lost: what the rest of the capture shows decides.

    If packets of one direction are known to be lost behind the capture point, the capture would have shown
    the message both ways; if they are lost before it, a message that it shows was not lost.
    """
    before: dict[tuple[str | None, str | None], int] = defaultdict(int)
    behind: dict[tuple[str | None, str | None], int] = defaultdict(int)
    for story in named:
        ips, side = story.connection.ips, story.side
        ask, answer = (ips[side], ips[1 - side]), (ips[1 - side], ips[side])
        if story.rule == LOSS:
            (before if story.hole is not None else behind)[ask] += 1
        elif story.rule == TAIL_LOSS:
            seen = story.go_backs[0].first_sight == 0 and story.psn <= story.go_backs[0].opener.sent_psn
            (behind if seen else before)[ask] += 1
        elif story.rule == IMPLIED_NAK:
            hidden = any(_has_response_hole(t) for t in story.transfers)
            (before if hidden else behind)[answer] += 1
        elif story.rule == ACK_LOSS and story.go_backs[0].after_ack:
            behind[answer] += 1
    for story in doubtful:
        ips, side = story.connection.ips, story.side
        ask, answer = (ips[side], ips[1 - side]), (ips[1 - side], ips[side])
        if story.go_backs[0].opener.mid_message:
            _decide_mid_message(evidence, story, lossy=bool(before[ask]))
            continue
        story.psn = max(
            story.psn, story.go_backs[0].opener.sent_psn
        )  # what came behind it would have drawn a NAK
        by_answer = before[answer] + before[ask]
        by_request = behind[ask] + behind[answer]
        transfer = story.transfer
        lost_answer = by_answer > by_request
        story.certain = (by_answer > 0) != (by_request > 0)
        if not lost_answer:
            story.rule = TAIL_LOSS
        elif transfer is not None and transfer.operation in ANSWERED:
            story.rule = IMPLIED_NAK
        else:
            story.rule = ACK_LOSS
