"""What several captures decide about a story: the packet was lost between them, overtaken, or only late.

A single capture leaves open whether a request or its response was lost, and whether a packet was lost or
overtaken behind it. Where two capture points show the packet's way, the packets decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import (
    ACK_LOSS,
    IMPLIED_NAK,
    LOSS,
    NEEDLESS,
    REORDERING,
    TAIL_LOSS,
    TIMEOUT_TOO_SHORT,
)
from rocekit.findings.stories.capture_view import OVERTAKEN, CaptureView
from rocekit.findings.stories.copies import is_first_behind, lost_copies, was_overtaken
from rocekit.findings.stories.doubts import lacks_requests
from rocekit.findings.stories.loss_place import BEFORE, BEYOND, LossPlace
from rocekit.findings.stories.unidentified import unidentified_ways, way_of
from rocekit.track.causes import NAK_MISSED, OBEYED_NS
from rocekit.wire import OWN_RESPONSE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack, Story
    from rocekit.points.sightings import Sightings, Transmission
    from rocekit.track.events import Event

#: How many later ACKs are searched, and how many PSNs of a silent pass.
_LATER: Final = 256
#: So many answers that came to the requester before its repeat may all have been lost behind its capture.
_MOST_LOST: Final = 3
_NAKS: Final = ("nak", "rnr_nak")
_Copy = tuple[int, int, int, int, tuple[int, ...]]  # one packet that was lost
_BY_ANSWERS: Final = frozenset({ACK_LOSS, TIMEOUT_TOO_SHORT})
_DECIDED: Final = frozenset({LOSS, TAIL_LOSS, ACK_LOSS, IMPLIED_NAK, NEEDLESS})


def decide_by_captures(evidence: Evidence, stories: Iterable[Story]) -> list[Story]:
    """Decide each story that the packets of several captures decide, and place its losses; gives the stories.

    A packet is out of order only where one capture has it so: the order among captures is estimated.
    """
    kept: list[Story] = []
    refused: set[int] = set()
    stories = list(stories)
    unidentified, doubled = unidentified_ways(stories), set()
    bad = _corrupted(evidence)
    for story in stories:
        view = CaptureView(evidence, story, bad)
        if story.rule == REORDERING and view.has_estimated_order(story):
            if not story.runs():
                continue
            story.rule, story.certain, story.late = LOSS, False, []
            if story.of_response:
                story.rule, story.or_overtaken, story.of_response = IMPLIED_NAK, True, False
        if _seems_answered(story) and not view.is_answered_between(story):
            story.rule, story.certain, story.or_overtaken = LOSS, False, True
        if _is_lost_between(view, story):
            story.rule, story.certain = LOSS, False  # or it arrived, and that capture missed it
        kept.append(story)
        if not view.points or story.rule not in _DECIDED or story.begun:
            continue  # what was sent before all of them began is in none
        if (story.connection.id, story.side) not in evidence.transfers_of:
            continue  # captures of the responses only: a request that they lack was not lost for that
        if not view.covers(story):
            continue  # one had not begun yet, or had ended: what it lacks was not lost for that
        before = story.rule, story.certain, story.psn, story.places
        if story.naks:
            own = evidence.transfers_of.get(way_of(story), ())
            _decide_nak(view, story, lacked=story.gappy and lacks_requests(own))
        elif story.repeats:
            _decide_silence(view, story)
            if view.refused:
                refused.add(id(story))
            if view.gappy:  # what a capture has not decides nothing
                story.certain, story.gappy, story.places = False, True, []
        story.or_overtaken = story.or_overtaken and not story.certain
        if story.connection.cut_responses and story.rule in _BY_ANSWERS:
            story.certain, story.places = False, []  # what was cut does not say whether it is a NAK
        if view.doubles and way_of(story) in unidentified:
            doubled.add(id(story))
        if view.disordered:
            _doubt_in_disorder(view, story, identified=way_of(story) not in unidentified)
        if story.places and not any(view.was_running(place) for place in story.places):
            story.rule, story.certain, story.psn, story.places = before  # as one capture has it
        if story.places:
            story.places = [place for place in story.places if view.is_sure(place, story)]
            if not story.places and view.overtakes:
                story.certain = False  # one that a capture missed may have been overtaken, as others were
    kept = _told_once(evidence.sightings, kept, refused)
    for story in kept if doubled else ():
        if id(story) in doubled and story.rule in (LOSS, TAIL_LOSS):
            # A copy looks like one sent again, and what it is taken for begins a pass that lacks packets.
            story.certain, story.places = False, []
    return kept


def _seems_answered(story: Story) -> bool:
    """Whether an answer before its go-back is why a packet that a NAK names counts as late.

    The NAK may be another story's, where a capture lacks what lies between the two.
    """
    if story.rule != REORDERING or story.late or story.of_response or was_overtaken(story):
        return False
    runs = story.runs()
    return bool(runs) and runs[0].opener.after_ack


def _is_lost_between(view: CaptureView, story: Story) -> bool:
    """Whether the packet that a NAK names is at the first capture point, and not at the last.

    That comes before what a later NAK says, which another go-back may have drawn that no capture has. The
    same where all copies that the captures have came behind the NAK, and nothing sent behind these before it.
    """
    if story.rule != REORDERING or not story.naks or story.late or not view.points:
        return False
    first, last = view.points[0], view.points[-1]
    for copy in lost_copies(story):
        sent = view.last_sent(copy.psn, copy.since_ns, copy.until_ns)
        missed = view.missed_copy(sent, copy.psn, story.naks)
        if sent is None:
            return False  # no capture has it
        if missed is not None and (first not in missed.times_ns or last in missed.times_ns):
            return False
    return True


def _doubt_in_disorder(view: CaptureView, story: Story, *, identified: bool) -> None:
    """Leave open what only the order among the captures says, which is estimated, where many are overtaken.

    A repeat that the requester's own capture has not was none: the network doubled or delayed its packets.
    And of packets that are alike, it is open which was lost.
    """
    runs = story.runs()
    if story.rule == NEEDLESS:
        story.certain = False
    elif not story.naks and runs and not view.is_sent(runs[0].frame):
        story.certain, story.places = False, []
    elif story.places and all(place.where == BEFORE for place in story.places):
        until_ns = story.naks[-1].time_ns if story.naks else runs[0].time_ns
        if view.unaligned or not all(view.is_skipped(place.psn, until_ns) for place in story.places):
            story.certain, story.places = False, []
    elif story.places and not identified and any(view.may_be_another(place) for place in story.places):
        story.certain, story.places = False, []


def _told_once(sightings: Sightings | None, stories: list[Story], refused: set[int]) -> list[Story]:
    """The stories without those of a silence that join a NAK's, because both are of one packet.

    The NAK did not arrive, so that the timer ran out. Or it arrived late, and the requester obeyed it then:
    its time is that of the capture at its sender. Or it arrived and was not obeyed before the timer ran out
    (``refused``, by ``id``).
    """
    by_copy: dict[_Copy, Story] = {}
    obeyed: dict[tuple[int, int, int], Story] = {}
    for story in stories:
        if story.naks and not story.runs():
            obeyed[story.connection.id, story.side, story.psn] = story
            for nak in story.naks if story.rule == LOSS else ():
                for place in story.places or ():
                    if place.psn == story.psn and nak.of_pass is not None:
                        by_copy[_copy_of(story, nak, place)] = story
    kept: list[Story] = []
    for story in stories if obeyed else ():
        of_nak, repeats = None, story.repeats
        if repeats and not story.naks and not story.rnrs:
            opener = repeats[0].opener
            late = obeyed.get((story.connection.id, story.side, opener.psn))
            if late is not None and (id(story) in refused or _is_obeyed_late(sightings, late, opener)):
                of_nak = late
            elif story.rule in (LOSS, TAIL_LOSS) and story.certain and story.places and opener.of_pass:
                of_nak = by_copy.get(_copy_of(story, opener, story.places[0]))
        if of_nak is None:
            kept.append(story)
        else:
            of_nak.go_backs = [*of_nak.go_backs, *story.go_backs]
            of_nak.add_transfers(story.transfers)
    return kept if obeyed else stories


def _is_obeyed_late(sightings: Sightings | None, story: Story, repeat: Event) -> bool:
    """Whether a repeat comes as soon behind a story's last NAK as a NAK is obeyed, where that passed last."""
    row = -1 if sightings is None else sightings.row_of(story.naks[-1].frame)
    if sightings is None or row < 0 or repeat.cause not in ("timeout", "implied_nak"):
        return False
    times = sightings.times_of(row)
    return len(times) > 1 and 0 <= repeat.time_ns - max(times.values()) <= OBEYED_NS


def _copy_of(story: Story, event: Event, place: LossPlace) -> _Copy:
    """The lost packet: whose it is, the pass that sent it, its PSN, and the captures that have it."""
    return story.connection.id, story.side, event.of_pass.number, place.psn, place.seen


def _corrupted(evidence: Evidence) -> frozenset[int]:
    """The frames with wrong ICRCs, where those tell of corruption."""
    if evidence.observer is None or evidence.icrc_ignored:
        return frozenset()
    return frozenset(packet.frame for packet in evidence.observer.bad if packet.icrc_wrong)


def _decide_nak(view: CaptureView, story: Story, *, lacked: bool) -> None:
    """Decide a story with NAKs: each names the packet that its responder missed.

    Args:
        lacked: all captures lack requests that were answered: what none has need not be lost.
    """
    last, places = view.points[-1], []
    out_of_order = open_ = False
    for copy in lost_copies(story):
        sent = view.last_sent(copy.psn, copy.since_ns, copy.until_ns)
        if sent is None and view.is_sent_at(copy.psn, copy.until_ns):
            open_ = True  # stamps that are the same do not tell which came first
            continue
        if sent is None and is_first_behind(story):
            open_ = True  # no capture has what drew the NAK
            continue
        if sent is None or last not in sent.times_ns:
            places.append(view.place(copy.psn, sent))
            continue
        found = view.order(copy.psn, sent, copy.since_ns)
        behind = not found and view.is_behind(sent, story.naks)
        if behind:  # the NAK missed an earlier copy, or this one came late
            sent = view.missed_copy(view.last_sent(copy.psn, 0, sent.time_ns), copy.psn, story.naks)
            found = "" if sent is None or last not in sent.times_ns else view.order(copy.psn, sent, 0)
        if (
            not found
            and not behind
            and sent is not None
            and view.is_early_in_file(copy.psn, sent, copy.since_ns)
        ):
            behind = True
        if not found and not behind:
            places.append(view.place(copy.psn, sent))
        if found and view.is_skipped(copy.psn, copy.until_ns, or_later=True):
            found, behind = "", True  # what came out of order was an earlier copy
        elif found and sent is not None and view.may_be_repeat(sent, story.naks):
            found, behind = "", True
        out_of_order, open_ = out_of_order or bool(found), open_ or behind
    if places:
        # The last of a place's captures is the one that has not the packet, but for those beyond the last.
        seen = [p for p in places if p.where != BEFORE or not lacked]
        story.places = [p for p in seen if p.where == BEYOND or p.files[-1] not in view.gappy]
        story.gappy = len(story.places) < len(places)
        # Where packets are overtaken, one that the capture missed may have been one of them. And behind the
        # last capture the packets leave open what one capture leaves open.
        # So does a capture that lacks others, or beside one that does: it may have missed what was overtaken.
        lacking = (set(view.points) if view.gappy else view.lacking) if view.overtakes else set()
        doubted = not story.certain and all(p.where == BEYOND or p.files[-1] in lacking for p in story.places)
        story.gappy = story.gappy or (doubted and any(p.where != BEYOND for p in story.places))
        story.certain = not doubted if story.places else story.certain and not view.overtakes
        story.rule = LOSS
    elif out_of_order:
        story.rule, story.certain, story.places = REORDERING, True, []
    elif open_:
        story.certain, story.or_overtaken, story.places = False, True, []


def _decide_silence(view: CaptureView, story: Story) -> None:
    """Decide a story without a NAK: the request was lost, or its response, or it came too late."""
    run = story.repeats[0]
    of_pass = run.opener.of_pass
    if of_pass is None:
        return
    since_ns = of_pass.began_ns
    transfer = story.transfer
    needless = story.rule == NEEDLESS
    if needless and transfer is not None and transfer.operation in OWN_RESPONSE:
        return
    if transfer is not None and transfer.is_read:
        _decide_read(view, story, run, since_ns)
        return
    last = view.points[-1]
    arrived = None
    own = transfer is not None and transfer.operation in OWN_RESPONSE
    # Any later ACK would have been enough; the response of an atomic is its own.
    last_psn = run.first_psn if own else min(of_pass.last, run.first_psn + _LATER)
    psns = range(run.first_psn, last_psn + 1)
    for psn in psns:
        sent = view.last_sent(psn, since_ns, run.time_ns)
        if sent is not None and last not in sent.times_ns:
            story.psn = psn
            _lose(view, story, run, sent)
            return
        if sent is not None:
            arrived = sent if arrived is None else arrived
    if arrived is None:
        return
    if needless:
        _find_lost_ack(view, story, run, arrived)
        return
    _decide_response(view, story, run, arrived, psns, IMPLIED_NAK if own else ACK_LOSS)


def _lose(view: CaptureView, story: Story, run: GoBack, sent: Transmission) -> None:
    """Decide that a request was lost, which the last point lacks, or that this point missed it."""
    story.rule, story.certain, story.places = _lost(run), True, [view.place(story.psn, sent)]
    if view.misses_repeat(story.psn, run.time_ns):
        story.certain, story.gappy, story.places = False, True, []


def _find_lost_ack(view: CaptureView, story: Story, run: GoBack, arrived: Transmission) -> None:
    """Whether a repeat sooner than its timeout was not needless: no ACK passed the first capture point.

    A timer that each packet does not start anew runs out sooner than its wait tells.
    """
    first, last = view.points[0], view.points[-1]
    answers: list[Transmission] = []
    for psn in range(run.first_psn, run.first_psn + _LATER):
        acks = view.sent(psn, request=False)
        answers += [
            t for t in acks if arrived.times_ns[last] <= t.times_ns.get(last, t.time_ns) < run.time_ns
        ]
    if answers and all(first not in t.frames for t in answers):
        story.rule, story.certain = ACK_LOSS, True
        story.places = [view.place(story.psn, answers[-1], request=False)]


def _lost(run: GoBack) -> str:
    """The rule of a lost request: only a timer needs silence to notice it."""
    return TAIL_LOSS if run.cause == "timeout" else LOSS


def _decide_response(
    view: CaptureView, story: Story, run: GoBack, arrived: Transmission, psns: Iterable[int], rule: str
) -> None:
    """Decide what happened to the response to a request that reached the last capture point."""
    first, last = view.points[0], view.points[-1]
    again = view.sent(run.first_psn, request=True)
    repeat_ns = min(
        (t.times_ns[last] for t in again if t.time_ns >= run.time_ns and last in t.times_ns),
        default=run.time_ns,
    )
    refusals = {  # a NAK acknowledges what is before its PSN
        e.frame for t in run.transfers for e in t.events if e.kind in _NAKS and e.psn == run.first_psn
    }
    of_psn = [
        (psn, t)
        for psn in psns
        for t in view.sent(psn, request=False)
        if arrived.times_ns[last] <= t.times_ns.get(last, t.time_ns) < repeat_ns
        and refusals.isdisjoint(t.frames.values())
        and (rule != IMPLIED_NAK or not view.is_acknowledge(t))
    ]
    answers = [t for _, t in of_psn]
    if answers and story.psn > run.opener.sent_psn:
        story.psn = run.first_psn  # not the next one of its message, which may not have been sent
    back_ns = [t.times_ns[first] for t in answers if first in t.times_ns]
    latest_ns = _latest_ns(run)
    in_time = [
        t
        for psn, t in of_psn
        if t.times_ns.get(first, run.time_ns) < latest_ns and view.is_taken(psn, t, run.time_ns)
    ]
    naks = {e.frame for t in run.transfers for e in t.events if e.kind == "nak"}
    told = any(
        not refusals.isdisjoint(t.frames.values())
        and arrived.time_ns < t.times_ns.get(first, run.time_ns) < latest_ns
        for t in view.sent(run.first_psn, request=False)
    )
    if told and all(not naks.isdisjoint(t.frames.values()) for t in in_time):
        # Why it went back to this PSN is no lost ACK: a NAK told it to, though one of a later PSN followed.
        view.refused = True
        story.rule, story.certain, story.places = NEEDLESS, False, []
    elif in_time and rule == IMPLIED_NAK and view.order(run.first_psn, in_time[-1], 0, request=False):
        story.rule, story.certain, story.of_response, story.places = REORDERING, True, True, []
    elif (
        in_time
        and rule == IMPLIED_NAK
        and (
            (thrown := view.may_be_thrown_away(run.first_psn, in_time[-1], run.time_ns))
            or all(view.is_behind_in_file(t, run.opener.frame) for t in in_time)
        )
    ):
        # A later one came first, and the requester may have missed this one then; or it still missed one
        # before it. Or its file has them behind the repeat: it may have taken them in that order.
        story.rule, story.certain, story.or_overtaken, story.places = IMPLIED_NAK, False, thrown, []
    elif (
        in_time
        and rule == ACK_LOSS
        and (
            sum(ns < run.time_ns for ns in back_ns) > _MOST_LOST
            or all(view.is_behind_in_file(t, run.opener.frame) for t in in_time)
        )
    ):
        # Not all of these were lost: it had them, and was not done with what came before. Or its file has
        # them behind the repeat: it may have taken them in that order.
        story.rule, story.certain, story.places = NEEDLESS, False, []
    elif in_time:
        place = view.place(story.psn, in_time[-1], request=False)
        story.rule, story.places = rule, [place]
        # Two points of one capture are as far from the requester as that is. And an ACK that came late in the
        # wait may have come too late to the requester, which may be slow.
        story.certain = place.where != BEYOND or (
            not view.sightings.one_clock
            and (rule != ACK_LOSS or any((run.time_ns - ns) * 4 >= run.waited_ns * 3 for ns in back_ns))
        )
    elif back_ns and rule == IMPLIED_NAK and min(back_ns) < run.time_ns:
        # Behind the requester's capture it was lost, or overtaken, or it came just too late.
        story.rule, story.certain, story.places = IMPLIED_NAK, False, []
    elif back_ns and min(back_ns) < run.time_ns:
        # It came just before: an earlier timer may be why. rxe's RNR timer runs on after a NAK is obeyed.
        story.rule, story.certain, story.places = NEEDLESS, False, []
    elif back_ns:
        # An answer to an earlier copy may have crossed the repeat: it came late, too, but before it.
        crossed = any(
            t.times_ns.get(first, run.time_ns) < run.time_ns and refusals.isdisjoint(t.frames.values())
            for psn in psns
            for t in view.sent(psn, request=False)
        )
        # Or an answer to an earlier copy was lost, and a later one showed the requester that it missed it.
        missed = rule == IMPLIED_NAK and view.is_answer_skipped(run.first_psn, run.time_ns)
        story.rule, story.certain, story.places = TIMEOUT_TOO_SHORT, not (crossed or missed), []
    elif answers:
        # One that was sent behind the repeat was lost, but is not why the requester went back.
        late = all(t.times_ns.get(last, t.time_ns) >= run.time_ns for t in answers)
        story.rule, story.certain, story.or_overtaken = rule, not late, late and rule == IMPLIED_NAK
        story.places = [] if late else [view.place(story.psn, answers[-1], request=False)]
    else:  # behind the last capture point: the request, its response, or a responder that is slow
        story.rule = LOSS if run.cause == NAK_MISSED else TAIL_LOSS
        story.certain, story.places = False, []


def _latest_ns(run: GoBack) -> int:
    """When a response must have come to stop a repeat: one that came just before it was too late."""
    return run.time_ns - (OBEYED_NS if run.cause == "timeout" else 0)


def _decide_read(view: CaptureView, story: Story, run: GoBack, since_ns: int) -> None:
    """Decide a READ that was requested again, from its first missing response on."""
    first, last = view.points[0], view.points[-1]
    psn, transfer = run.first_psn, story.transfer
    assert transfer is not None
    asked = [
        t
        for q in range(transfer.first_psn, psn + 1)
        for t in view.sent(q, request=True)
        if t.time_ns < run.time_ns
    ]
    request = max(asked, key=lambda t: t.time_ns, default=None)
    if request is None:
        return
    if last not in request.times_ns:
        story.psn = psn
        _lose(view, story, run, request)
        return
    copies = [t for t in view.sent(psn, request=False) if t.time_ns >= request.times_ns[last]]
    response = copies[0] if copies else None
    repeat_ns = min(
        (
            t.times_ns[last]
            for t in view.sent(psn, request=True)
            if t.time_ns >= run.time_ns and last in t.times_ns
        ),
        default=run.time_ns,
    )
    if response is None or response.time_ns >= repeat_ns:
        if run.cause == "timeout":  # behind the last capture point: the request, or all responses
            story.rule, story.certain, story.places = TAIL_LOSS, False, []
        else:
            story.rule, story.certain = IMPLIED_NAK, False
            # One that was sent for an earlier request, and arrived, may have been overtaken, as others were.
            came = view.overtakes_responses and any(
                first in t.times_ns and t.times_ns[first] < run.time_ns for t in view.sent(psn, request=False)
            )
            story.or_overtaken = story.or_overtaken or came
            story.places = [] if came else [view.place(psn, None, request=False)]
    elif first not in response.times_ns:
        story.rule, story.certain = IMPLIED_NAK, True
        story.places = [view.place(psn, response, request=False)]
    elif response.times_ns[first] >= run.time_ns:
        overtaken = view.order(psn, response, request.times_ns[last], request=False) == OVERTAKEN
        if run.cause == "timeout" or overtaken:
            story.rule = REORDERING if overtaken and run.cause != "timeout" else TIMEOUT_TOO_SHORT
            # A response to an earlier request that was lost, or thrown away, may be the cause as well.
            # So may one to a later request that came in time, and was thrown away behind a gap.
            others = [t for t in view.sent(psn, request=False) if t.time_ns != response.time_ns]
            story.certain = story.rule == REORDERING or all(
                t.times_ns.get(first, 0 if t.time_ns < response.time_ns else run.time_ns) >= run.time_ns
                for t in others
            )
            story.of_response, story.places = True, []
        else:  # it crossed the repeat, which another response caused
            story.certain, story.places = False, []
    elif order := view.order(psn, response, request.times_ns[last], request=False):
        # One that came before a lower one was thrown away: it is the lower one that came late.
        story.rule, story.certain, story.places = REORDERING, order == OVERTAKEN, []
        story.of_response = True
    else:  # behind the requester's capture it was lost, or overtaken, or it came just too late
        story.rule, story.certain = IMPLIED_NAK, False
        story.places = [view.place(psn, response, request=False)]
