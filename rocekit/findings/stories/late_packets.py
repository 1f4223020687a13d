"""Finds single packets that the network delivered late: an original that was taken for lost, or a copy.

A requester that goes back sends everything again from there on. A single old packet among new ones, already
acknowledged, was not sent again: the network delayed it. If its PSN was taken for lost, it was only late.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import (
    ACK_LOSS,
    DUPLICATE,
    IMPLIED_NAK,
    LOSS,
    REORDERING,
    TAIL_LOSS,
    TIMEOUT_TOO_SHORT,
)
from rocekit.findings.stories.copies import is_captured, was_overtaken
from rocekit.findings.stories.loss_place import BETWEEN
from rocekit.track.causes import NAK_MISSED
from rocekit.track.transfers import ACKED

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack, Story

#: No timer expires sooner after the last packet, if the timeout is unknown.
_SOON_NS: Final = 1_000_000
#: No timer expires before this share of the timeout, if it is known.
_EARLY: Final = 0.9
#: A packet that comes again so soon was duplicated by the network.
_AT_ONCE_NS: Final = 50_000
#: With so many late packets, a direction is known to reorder.
_MANY: Final = 3
#: A responder that takes packets out of order takes so many for each one that it sends a NAK for.
_FEW: Final = 4
#: A network hardly loses more than one response in so many.
_SELDOM: Final = 16
#: How many of the NAKs that follow are looked at.
_RECENT_WAITS: Final = 16
_NEVER_NS: Final = 1 << 62
#: How many of the latest stories are searched for the loss of a late packet.
_RECENT: Final = 1024
#: The identifications of packets that a host sent shortly after each other are so near (see ``recent``).
_NEAR_IDS: Final = 1024
_ID_MASK: Final = 0xFFFF
_AGAIN: Final = ("repeat", "late")
_LOSSES: Final = frozenset({LOSS, TAIL_LOSS})


def join_late_packets(evidence: Evidence, stories: list[Story]) -> list[Story]:
    """The stories; a late packet joins its loss (then ``reordering``), else it is a ``duplicate``."""
    kept: list[Story] = []
    for story in stories:
        if story.rule in _LOSSES and (_original_came(evidence, story) or _came_twice(evidence, story)):
            story.rule = REORDERING
        if not _is_late_packet(evidence, story):
            kept.append(story)
            continue
        loss = _loss_of(story, kept)
        if loss is None:
            story.rule = DUPLICATE
            kept.append(story)
            continue
        loss.rule = REORDERING
        for run in story.go_backs:
            run.be_late()
        loss.go_backs = [*loss.go_backs, *story.go_backs]
    return kept


def find_reordering(stories: list[Story]) -> None:
    """Change unproven losses to ``reordering`` in directions that the capture proves to reorder.

    A responder sends a NAK for a packet that comes too early although nothing is lost, and the requester then
    repeats packets that are still on their way. Not so where it took others out of order without a NAK.
    """
    if not _may_reorder(stories):
        return
    takes = _takes_disorder(stories)
    late: dict[_Way, int] = defaultdict(int)
    lost: dict[_Way, int] = {}
    for story in stories:
        if story.rule == REORDERING and (_is_late(story) or was_overtaken(story)):
            late[_way(story)] += 1
    _doubt_responses(stories, late)
    for story in stories:
        if _is_proven(story):
            way = _way(story)
            lost[way] = lost.get(way, 0) + 1
    for story in stories:
        unproven = (story.rule == ACK_LOSS and not story.certain) or (
            story.rule in _LOSSES and not _is_proven(story)
        )
        if _is_decided(story):
            continue
        if not unproven:
            if story.hole is not None and _may_be_missed(story) and late.get(_way(story), 0):
                story.certain, story.gappy = False, True
            continue
        if story.naks and _direction(story) in takes:
            story.certain, story.or_overtaken = False, True
            continue
        way = _way(story)
        count = late.get(way, 0)
        if count >= max(_MANY, lost.get(way, 0)):
            story.rule, story.certain = REORDERING, False
            story.places = None if story.places is None else []
        elif count and story.naks:
            story.certain = False


def _may_reorder(stories: list[Story]) -> bool:
    """Whether a packet came out of order, or a response may have: where none did, no loss is doubted."""
    for story in stories:  # noqa: SIM110 - a generator takes longer
        if story.rule in (REORDERING, IMPLIED_NAK) or story.of_response:
            return True
    return False


def _doubt_responses(stories: list[Story], late: dict[_Way, int]) -> None:
    """Leave open whether responses were lost or overtaken, where packets of these hosts are out of order.

    A requester that misses a response does not say which. If it requests so often that one response in a few
    would be lost, order is as likely a reason.
    """
    open_: dict[_Direction, list[Story]] = defaultdict(list)
    ordered: dict[_Direction, list[Story]] = defaultdict(list)
    free: dict[_Direction, int] = defaultdict(int)
    for story in stories:
        if story.rule == IMPLIED_NAK and not _is_decided(story) and _may_be_disorder(story):
            open_[story.connection.id, story.side, True].append(story)
        elif story.of_response:
            key = story.connection.id, story.side, True
            if story.runs():
                ordered[key].append(story)
            else:
                free[key] += 1
    for key, each in ordered.items():
        if free[key] >= max(_MANY, _FEW * (len(each) + len(open_[key]))):
            for story in each:  # overtaken here, and then lost behind the capture point
                story.rule, story.certain, story.of_response = IMPLIED_NAK, False, False
                open_[key].append(story)
    for key, each in open_.items():
        if not each:
            continue
        way = _way(each[0])
        packets = sum({id(t): t.packets for story in each for t in story.transfers}.values())
        often = len(each) >= _MANY and len(each) * _SELDOM > packets
        takes = free[key] >= _FEW * len(each)  # then what it requests again was lost, as a rule
        if takes or not (often or late[way] >= _MANY or late[way[::-1]] >= _MANY):
            continue
        for story in each:
            if often or (not story.certain and is_captured(story)):
                story.certain, story.or_overtaken = False, True


def _may_be_disorder(story: Story) -> bool:
    """Whether disorder may be why a response was asked for again: not where a timer ran out without one."""
    return story.runs()[0].cause == "implied_nak" or (not story.certain and is_captured(story))


def _takes_disorder(stories: list[Story]) -> set[_Direction]:
    """The directions of connections whose responder takes packets out of order, as the capture shows.

    A go-back-N responder sends a NAK for each gap, unless it waits for an earlier packet already.
    """
    taken: dict[_Direction, int] = defaultdict(int)
    refused: dict[_Direction, int] = defaultdict(int)
    waits_for: dict[_Direction, list[tuple[int, int]]] = defaultdict(list)
    for story in reversed(stories):
        if story.naks:
            key = _direction(story)
            repeats = story.runs()
            until_ns = repeats[0].time_ns if repeats else _NEVER_NS
            waits_for[key].append((story.psn, until_ns))
            refused[key] += 1
        elif story.rule == REORDERING and story.late and not story.runs() and _is_acked(story):
            key = _direction(story)
            if not _waits(story, waits_for.get(key)):
                taken[key] += 1
    return {key for key, count in taken.items() if count >= max(_MANY, _FEW * refused[key])}


def _is_acked(story: Story) -> bool:
    """Whether all its messages are acknowledged."""
    for transfer in story.transfers:  # noqa: SIM110 - asked for each late packet: a generator takes longer
        if transfer.status != ACKED:
            return False
    return True


def _waits(story: Story, waits_for: list[tuple[int, int]] | None) -> bool:
    """Whether the responder waited for an earlier packet when the story's came: until when, by PSN."""
    if waits_for is None:
        return False
    came_ns = story.first_ns()
    for psn, until_ns in waits_for[-_RECENT_WAITS:]:  # noqa: SIM110 - as above
        if psn < story.psn and came_ns < until_ns:
            return True
    return False


def _direction(story: Story) -> _Direction:
    return story.connection.id, story.side, story.of_response


def doubt_beside_lateness(stories: list[Story]) -> None:
    """Leave open what may have been late, where other responses were late.

    The first answer after a repeat may be to the packets before it.
    """
    late = {_way(story) for story in stories if story.rule == TIMEOUT_TOO_SHORT}
    for story in stories if late else ():
        if story.rule in (TAIL_LOSS, ACK_LOSS) and not _is_decided(story) and _way(story) in late:
            story.certain = False


_Way = tuple[str | None, str | None]
#: A connection, its requester's side, and whether its responses are meant.
_Direction = tuple[int, int, bool]


def _way(story: Story) -> _Way:
    ips, side = story.connection.ips, story.side ^ story.of_response
    return ips[side], ips[1 - side]


def _is_decided(story: Story) -> bool:
    """Whether several captures decide a story: between two of them, or that the packet was not lost.

    Before the first and behind the last of them they show no more than one capture does.
    """
    if not story.places:
        return story.places is not None
    for place in story.places:  # noqa: SIM110 - asked for each loss: a generator takes longer
        if place.where == BETWEEN:
            return True
    return False


def _is_proven(story: Story) -> bool:
    """Whether the capture has a hole that only a repeat filled."""
    if story.rule == LOSS and story.hole is not None:
        for run in story.go_backs:  # asked for each loss: a generator takes longer
            if run.first_sight:
                return True
    return False


def _may_be_missed(story: Story) -> bool:
    """Whether a packet that a NAK names may be in a hole, or come late, where the capture missed it."""
    return story.rule == LOSS and bool(story.naks) and len(story.connection.missed) > 0


def _is_late(story: Story) -> bool:
    """Whether the late packet itself is in the capture."""
    if story.late:
        return True
    return len(story.runs()) < len(story.go_backs)


def _is_single(evidence: Evidence, story: Story, run: GoBack) -> bool:
    """Whether a run is only the story's packet, sooner than a timer can send it again."""
    timeout_ns = evidence.timeout_ns(story.connection, story.side)
    soon = run.waited_ns < (_SOON_NS if timeout_ns is None else _EARLY * timeout_ns)
    unprovoked = run.cause in ("timeout", NAK_MISSED)
    return unprovoked and run.packets == 1 and run.first_psn == story.psn and soon


def _came_twice(evidence: Evidence, story: Story) -> bool:
    """Whether a packet that was first seen in the repeat came once more by itself: the original, late."""
    seen, later = None, False
    for run in story.go_backs:
        if run.first_sight:
            seen = run
            break
    if seen is None:
        return False
    since_ns = seen.time_ns
    for run in story.go_backs:
        later = later or (run.time_ns > since_ns and _is_single(evidence, story, run))
    if later:
        for run in story.go_backs:
            if run is not seen and _is_single(evidence, story, run):
                run.be_late()
        return True
    for transfer in story.transfers:  # asked for each loss: a generator takes longer
        for event in transfer.events:
            if event.kind != "duplicate" or event.psn != story.psn or event.time_ns <= since_ns:
                continue
            if event.copied:
                continue  # by its identification the network made it of the one that was sent again
            if event.time_ns - since_ns >= _AT_ONCE_NS:
                return True
            story.certain = False  # so soon it is a copy, or the original by chance
    return False


def _original_came(evidence: Evidence, story: Story) -> bool:
    """Whether what was first seen in the repeat came once more, and had been sent before: the original, late.

    A sender that counts the identifications of its packets gives the original the lower one.
    """
    transfer, runs = story.held_by(), story.runs()
    if transfer is None or not runs or not story.connection.overtaken[story.side] or _is_decided(story):
        return False
    if story.places and evidence.sightings is not None and not evidence.sightings.one_clock:
        return False  # the order among captures is estimated
    first = runs[0].opener
    if not first.first_sight or first.psn != story.psn or not first.ip_id:
        return False
    for event in transfer.events:  # asked for each loss: a generator takes longer
        if event.kind not in _AGAIN or event.psn != story.psn or event.time_ns <= first.time_ns:
            continue
        if event.ip_id and 0 < (first.ip_id - event.ip_id) & _ID_MASK < _NEAR_IDS:
            return True
    return False


def _is_late_packet(evidence: Evidence, story: Story) -> bool:
    """Whether a story is a single old packet."""
    if story.naks or story.rnrs or story.late or len(story.go_backs) != 1:
        return False
    run = story.go_backs[0]
    opener, transfer = run.opener, story.held_by()
    if run.packets != 1 or run.resent or transfer is None:
        return False
    if run.cause == "implied_nak":
        # After a lost response, a requester requests everything from there on again, or the rest of a READ.
        whole = run.first_psn == transfer.first_psn and not transfer.met("response_hole")
        newer = opener.sent_psn > transfer.last_psn
        return whole and opener.after_ack and (newer or run.waited_ns < _AT_ONCE_NS)
    timeout_ns = evidence.timeout_ns(story.connection, story.side)
    if run.waited_ns >= (_SOON_NS if timeout_ns is None else _EARLY * timeout_ns):
        return False
    # A requester that goes back sends on from there. A copy is a single packet among newer ones, or comes
    # just after its original.
    reach = transfer.last_psn if transfer.is_read else run.last_psn
    return (opener.after_ack and opener.sent_psn > reach) or run.waited_ns < _AT_ONCE_NS


def _loss_of(story: Story, before: list[Story]) -> Story | None:
    """The loss that a late packet explains: of the same PSN, first seen in its repeat."""
    for other in reversed(before[-_RECENT:]):
        if (
            other.connection is story.connection
            and other.side == story.side
            and other.rule in _LOSSES
            and other.psn == story.psn
            and (other.unseen is not None or any(g.first_sight for g in other.go_backs))
        ):
            return other
    return None
