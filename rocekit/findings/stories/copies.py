"""The copies of packets that a story lost, and on which side of the capture point each was lost.

Of a PSN that was sent several times, the copy of the pass that ended with the NAK or the silence counts (see
``track.passes``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.files.frame_names import FRAME_MASK
from rocekit.findings.stories import ACK_LOSS, IMPLIED_NAK, TAIL_LOSS
from rocekit.findings.stories.loss_place import LostCopy
from rocekit.track.causes import NAK_MISSED
from rocekit.track.passes import (
    ANSWERED,
    BEFORE,
    BEHIND,
    MISSED,
    NOT_LOST,
    OPEN,
    OVERTAKEN,
    SECOND,
    SELECTIVE,
    THROWN_AWAY,
    UNKNOWN,
)

if TYPE_CHECKING:
    from rocekit.findings.stories.story import GoBack, Story
    from rocekit.track.connections import Connection
    from rocekit.track.passes import Pass

#: The rules by which a response was lost.
RESPONSE_LOSSES = frozenset({ACK_LOSS, IMPLIED_NAK})


def lost_copies(story: Story) -> list[LostCopy]:
    """The packets that a story lost: requests, or responses by its rule."""
    if story.copies is None:
        story.copies = _responses(story) if story.rule in RESPONSE_LOSSES else _requests(story)
    return story.copies


def was_overtaken(story: Story) -> bool:
    """Whether the NAKs themselves show that packets arrived out of order, and none was lost."""
    found = False
    for nak in story.naks:
        if nak.copy in (BEFORE, BEHIND, OPEN, UNKNOWN):
            return False
        found = found or nak.copy in (OVERTAKEN, THROWN_AWAY)
    return found and not is_against_file(story)


def is_against_file(story: Story) -> bool:
    """Whether a NAK stands in the file before the go-back behind which its time puts it.

    Then it may be of the pass before, and what followed in the pass that it seems to be of says nothing.
    """
    for run in story.go_backs:
        for nak in story.naks:
            if (
                nak.time_ns >= run.time_ns
                and nak.frame < run.frame
                and nak.frame & ~FRAME_MASK == run.frame & ~FRAME_MASK
            ):
                return True
    return False


def refused_too_soon(story: Story) -> bool:
    """Whether each NAK came before the copy that it misses can have arrived, so that nothing was lost."""
    for nak in story.naks:
        if nak.copy != NOT_LOST:
            return False
    return bool(story.naks)


def is_open(story: Story) -> bool:
    """Whether a late packet, sent before the requester went back, may have drawn each NAK."""
    for nak in story.naks:
        if nak.copy != OPEN:
            return False
    return bool(story.naks)


def is_acknowledged_before(story: Story) -> bool:
    """Whether each NAK came behind an ACK of its packet: it was overtaken, and what it missed had come.

    What it missed may have been lost, and have come again since; or it came late.
    """
    transfer = story.held_by()
    if transfer is None or transfer.acked_ns is None:
        return False
    for nak in story.naks:
        if not transfer.first_psn <= nak.psn <= transfer.last_psn or nak.time_ns <= transfer.acked_ns:
            return False
    return bool(story.naks)


def arrived(story: Story) -> bool:
    """Whether the packet that the story's NAKs name had arrived before its requester went back for them."""
    first = story.go_backs[0] if story.go_backs else None
    if first is None:
        return False
    if first.cause == NAK_MISSED and first.time_ns < story.naks[0].time_ns:
        # It filled the hole before the NAK, and nothing made the requester send it again.
        return first.opener.after_ack or first.first_sight == first.packets
    return first.opener.after_ack and not _came_between(story, first)


def _came_between(story: Story, run: GoBack) -> bool:
    """Whether the story's packet was sent again between its NAK and a run, so that this copy may be the one
    that arrived.
    """
    transfer = story.held_by()
    if transfer is None:
        return False
    psn, since_ns = story.psn, story.naks[0].time_ns
    for event in transfer.events:  # asked for each NAK: a generator takes longer
        if (
            event.kind == "repeat"
            and event.psn <= psn <= event.last_psn
            and since_ns < event.time_ns < run.time_ns
        ):
            return True
    return False


def may_be_late(story: Story) -> bool:
    """Whether the NAKs leave open if their packet was lost, or only came late."""
    if story.go_backs and story.go_backs[0].opener.after_ack:
        return True  # it had arrived, but perhaps only as a copy that was sent since the NAK
    return (
        is_against_file(story)
        or is_open(story)
        or is_acknowledged_before(story)
        or is_answered(story)
        or is_second(story)
    )


def is_answered(story: Story) -> bool:
    """Whether an ACK that named just this packet, or one of its direction, leaves open if it came late."""
    for nak in story.naks:  # noqa: SIM110 - asked for each loss: a generator takes longer
        if nak.copy in (ANSWERED, MISSED):
            return True
    return False


def is_second(story: Story) -> bool:
    """Whether the packet may have come before the one ahead of it, with which the requester went back."""
    for nak in story.naks:  # noqa: SIM110 - asked for each loss: a generator takes longer
        if nak.copy == SECOND:
            return True
    return False


def is_first_behind(story: Story) -> bool:
    """Whether the capture has neither the packet that the NAKs name nor one behind it before the NAKs.

    So it lacks what drew them. What it has behind them was sent again, or it is the first copy, late.
    """
    if story.hole is not None or story.go_backs or story.late:
        return False
    for nak in story.naks:
        if nak.copy or nak.of_pass is not None:
            return False
    return bool(story.naks)


def _requests(story: Story) -> list[LostCopy]:
    found: dict[int, LostCopy] = {}
    for nak in story.naks:
        of_pass: Pass | None = nak.of_pass
        where = BEHIND if nak.copy in (ANSWERED, SECOND) else nak.copy
        if of_pass is not None and where in (BEFORE, BEHIND) and of_pass.number not in found:
            found[of_pass.number] = _copy(story, where, of_pass, nak.time_ns)
    if found:
        return list(found.values())
    if story.unseen is not None:
        return [LostCopy(story.psn, BEFORE, 0, story.unseen.time_ns)]
    run = _first_repeat(story)
    if run is None or run.opener.of_pass is None:
        return [LostCopy(story.psn, UNKNOWN, 0, story.first_ns())]
    return [_copy(story, _side_of(story, run), run.opener.of_pass, run.time_ns)]


def _copy(story: Story, where: str, of_pass: Pass, until_ns: int) -> LostCopy:
    """The copy of the story's PSN that was sent in a pass."""
    psn, packets = story.psn, 1
    if where == BEFORE and (story.gappy or is_mixed(of_pass) or _is_missed(story, of_pass)):
        where = UNKNOWN
    # A READ's one request takes the PSNs of all its responses. Behind a lost packet, a capture that misses
    # others does not show which were lost too.
    if where == BEFORE and not _is_of_read(story) and not misses_packets(story.connection):
        packets = 0
        for first, last in of_pass.gaps:
            if last >= psn:
                packets += last - max(first, psn) + 1
        packets = max(1, packets)
    if 0 < of_pass.ended_ns < until_ns:
        until_ns = of_pass.ended_ns + 1
    return LostCopy(psn, where, of_pass.began_ns, until_ns, packets)


def misses_packets(connection: Connection) -> bool:
    """Whether packets of a connection were acknowledged that the capture does not have."""
    return connection.missed_copies > 0 or len(connection.missed) > 0


def _is_missed(story: Story, of_pass: Pass) -> bool:
    """Whether a pass lacks what is right before a PSN too, which the NAK for it acknowledges.

    So the capture missed those, and the PSN itself perhaps with them.
    """
    if not story.naks or story.connection.recoveries[story.side] == SELECTIVE:
        return False
    for first, last in of_pass.gaps:  # noqa: SIM110 - asked for each loss: a generator takes longer
        if first < story.psn <= last:
            return True
    return False


def is_mixed(of_pass: Pass) -> bool:
    """Whether times ran back in a pass: packets of two stand in turns, and what one lacks the other has."""
    return 0 < of_pass.ended_ns < of_pass.began_ns


def _is_of_read(story: Story) -> bool:
    for transfer in story.transfers:  # noqa: SIM110 - asked for each loss: a generator takes longer
        if transfer.operation == "READ":
            return True
    return False


def _side_of(story: Story, run: GoBack) -> str:
    """The side of the loss that a silence or the repeat of a skipped PSN shows."""
    of_pass = run.opener.of_pass
    assert of_pass is not None
    if story.psn < of_pass.first or (story.rule == TAIL_LOSS and not story.certain):
        return UNKNOWN
    if of_pass.lacks(story.psn) or story.psn > of_pass.last:
        return BEFORE
    return BEHIND


def _first_repeat(story: Story) -> GoBack | None:
    """The first repeat of the story's PSN, else its first repeat."""
    repeats = story.runs()
    for run in repeats:
        if run.first_psn <= story.psn <= run.last_psn:
            return run
    return repeats[0] if repeats else None


def is_captured(story: Story) -> bool:
    """Whether the capture has the response that made no difference to the requester."""
    run = story.runs()[0]
    return run.opener.after_ack or run.opener.response_seen == 1


def is_read_again(story: Story) -> bool:
    """Whether a READ's response to the PSN came behind its last repeat, though the capture lacks others."""
    transfer = story.held_by()
    if transfer is None or not transfer.is_read:
        return False
    psn, since_ns = story.psn, story.runs()[-1].last_event.last_ns
    return any(
        event.kind == "response_repeat" and event.psn <= psn <= event.last_psn and event.time_ns >= since_ns
        for event in transfer.events
    )


def acknowledged_psn(story: Story) -> int:
    """The PSN of a lost ACK: the last one of the message that was sent."""
    transfer = story.transfer
    return story.psn if transfer is None else min(transfer.last_psn, story.go_backs[0].opener.sent_psn)


def message_goes_on(story: Story, sent: int) -> bool:
    """Whether the message of which ``sent`` was the last PSN before the silence has more packets."""
    return any(t.first_psn <= sent < t.last_psn and not t.is_read for t in story.transfers)


def _responses(story: Story) -> list[LostCopy]:
    run = next(iter(story.runs()), None)
    if run is None:
        return [LostCopy(story.psn, UNKNOWN, 0, story.first_ns())]
    of_pass = run.opener.of_pass
    since_ns = 0 if of_pass is None else of_pass.began_ns
    return [LostCopy(story.psn, _side_of_response(story, run), since_ns, run.time_ns)]


def _side_of_response(story: Story, run: GoBack) -> str:
    if not story.certain:
        return UNKNOWN
    seen = run.opener.response_seen
    transfer = story.transfer
    if story.rule == ACK_LOSS or transfer is None or not transfer.is_read:
        if run.after_ack:
            return BEHIND
        return BEFORE if story.rule == ACK_LOSS and story.certain else UNKNOWN
    if seen == 1:
        return BEHIND
    p = run.first_psn
    skipped = any(
        e.time_ns < run.time_ns
        and (
            (e.kind == "response_hole" and e.psn <= p <= e.last_psn)
            or (e.kind == "response_repeat" and e.psn > p)
        )
        for e in transfer.events
    )
    return BEFORE if seen == 0 and skipped else UNKNOWN
