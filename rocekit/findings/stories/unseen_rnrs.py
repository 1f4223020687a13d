"""NAKs behind an RNR NAK that the capture may not have.

A responder without a receive answers a SEND's first packet with an RNR NAK, and the last of a WRITE with
immediate data: these take a receive (IBA Vol. 1, 9.7.5.2.8). rdma_rxe answers the packets behind it with a
NAK "PSN sequence error" for the same PSN, though nothing was lost. Where the RNR NAK itself was lost before
the capture, or missed by it, that NAK looks like one of a lost packet. Where it came late, behind a repeat,
it looks like one of a packet that was overtaken: the ACK of that repeat comes before the NAK is obeyed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import ACK_LOSS, IMPLIED_NAK, LOSS, REORDERING, TAIL_LOSS
from rocekit.findings.stories.copies import misses_packets
from rocekit.findings.stories.loss_place import BEYOND
from rocekit.track.passes import BEHIND, OPEN
from rocekit.wire import rnr_wait_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.stories.story import Story
    from rocekit.track.transfers import Transfer

_Way = tuple[int, int]
#: rdma_rxe ends a wait after an RNR NAK up to so long behind it, whatever its timer says.
_LONGEST_RNR_NS: Final = 64_000_000
_OF_RESPONSES: Final = frozenset({ACK_LOSS, IMPLIED_NAK})


def doubt_unseen_rnrs(stories: Sequence[Story]) -> None:
    """A loss is only probable where an RNR NAK that the capture does not have may be the cause."""
    for story in unseen_rnrs(stories):
        story.certain = False
        if story.places:  # beyond the last of several captures
            story.places = []


def unseen_rnrs(stories: Sequence[Story]) -> list[Story]:
    """Losses of a packet that takes a receive, in a direction with such NAKs, of lost or missed responses.

    Which responses a capture misses, it does not show. So one whose NAK was not obeyed as soon as NAKs are is
    doubted as well: a requester waits after an RNR NAK.
    """
    refused: dict[_Way, int] = {}
    for story in stories:
        if story.rnrs and story.naks:
            waits = [rnr_wait_ns(rnr.syndrome or 0) for rnr in story.rnrs]
            refused[_way(story)] = min(refused.get(_way(story), _LONGEST_RNR_NS), *waits)
    if not refused:
        return []
    lacking = {
        _way(s)
        for s in stories
        if s.rule in _OF_RESPONSES or (s.rule == TAIL_LOSS and not s.certain) or misses_packets(s.connection)
    }
    return [
        s
        for s in stories
        if _way(s) in refused
        and _may_be_refused(s)
        and (_way(s) in lacking or not _is_obeyed(s, refused[_way(s)]))
    ]


def _is_obeyed(story: Story, wait_ns: int) -> bool:
    """Whether its requester obeyed its NAK, sooner than it obeys an RNR NAK."""
    runs = story.runs()
    return bool(runs) and runs[0].cause == "nak" and runs[0].time_ns - story.naks[-1].time_ns < wait_ns


def doubt_behind_rnrs(stories: Sequence[Story]) -> None:
    """A silence is only probably one of a loss where an RNR NAK of the same message may have ended it.

    rdma_rxe goes back to the message's first packet, or to the one that was refused, and long after the time
    that the RNR NAK names; so the go-back seems to be of its own, and of a timer.
    """
    refused: dict[_Way, list[tuple[int, int, int]]] = {}
    for story in stories:
        for rnr in story.rnrs:
            soonest_ns = rnr.time_ns + rnr_wait_ns(rnr.syndrome or 0)
            refused.setdefault(_way(story), []).append((rnr.psn, soonest_ns, rnr.time_ns + _LONGEST_RNR_NS))
    for story in stories if refused else ():
        runs, transfer = story.runs(), story.held_by()
        if story.rule != TAIL_LOSS or story.naks or story.rnrs or not runs or transfer is None:
            continue
        first, at_ns = runs[0].first_psn, runs[0].time_ns
        if any(
            first <= psn <= transfer.last_psn and soonest_ns <= at_ns <= latest_ns
            for psn, soonest_ns, latest_ns in refused.get(_way(story), ())
        ):
            story.certain = False


def doubt_behind_refusals(stories: Sequence[Story]) -> None:
    """A packet was only probably overtaken where an RNR NAK for it came before the NAK."""
    for story in behind_refusals(stories):
        story.certain = False


def behind_refusals(stories: Sequence[Story]) -> list[Story]:
    """Packets that NAKs show to be overtaken, of which an RNR NAK came before those NAKs."""
    refused: dict[tuple[_Way, int], int] = {}
    for story in stories:
        for rnr in story.rnrs:
            key = _way(story), rnr.psn
            refused[key] = min(refused.get(key, rnr.time_ns), rnr.time_ns)
    if not refused:
        return []
    found = []
    for story in stories:
        if story.rule != REORDERING or story.late or not (story.naks or story.runs()):
            continue
        # Without one of its own, the NAK that it obeys is another story's.
        since_ns = story.naks[0].time_ns if story.naks else story.first_ns()
        if refused.get((_way(story), story.psn), since_ns) < since_ns:
            found.append(story)
    return found


def _may_be_refused(story: Story) -> bool:
    transfer = story.held_by()
    if story.rule != LOSS or not story.naks or story.hole is not None:
        return False
    if any(place.where != BEYOND for place in story.places or ()):
        return False
    if transfer is None or not _takes_receive(transfer, story.psn):
        return False
    return all(nak.copy in (BEHIND, OPEN) for nak in story.naks)


def _takes_receive(transfer: Transfer, psn: int) -> bool:
    if transfer.operation == "SEND":
        return psn == transfer.first_psn
    return transfer.operation == "WRITE" and transfer.with_immediate and psn == transfer.last_psn


def _way(story: Story) -> _Way:
    return story.connection.id, story.side
