"""The cause of a story, which names its rule (IBA Vol. 1, 9.7.5 and 9.7.6).

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

Behind this come ``corruption`` (a corrupted packet of the right PSN was captured: ``icrc-bad``), ``unseen``
(losses that only the journal shows) and ``stragglers`` (packets that were only late).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from rocekit.findings.evidence import status_of
from rocekit.findings.stories import (
    ACK_LOSS,
    DEAD_QP,
    IMPLIED_NAK,
    LOSS,
    MTU_MISMATCH,
    NEEDLESS,
    PEER_SILENT,
    REORDERING,
    RETRY_EXCEEDED,
    RNR,
    TAIL_LOSS,
    GoBack,
    Story,
)
from rocekit.findings.stories.places import BETWEEN, place
from rocekit.track.transfers import ACKED

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: Operations whose answer carries data: what a lost answer costs, an acknowledgement cannot make good.
ANSWERED: Final = frozenset({"READ", "FETCH_ADD", "CMP_SWAP", "FLUSH", "ATOMIC_WRITE"})
#: Silence after the last repeat, in its own intervals, that says the requester gave up and not only the
#: capture.
_GAVE_UP_INTERVALS: Final = 2.5
#: Repeats in vain from which on it does not matter whether the capture shows the end.
_TRIES: Final = 3
#: A repeat sooner than this share of the local ACK timeout was not its doing.
_EARLY: Final = 0.9
#: A wait between these shares of the timeout is a timer's that is kept well, and not a stall by chance.
_ON_TIME: Final = (0.98, 1.05)
#: Nor does a sender stall this long by itself; the usual timeouts (code 14 and up) are longer.
_STALL_NS: Final = 60_000_000
#: This many PSNs outstanding look like a sender that waits for its window and not for a lost packet.
_WINDOW: Final = 64


def name_cause(evidence: Evidence, story: Story) -> bool:
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
    requests = story.connection.progress[story.side]
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
    if story.gave_up or tries >= _TRIES or (tries >= 2 and not spoken):
        story.rule = RETRY_EXCEEDED if spoken else PEER_SILENT
        return True
    return False


def acknowledging(story: Story) -> int:
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


def is_spoken(evidence: Evidence, connection: Connection, side: int) -> bool:
    """Whether ``side`` ever heard anything from its peer on this connection."""
    mine, theirs = connection.progress[side], connection.progress[1 - side]
    if theirs is not None and theirs.started:
        return True
    if mine is None or mine.acked > mine.begin or connection.naks or connection.rnr_naks:
        return True
    return any(t.acked_ns is not None for t in evidence.transfers_of.get((connection.id, side), ()))


def decide(evidence: Evidence, doubtful: list[Story], named: list[Story]) -> None:
    """A message and its acknowledgement, one of them lost: what the rest of the capture shows decides.

    If packets of one direction are known to be lost behind the capture point, the capture would have shown
    the message both ways; if they are lost before it, a message that it shows was not lost.
    """
    before, behind = loss_places(named)
    for story in doubtful:
        ips, side = story.connection.ips, story.side
        ask, answer = (ips[side], ips[1 - side]), (ips[1 - side], ips[side])
        if story.go_backs[0].opener.mid_message:
            _decide_mid_message(evidence, story, lossy=bool(before[ask]))
            continue
        # What was sent last is among the lost: had it arrived, it would have drawn a NAK for the others.
        story.psn = max(story.psn, story.go_backs[0].opener.sent_psn)
        if _seen_lost(evidence, story):
            continue
        story.received = _received_before(evidence, story)
        if story.received is not None:
            story.rule = ACK_LOSS if story.received else TAIL_LOSS
            continue
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


def _received_before(evidence: Evidence, story: Story) -> bool | None:
    """Whether the message had arrived when it was sent again, as its receive's completion tells.

    Clocks are aligned no better than to the time that polling takes: what is polled in the first half of the
    wait had come before, what is polled just behind the repeat had not.
    """
    run, transfer = story.go_backs[0], story.transfer
    polled_ns = None if transfer is None else evidence.received_ns(transfer)
    if transfer is None or polled_ns is None or not transfer.first_psn <= story.psn <= transfer.last_psn:
        return None
    if polled_ns < run.time_ns - run.waited_ns // 2:
        return True
    return False if run.time_ns <= polled_ns < run.time_ns + run.waited_ns // 4 else None


def _seen_lost(evidence: Evidence, story: Story) -> bool:
    """Whether one capture saw the message and the next on its way did not: then it was the message."""
    story.rule = TAIL_LOSS
    found = place(evidence, story)
    return found is not None and found.where == BETWEEN


_Places = dict[tuple[str | None, str | None], int]


def loss_places(named: list[Story]) -> tuple[_Places, _Places]:
    """How often each (sender, receiver) lost packets before, and behind, the capture point."""
    before: _Places = defaultdict(int)
    behind: _Places = defaultdict(int)
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
    return before, behind
