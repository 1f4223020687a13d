"""The cause of a story, which names its rule (IBA Vol. 1, 9.7.5 and 9.7.6).

* a NAK "PSN sequence error", or a hole that only a repeat filled: ``loss``; if the packet came late:
  ``reordering``;
* an RNR NAK: ``rnr``, with all effects of the silence after it;
* a repeat after silence: ``tail-loss`` or ``ack-loss``. The responder's ACK when the repeat starts decides:
  it acknowledges a duplicate with the last PSN that it has (9.7.5.1.2). An ACK of packets not repeated yet
  proves that they had arrived the first time;
* a READ or atomic sent again because its response was lost: ``implied-nak``;
* a repeat after the timeout although nothing was missing: ``needless-repeat``;
* a repeat that got no answer: ``retry-exceeded``, or ``peer-silent`` if the peer never sent anything;
  ``dead-qp`` if the connection was closed or started with the wrong PSN; ``mtu-mismatch`` if only large
  packets get no answer.

Later steps may change the rule: ``journal_losses`` (losses that only the journal shows), ``late_packets``
(packets that were only late), ``corruption`` (the lost packet was captured, corrupted: ``icrc-bad``) and
``pauses`` (a whole traffic class was silent: ``pause-stall``).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from rocekit.findings.cause_words import is_obeyed
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
    TIMEOUT_TOO_SHORT,
    UNDECIDED,
)
from rocekit.findings.stories.copies import (
    arrived,
    is_mixed,
    is_read_again,
    may_be_late,
    message_goes_on,
    refused_too_soon,
    was_overtaken,
)
from rocekit.findings.stories.doubts import (
    WINDOW,
    begins_in_part,
    is_gappy,
    is_host_heard,
    may_be_full,
    may_be_stall,
    stalled_ways,
)
from rocekit.findings.stories.overtaken import Overtaken
from rocekit.findings.stories.story import GoBack, Story, longest_wait_ns
from rocekit.track.causes import NAK_MISSED, OBEYED_NS
from rocekit.track.short_timers import fits_timer, short_timer_ns
from rocekit.track.transfers import ACKED, RESPONSE_CUT
from rocekit.wire import OWN_RESPONSE

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: A silence after the last repeat of so many repeat intervals means that the requester gave up; a shorter one
#: may be the end of the capture.
_GAVE_UP_INTERVALS: Final = 2.5
#: From so many unanswered repeats on, the peer is reported as silent even if the capture ends too soon.
_TRIES: Final = 3
#: A PSN this far away may be of another QP that got the same QPN.
_OTHER_LIFE: Final = 1 << 16
#: A repeat after less than this share of the local ACK timeout was not caused by it.
_EARLY: Final = 0.9
#: A response after less than this share of the shortest turnaround is not to what was just sent.
_SOONER: Final = 0.75
#: So many equal ACKs may be one that came twice, where identifications do not tell.
_COPY: Final = 2


def name_causes(evidence: Evidence, stories: list[Story]) -> list[Story]:
    """Name the rules of stories that have none; returns those that their own packets do not decide."""
    still_open: list[Story] = []
    connection: Connection | None = None
    side, wrong = 0, False
    overtaken = Overtaken(evidence)
    for story in stories:
        if story.rule:
            continue
        if story.connection is not connection or story.side != side:
            connection, side = story.connection, story.side
            wrong = evidence.starts_wrong(connection, side)
        if wrong:
            story.rule = DEAD_QP
        elif not _name_cause(evidence, story, overtaken):
            still_open.append(story)
    return still_open


def _name_cause(evidence: Evidence, story: Story, overtaken: Overtaken) -> bool:
    """Name the story's rule; False if the story's own packets do not decide."""
    if story.hole is not None:
        story.lost = story.hole.last_psn - max(story.psn, story.hole.psn) + 1
    if story.rnrs:
        story.rule = RNR
        story.gave_up = _is_unacknowledged(story)
        return True
    repeats = story.runs()
    if repeats and _gave_up(evidence, story):
        return True
    if story.late or len(repeats) < len(story.go_backs):
        story.rule = REORDERING
        return True
    if refused_too_soon(story):
        story.rule = NEEDLESS
        return True
    if story.naks:
        overtaken.note(story)
    if was_overtaken(story):
        story.rule = REORDERING
        return True
    if story.naks and overtaken.is_seen(story):
        story.rule, story.certain = REORDERING, False
        return True
    if story.naks:
        story.rule = REORDERING if arrived(story) else LOSS
        if story.rule == LOSS and may_be_late(story):
            story.certain, story.or_overtaken = False, True
        return True
    again = repeats[0] if repeats else None
    if again is not None and again.cause == "nak" and again.opener.after_ack and _is_soon(story, again):
        story.rule = REORDERING  # its NAK is another story's, and this packet arrived
        return True
    if again is not None and again.cause == NAK_MISSED:
        _name_after_missed_nak(story)
        return True
    return _name_after_timeout(evidence, story)


def _is_soon(story: Story, run: GoBack) -> bool:
    """Whether a repeat comes as soon as a NAK is obeyed, or its wait counts from one."""
    return run.waited_ns <= OBEYED_NS or is_obeyed(run.opener, story.transfer)


def _name_after_missed_nak(story: Story) -> None:
    """Name the rule of a repeat too soon for a timer, without a NAK in the capture."""
    run, transfer = story.repeats[0], story.transfer
    story.certain = False
    if run.after_ack:
        story.rule = NEEDLESS
    elif transfer is not None and transfer.operation in OWN_RESPONSE:
        story.rule = IMPLIED_NAK
    else:
        story.rule = LOSS
        # The NAK was for the PSN to which the requester goes back.
        skipped = _skipped_in(run)
        if skipped is not None and skipped[0] == run.first_psn:
            _lose(story, run, skipped)
            story.certain = True
        elif story.connection.cut_responses and story.hole is None and not run.opener.first_sight:
            story.rule = UNDECIDED  # an RNR NAK comes after packets that arrived


def _is_unacknowledged(story: Story) -> bool:
    """Whether no acknowledgement of the PSN is in the capture, nor proven by what the requester sent."""
    requests = story.connection.progress[story.side]
    transfer = story.held_by()
    if story.passed or requests is None or requests.acked > story.psn:
        return False
    return transfer is None or transfer.status not in (ACKED, RESPONSE_CUT)


def _gave_up(evidence: Evidence, story: Story) -> bool:
    """Whether the repeats got no answer and ended; then the rule is named for the end."""
    if not _is_unacknowledged(story):
        return False
    repeats = story.repeats
    statuses = {status_of(t) for t in story.transfers}
    limit = story.connection.negotiated[story.side].retry_count
    interval = longest_wait_ns(repeats)
    silence = evidence.last_ns - repeats[-1].last_event.last_ns
    tries = story.transmissions - 1
    if _sends_on(evidence, story, interval) or is_read_again(story):
        return False
    story.gave_up = (
        "RETRY_EXC_ERR" in statuses
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
    heard = _heard_peer(evidence, story.connection, story.side)
    if not _is_answered(evidence, story) and "RETRY_EXC_ERR" not in statuses:
        requests = story.connection.progress[story.side]
        missed = requests is not None and story.psn > requests.begin
        if missed and not story.gave_up:
            return False  # the PSNs go on: there were responses, and the capture has none of them
        story.certain = not missed and is_host_heard(evidence, story)
    if story.gave_up or (tries >= _TRIES and not is_gappy(story.connection)) or (tries >= 2 and not heard):
        story.rule = RETRY_EXCEEDED if heard else PEER_SILENT
        return True
    return False


def _sends_on(evidence: Evidence, story: Story, interval_ns: int) -> bool:
    """Whether new requests follow when the next repeat was due: a QP that gave up sends nothing more."""
    transfers = evidence.transfers_of[story.connection.id, story.side]
    if not transfers:  # `top` keeps those with troubles only
        return False
    latest = transfers[-1]
    run = story.repeats[-1]
    is_new = 0 < latest.last_psn - run.last_psn < _OTHER_LIFE
    return is_new and latest.request_end_ns > run.last_event.last_ns + interval_ns


def _is_early(evidence: Evidence, story: Story) -> bool:
    """Whether an acknowledged packet was repeated before its timeout, or just after its ACK."""
    run, timeout_ns = story.go_backs[0], evidence.timeout_ns(story.connection, story.side)
    if run.cause == "implied_nak":
        return False
    early = timeout_ns is not None and run.waited_ns < _EARLY * timeout_ns and not _fits_short_timer(story)
    return early or _comes_just_after_ack(story)


def _comes_just_after_ack(story: Story) -> bool:
    """Whether an acknowledged packet was repeated so soon after its ACK that the two crossed each other."""
    run, transfer = story.go_backs[0], story.transfer
    if transfer is None or transfer.acked_ns is None or transfer.acked_ns > run.time_ns:
        return False
    return (run.time_ns - transfer.acked_ns) * 2 < run.waited_ns


def _fits_short_timer(story: Story) -> bool:
    """Whether the wait fits the timer that this requester probably has, which is shorter than negotiated."""
    ns = short_timer_ns(story.connection, story.side)
    return ns is not None and fits_timer(story.go_backs[0].waited_ns, ns)


def _name_after_timeout(evidence: Evidence, story: Story) -> bool:
    """Name the rule of a repeat without NAK or RNR NAK; False if the story's own packets do not decide."""
    run = story.go_backs[0]
    opener = run.opener
    transfer = story.transfer
    needs_answer = transfer is not None and transfer.operation in OWN_RESPONSE
    if not needs_answer and opener.after_ack and _is_early(evidence, story):
        # Its timer may have started before this was sent, and the ACK was lost behind the capture.
        story.rule, story.certain = NEEDLESS, False
        return True
    skipped = _skipped_in(run)
    if not needs_answer and run.cause == "timeout" and skipped is None:
        proven = _is_one_more(run)
        if proven or _comes_too_soon(run):
            # Where the network makes copies, it may have made one of the repeat behind the capture.
            sure = proven and not (story.connection.duplicates or begins_in_part(run))
            story.rule, story.certain = TIMEOUT_TOO_SHORT, sure
            return True
    in_part = transfer is not None and transfer.is_read and run.first_psn > transfer.first_psn
    was_answered = opener.after_ack or in_part or _has_response_hole(transfer, run.time_ns)
    if run.cause == "implied_nak" or (needs_answer and was_answered):
        if any(e.kind == "response_late" and e.psn == run.first_psn for t in run.transfers for e in t.events):
            story.rule, story.of_response = REORDERING, True
            return True
        story.rule = IMPLIED_NAK
        # A response that the capture has may only have been late, or overtaken, behind it.
        # Where the capture has no responses at all, it cannot tell either.
        story.certain = not (opener.after_ack or opener.response_seen == 1) and _is_answered(evidence, story)
        return True
    if opener.after_ack:
        story.rule, story.certain = ACK_LOSS, False  # lost behind the capture point, or only late there
        return True
    if opener.mid_message and story.hole is None and not run.first_sight:
        return False
    answer, reached, sent = opener.answer_psn, opener.reached_psn, opener.sent_psn
    # An ACK of what was sent for the first time behind the repeat says nothing of what was repeated. Behind a
    # READ or atomic it says that the capture lacks their responses, and with them when they came.
    ahead = not needs_answer and answer is not None and reached < min(answer, sent)
    if skipped is not None and not (ahead and answer is not None and answer >= skipped[0]):
        _lose(story, run, skipped)
        story.rule = LOSS
        return True
    again = answer is not None and run.first_psn <= answer < sent and opener.same_answers > _COPY
    if opener.first_sight and not again:
        story.rule = TAIL_LOSS
        return True
    if answer is not None and answer < sent and (ahead or again):
        # What is acknowledged again and again had arrived before (9.7.5.1.2).
        story.psn, story.rule = answer + 1, TAIL_LOSS
        story.certain = _is_to_repeat(run) and not _is_acknowledged_next(run, story.psn)
        return True
    if ahead:
        unfinished = message_goes_on(story, sent)
        if unfinished and sent - run.first_psn + 1 < WINDOW:
            # The capture does not have it: lost before the capture point, or not sent before the silence.
            story.psn, story.rule, story.certain = sent + 1, TAIL_LOSS, False
            return True
        story.rule = ACK_LOSS
        return True
    if answer is not None and answer < sent and reached < sent:
        # An ACK of what is before the repeat is to a copy of that, and says nothing of what came behind it.
        story.rule, story.certain = TAIL_LOSS, False
        return True
    return False


def _is_to_repeat(run: GoBack) -> bool:
    """Whether the first response after a repeat is to the repeat, and not to what was sent before it.

    It comes as long after it as a response takes, and much sooner than the timer ran out: otherwise the
    responses to the first transmission may still be on their way.
    """
    opener = run.opener
    took_ns = opener.answer_ns - run.time_ns
    return 0 < opener.turnaround_ns * _SOONER <= took_ns < run.waited_ns // 2


def _is_acknowledged_next(run: GoBack, psn: int) -> bool:
    """Whether an ACK of a PSN not yet repeated follows the first response too soon to be to its repeat."""
    opener = run.opener
    until_ns = opener.answer_ns + opener.turnaround_ns * _SOONER
    return psn > opener.reached_psn and any(
        t.acked_ns is not None and t.acked_ns < until_ns for t in run.transfers if t.last_psn >= psn
    )


def _is_one_more(run: GoBack) -> bool:
    """Whether a response after a repeat proves that the first transmission was answered, only late.

    Each repeated packet draws one ACK at most, and each copy of it, so one more is to the first transmission;
    an ACK of what is before the run, or first seen behind the repeat, may be to a copy of that.
    """
    psn = run.opener.answer_psn
    of_run = psn is not None and run.first_psn <= psn <= run.opener.sent_psn
    events = (e for t in run.transfers for e in t.events)
    copies = sum(e.kind == "duplicate" and e.time_ns >= run.time_ns for e in events)
    return of_run and not run.after_ack and run.opener.same_answers > run.packets + copies


def _comes_too_soon(run: GoBack) -> bool:
    """Whether a response follows a repeat sooner than any response came: probably to the first transmission.

    The responses before may all have been slow, behind a queue; so it is no proof. And where the ACK is to a
    packet that was just repeated, in the middle of a message, the repeat drew it: the first transmission of
    such a packet seldom asks for one.
    """
    opener = run.opener
    psn = opener.answer_psn
    if run.after_ack or not opener.answer_ns or psn is None:
        return False
    if psn <= opener.reached_psn and any(t.first_psn <= psn < t.last_psn for t in run.transfers):
        return False
    return opener.answer_ns - run.time_ns < opener.turnaround_ns * _SOONER


def _has_response_hole(transfer: Transfer | None, until_ns: int = 1 << 62) -> bool:
    events = () if transfer is None else transfer.events
    return any(e.kind == "response_hole" and e.time_ns < until_ns for e in events)


def _skipped_in(run: GoBack) -> tuple[int, int] | None:
    """The first PSNs of a run that the capture lacks in the pass before it, with others behind them."""
    of_pass = run.opener.of_pass
    if of_pass is None or is_mixed(of_pass):
        return None
    reads = [t for t in run.transfers if t.is_read]  # a READ's one request takes the PSNs of its responses
    return min(
        (
            (max(first, run.first_psn), last)
            for first, last in of_pass.gaps
            if last >= run.first_psn
            and first <= run.last_psn
            and not any(t.first_psn < first <= t.last_psn for t in reads)
        ),
        default=None,
    )


def _lose(story: Story, run: GoBack, skipped: tuple[int, int]) -> None:
    """The packets that were ``skipped`` before a run are what the story lost."""
    began_ns = run.opener.of_pass.began_ns
    story.psn = skipped[0]
    story.lost = skipped[1] - skipped[0] + 1
    holes = [
        e for t in run.transfers for e in t.events if e.kind == "hole" and began_ns <= e.time_ns < run.time_ns
    ]
    story.hole = next((e for e in holes if e.psn <= story.psn <= e.last_psn), None)


def _decide_mid_message(evidence: Evidence, story: Story, *, lossy: bool, stalls: bool) -> None:
    """Name the rule if the rest of a message is missing: lost before the capture point, or not sent yet."""
    opener = story.go_backs[0].opener
    stalls = stalls or may_be_stall(evidence, story)
    story.certain = not (stalls or may_be_full(story))
    if not stalls or lossy or _fits_short_timer(story):
        story.rule = TAIL_LOSS
        if message_goes_on(story, opener.sent_psn):
            story.psn = opener.sent_psn + 1
    else:
        story.rule = NEEDLESS


def _is_answered(evidence: Evidence, story: Story) -> bool:
    """Whether the capture has any response to this direction."""
    return (story.connection.id, story.side) in evidence.answered


def _heard_peer(evidence: Evidence, connection: Connection, side: int) -> bool:
    """Whether the peer of ``side`` ever sent anything on this connection."""
    mine, theirs = connection.progress[side], connection.progress[1 - side]
    if theirs is not None and theirs.started:
        return True
    if mine is None or mine.acked > mine.begin or connection.naks or connection.rnr_naks:
        return True
    return any(t.acked_ns is not None for t in evidence.transfers_of.get((connection.id, side), ()))


def name_open_causes(evidence: Evidence, still_open: list[Story], named: list[Story]) -> None:
    """Name the rule if either a message or its response was lost: other losses in the capture decide.

    If the capture loses packets of the message's direction behind the capture point, the message was probably
    lost, though the capture has it. If it loses them before the capture point, a captured message was
    probably not lost.
    """
    before, behind = loss_places(named)
    stalled = stalled_ways(evidence, still_open)
    for story in still_open:
        ips, side = story.connection.ips, story.side
        request, response = (ips[side], ips[1 - side]), (ips[1 - side], ips[side])
        if story.go_backs[0].opener.mid_message:
            stalls = stalled[story.connection.id, side] > 0
            _decide_mid_message(evidence, story, lossy=bool(before[request]), stalls=stalls)
            continue
        # The last packet is among the lost ones: if it had arrived, it would have drawn a NAK for the others.
        story.psn = max(story.psn, story.go_backs[0].opener.sent_psn)
        story.received = _received_before(evidence, story)
        if story.received is not None:
            story.rule = ACK_LOSS if story.received else TAIL_LOSS
            continue
        for_lost_response = before[response] + before[request]
        for_lost_request = behind[request] + behind[response]
        transfer = story.transfer
        story.certain = False
        if for_lost_response <= for_lost_request:
            story.rule = TAIL_LOSS
        elif transfer is not None and transfer.operation in OWN_RESPONSE:
            story.rule = IMPLIED_NAK
        else:
            story.rule = ACK_LOSS


def _received_before(evidence: Evidence, story: Story) -> bool | None:
    """Whether the message had arrived before it was sent again, by its receive's completion; None if unknown.

    The clocks are aligned only as exactly as programs poll. A completion polled in the first half of the wait
    is of the first transmission, one polled just after the repeat is of the repeat.
    """
    run, transfer = story.go_backs[0], story.transfer
    polled_ns = None if transfer is None else evidence.received_ns(transfer)
    if transfer is None or polled_ns is None or not transfer.first_psn <= story.psn <= transfer.last_psn:
        return None
    if polled_ns < run.time_ns - run.waited_ns // 2:
        return True
    return False if run.time_ns <= polled_ns < run.time_ns + run.waited_ns // 4 else None


_Places = dict[tuple[str | None, str | None], int]


def loss_places(named: list[Story]) -> tuple[_Places, _Places]:
    """How many losses each (sender, receiver) had before, and behind, the capture point."""
    before: _Places = defaultdict(int)
    behind: _Places = defaultdict(int)
    for story in named:
        if story.rule == LOSS:
            (before if story.hole is not None else behind)[_way(story)] += 1
        elif story.rule == TAIL_LOSS:
            seen = story.go_backs[0].first_sight == 0 and story.psn <= story.go_backs[0].opener.sent_psn
            (behind if seen else before)[_way(story)] += 1
        elif story.rule == IMPLIED_NAK:
            hidden = any(_has_response_hole(t) for t in story.transfers)
            (before if hidden else behind)[_way(story)[::-1]] += 1
        elif story.rule == ACK_LOSS and story.go_backs[0].after_ack:
            behind[_way(story)[::-1]] += 1
    return before, behind


def _way(story: Story) -> tuple[str | None, str | None]:
    """The sender and the receiver of a story's requests."""
    ips, side = story.connection.ips, story.side
    return ips[side], ips[1 - side]
