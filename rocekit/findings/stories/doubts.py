"""What a capture leaves open that lacks packets.

* A requester that goes back sooner than any timer obeys a NAK. Where the capture has none, it lacks NAKs of
  that direction: a silence there may have been one too, and what looks like a lost packet may have been
  overtaken.
* A capture that lacks more than one packet in a hundred, though they were acknowledged, lacks others too: a
  PSN that it has not was not lost before it for that. Nor where it lacks few, and no NAK names the PSN, and
  there are not many times as many such PSNs.

A flood has thousands of stories and go-backs, so the loops over them are compiled.
"""

from __future__ import annotations

from collections import Counter
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
from rocekit.findings.stories.copies import (
    is_acknowledged_before,
    is_against_file,
    is_answered,
    is_first_behind,
    is_open,
    is_second,
    misses_packets,
)
from rocekit.findings.stories.naks_alone import is_not_obeyed
from rocekit.track.causes import NAK_MISSED
from rocekit.track.short_timers import short_timer_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack, Story
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

_NAKS_LACKING: Final = (
    " “Probably” means: this requester also went back sooner than any timer, so the capture lacks NAKs, and "
    "one of them may be the cause here."
)
_GAPS: Final = (
    " The capture lacks packets that were acknowledged: what it does not have need not be lost. Capture "
    "again without gaps to know more."
)
_BEGUN: Final = (
    " “Probably” means: the packets were sent before the capture began, so it does not show what became of "
    "them; a packet that was only overtaken draws the same NAK."
)
_EARLY: Final = (
    " “Probably” means: the wait is much shorter than the negotiated timeout. Open: a NAK that is not in the "
    "capture, or a timer shorter than negotiated (adaptive retransmission)."
)
_OPEN: Final = (
    " “Probably” means: the NAK came sooner after the last copy of the packet than any answer to a request "
    "that was sent once, so an earlier copy that came late may have drawn it."
)
_ANSWERED: Final = (
    " “Probably” means: the responder of this direction answered a duplicate: an ACK named just a packet "
    "that had been sent again, in mid message, or an answer came once more. So the packets may only have "
    "come late."
)
_SECOND: Final = (
    " “Probably” means: the packet was sent right behind the one with which the requester went back. If that "
    "one came late, the responder dropped what came before it, and sent the same NAK."
)
_BEHIND_ACK: Final = (
    " “Probably” means: the NAK came behind an ACK of its packet, as where responses overtake each other; "
    "the packet may only have come late."
)
_BY_FILE: Final = (
    " “Probably” means: the file has the packet behind its repeat, though its time is earlier. The host may "
    "have taken it that late: another processor had it in its queue."
)
_AGAINST_FILE: Final = (
    " “Probably” means: by its time the NAK came behind the go-back, and the file has it before. So it is "
    "open which packets it answers."
)
_FIRST_BEHIND: Final = (
    " “Probably” means: the capture has neither that packet nor one behind it before the NAK, so it lacks "
    "what drew the NAK. If the packet comes behind the NAK, it was sent again, or it is the first copy, late."
)
#: A wait between these shares of the timeout is an exact timer, and no stall of the sender by chance.
ON_TIME: Final = (0.98, 1.05)
#: A sender does not stall for so long by itself; the usual timeouts (code 14 and up) are longer.
_STALL_NS: Final = 60_000_000
#: Nor one that was hardly so many times faster from packet to packet of that message.
_SLOW: Final = 32
#: A sender with so many outstanding PSNs probably waits for its window, not for a lost packet.
WINDOW: Final = 64
#: A wait so many times shorter than the timeout is no timer's that merely started before.
_SHORT: Final = 8
_OVERTAKEN: Final = (
    " “Probably” means: the receiver took other packets out of order without a NAK, so this one was lost, or "
    "it came later than the receiver waits."
)
_NOT_OBEYED: Final = (
    " “Probably” means: no repeat in the capture obeys the NAK. So that packet may have come late, behind "
    "the NAK; or the capture lacks the repeat, or an ACK that made the NAK an old one."
)
#: A capture that lacks more than this share of the packets does not show by a gap where a packet was lost.
GAPPY: Final = 0.01
#: Losses that only a gap shows must be so many times what the capture misses.
_FEW: Final = 8
#: A capture that lacks more than this share, and so many packets, tells of none why it came again. So many in
#: a row are no sign of it.
SPARSE: Final = 0.05
_OFTEN, _STRETCH = 8, 16
_SPARSE_DOUBTED: Final = frozenset(
    {ACK_LOSS, IMPLIED_NAK, LOSS, NEEDLESS, REORDERING, TAIL_LOSS, TIMEOUT_TOO_SHORT}
)
_DOUBTED: Final = frozenset({NEEDLESS, TAIL_LOSS, TIMEOUT_TOO_SHORT})


def doubt_without_naks(stories: Sequence[Story]) -> None:
    """Where NAKs are not in the capture, what follows from silence is only probable."""
    lacking = set()
    for story in stories:
        for run in story.go_backs:
            if run.cause == NAK_MISSED:
                lacking.add((story.connection.id, story.side))
    for story in stories if lacking else ():
        if story.rule in _DOUBTED and (story.connection.id, story.side) in lacking:
            story.certain = story.certain and _shows_new_packets(story.runs())
            story.naks_lacking = not story.certain


def doubt_short_waits(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Where a wait is much shorter than the timeout, the capture may lack a NAK, or the timer is shorter."""
    for story in stories:
        if story.rule != TAIL_LOSS:
            continue
        repeats = story.runs()
        if not repeats or _shows_new_packets(repeats):
            continue
        timeout_ns = evidence.timeout_ns(story.connection, story.side)
        first = repeats[0]
        waited_ns = first.opener.waited_ns
        if timeout_ns is None or waited_ns * _SHORT >= timeout_ns:
            continue
        if short_timer_ns(story.connection, story.side) is None:
            story.certain, story.early = False, True


def stalled_ways(evidence: Evidence, stories: list[Story]) -> Counter[tuple[int, int]]:
    """By connection and side: how many more repeats in mid message came before their timer than with it.

    A sender that stalls so often stalls for as long as its timer by chance, too.
    """
    found: Counter[tuple[int, int]] = Counter()
    for story in stories:
        run = story.go_backs[0]
        timeout_ns = evidence.timeout_ns(story.connection, story.side)
        if timeout_ns is not None and run.opener.mid_message and run.waited_ns < ON_TIME[1] * timeout_ns:
            early = run.waited_ns < ON_TIME[0] * timeout_ns
            found[story.connection.id, story.side] += 1 if early else -1
    return found


def may_be_stall(evidence: Evidence, story: Story) -> bool:
    """Whether a repeat in the middle of a message may come from a stalled sender, with nothing lost."""
    waited, timer_ns = story.go_backs[0].waited_ns, evidence.timeout_ns(story.connection, story.side)
    on_time = timer_ns is not None and ON_TIME[0] * timer_ns <= waited <= ON_TIME[1] * timer_ns
    return not on_time and (waited < _STALL_NS or _is_slow(story))


def _is_slow(story: Story) -> bool:
    """Whether the sender took long for the packets of a message before a wait, too: it stalls."""
    run = story.go_backs[0]
    sent = run.opener.sent_psn
    for transfer in run.transfers:
        gaps = sent - transfer.first_psn
        if gaps > 0 and sent <= transfer.last_psn:
            took_ns = run.time_ns - run.waited_ns - transfer.first_ns
            return took_ns * _SLOW > run.waited_ns * gaps
    return False


def begins_in_part(run: GoBack) -> bool:
    """Whether a repeat begins in mid message, as where the capture lacks the packets with which it began."""
    return any(t.first_psn < run.first_psn <= t.last_psn for t in run.transfers)


def may_be_full(story: Story) -> bool:
    """Whether its requester may have waited in mid message for its window: ACKs may not have reached it."""
    run = story.go_backs[0]
    sent, of_pass = run.opener.sent_psn, run.opener.of_pass
    in_pass = 0 if of_pass is None else sent - of_pass.first
    return WINDOW <= in_pass < 4 * WINDOW or WINDOW <= sent - run.first_psn + 1 < 4 * WINDOW


def doubt_gaps(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Where the capture lacks packets that were acknowledged, a PSN that it lacks need not be lost."""
    lacks: dict[int, bool] = {}
    headless: dict[tuple[int, int], bool] = {}
    absent = _absent(stories)
    before: Connection | None = None
    lacking = False
    for story in stories:
        if story.connection is not before:
            before = story.connection
            found = lacks.get(before.id)
            if found is None:
                found = lacks[before.id] = is_gappy(before)
            lacking = found
        story.gappy = lacking
        if story.naks:
            if story.rule == REORDERING and not story.late and not story.runs():
                # It arrived, and the capture has no copy: it may miss a whole go-back, and no PSN with it.
                story.certain = False
            elif story.rule == LOSS and is_first_behind(story):
                story.certain, story.or_overtaken = False, True
            elif story.rule == LOSS and story.hole is not None:
                way = before.id, story.side
                if way not in headless:
                    headless[way] = lacks_requests(evidence.transfers_of.get(way, ()))
                story.gappy = story.gappy or headless[way]
            continue
        if story.rule == LOSS and not lacking:
            story.gappy = _missed(before) * _FEW >= absent.get(before.id, 0) > 0
        late = story.of_response and story.rule == REORDERING and len(story.runs()) > 0
        if story.gappy and (late or story.rule == LOSS or story.rule in _DOUBTED):
            story.certain = False


def is_host_heard(evidence: Evidence, story: Story) -> bool:
    """Whether the capture has any packet from the responder's host to the requester's."""
    src, dst = story.connection.ips[story.side], story.connection.ips[1 - story.side]
    heard = {} if evidence.observer is None else evidence.observer.heard
    return src is not None and dst is not None and (dst, src) in heard


def lacks_requests(transfers: Sequence[Transfer]) -> bool:
    """Whether a capture has responses of READs of which it lacks the request, with packets before them."""
    for transfer in transfers[1:]:  # noqa: SIM110 - compiled, and a generator would not be
        if transfer.is_read and not transfer.started:
            return True
    return False


def doubt_missed_responses(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Where the capture lacks responses that nobody asked for again, one that it lacks need not be lost."""
    absent = Counter([s.connection.id for s in stories if s.rule == IMPLIED_NAK and s.certain])
    missed: dict[int, int] = {}
    for story in stories if absent else ():
        number = story.connection.id
        if story.rule != IMPLIED_NAK or not story.certain:
            continue
        if number not in missed:
            found = [t for side in (0, 1) for t in evidence.transfers_of.get((number, side), ())]
            came = sum([len(t.responses_missing) for t in found if t.acked_ns is not None])
            missed[number] = max(came, _missed(story.connection))
        if missed[number] * _FEW >= absent[number]:
            story.certain, story.gappy = False, True


def doubt_sparse(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Where a capture lacks one packet in twenty here and there, leave open why packets were sent again.

    Of copies and answers that it does not have, too many may be those that would tell. A mirror that lacks
    those of one connection lacks those of others, too.
    """
    sparse: dict[int, bool] = {}
    packets = scattered = 0
    for connection in evidence.connections if stories else ():
        missed = _scattered(connection)
        sparse[connection.id] = _are_many(missed, connection.packets)
        packets += connection.packets
        scattered += missed
    everywhere = _are_many(scattered, packets) or _in_none(evidence) > SPARSE
    for story in stories:
        if story.rule in _SPARSE_DOUBTED and (everywhere or sparse.get(story.connection.id)):
            story.certain, story.gappy = False, True
            if story.places:
                story.places = []


def _in_none(evidence: Evidence) -> float:
    """The share of packets that none of several captures has, by what each misses of the others'."""
    if evidence.paths is None or not evidence.paths.missed_shares:
        return 0.0
    share = 1.0
    for missed in evidence.paths.missed_shares.values():
        share *= missed
    return share


def _scattered(connection: Connection) -> int:
    """How many acknowledged packets a capture lacks of a connection, without long stretches of them."""
    alone = leaps = 0
    for event in connection.missed:
        if event.count < _STRETCH:
            alone += event.count
        else:
            leaps += event.count
    return max(alone, connection.missed_copies - leaps)


def _are_many(missed: int, packets: int) -> bool:
    return missed >= _OFTEN and missed > SPARSE * (packets + missed)


def _absent(stories: Sequence[Story]) -> dict[int, int]:
    """By connection that the capture misses packets of, how many losses only a gap shows, without a NAK."""
    found: dict[int, int] = {}
    for story in stories:
        if story.rule == LOSS and not story.naks and misses_packets(story.connection):
            found[story.connection.id] = found.get(story.connection.id, 0) + 1
    return found


def _missed(connection: Connection) -> int:
    """How many acknowledged packets of a connection the capture does not have."""
    return max(connection.missed_copies, sum([event.count for event in connection.missed]))


def is_gappy(connection: Connection) -> bool:
    """Whether a capture lacks so many packets that were acknowledged that it may lack any answer."""
    return _missed(connection) > GAPPY * connection.packets


def _shows_new_packets(runs: list[GoBack]) -> bool:
    """Whether a run starts with a packet that the capture had not shown before."""
    for run in runs:  # noqa: SIM110 - compiled, and a generator would not be
        if run.opener.first_sight:
            return True
    return False


def probably(guessed: int, count: int) -> str:
    """How many of several are only probable: `` (3 of them probably)``; empty if none is."""
    if not guessed:
        return ""
    return f" ({'all' if guessed == count else f'{guessed:,}'} of them probably)"


def doubt_words(stories: Sequence[Story]) -> str:
    """What the capture lacks, for the advice of a finding; empty if it is nothing."""
    naks_lacking = early = overtaken = unknown = gappy = behind_ack = begun = answered = second = False
    by_file = against_file = first_behind = not_obeyed = False
    for story in stories:
        naks_lacking = naks_lacking or story.naks_lacking
        early = early or story.early
        gappy = gappy or (story.gappy and not story.begun)
        begun = begun or story.begun
        if story.or_overtaken and story.by_file:
            by_file = True
        elif story.or_overtaken and not (overtaken and unknown and behind_ack and answered and second):
            if is_against_file(story):
                against_file = True
            elif is_first_behind(story):
                first_behind = True
            elif is_open(story):
                unknown = True
            elif is_acknowledged_before(story):
                behind_ack = True
            elif is_answered(story):
                answered = True
            elif is_second(story):
                second = True
            elif is_not_obeyed(story):
                not_obeyed = True
            else:
                overtaken = True
    words = _NAKS_LACKING if naks_lacking else ""
    words += _EARLY if early else ""
    words += _OVERTAKEN if overtaken else ""
    words += _OPEN if unknown else ""
    words += _BEHIND_ACK if behind_ack else ""
    words += _ANSWERED if answered else ""
    words += _SECOND if second else ""
    words += _NOT_OBEYED if not_obeyed else ""
    words += _BEGUN if begun else ""
    words += _BY_FILE if by_file else ""
    words += _AGAINST_FILE if against_file else ""
    words += _FIRST_BEHIND if first_behind else ""
    return words + (_GAPS if gappy else "")
