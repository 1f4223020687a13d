"""Losses that no IPv4 identification proves, where others of the same way were overtaken.

An identification tells whether a packet that fills a gap was sent again, or is the first copy, late. Without
one (0, as many NICs send with DF; IPv6) the two look alike where a network lets packets overtake others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import LOSS, REORDERING
from rocekit.findings.stories.copies import misses_packets
from rocekit.track.passes import SELECTIVE
from rocekit.track.repeats import REORDERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story


_NEVER_NS: Final = 1 << 62
#: No queue keeps a packet for so long.
_KEPT_NS: Final = 60_000_000


def doubt_unidentified(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Leave open whether packets without identifications were lost, where others were overtaken."""
    _doubt_unproven(stories)
    _doubt_late(stories)
    _doubt_late_responses(evidence, stories)
    ways = Counter(way_of(s) for s in stories if s.rule == REORDERING and not s.of_response)
    often = {way for way, count in ways.items() if count >= REORDERS}
    unidentified = unidentified_ways(stories) if often else frozenset()
    for story in stories if often else ():
        if story.rule != LOSS or not story.certain or way_of(story) not in often & unidentified:
            continue
        # A receiver that takes packets out of order sends no NAK for one that is only late.
        if story.connection.recoveries[story.side] != SELECTIVE:
            story.certain = False


def _doubt_unproven(stories: Sequence[Story]) -> None:
    """Leave open losses that identifications did not prove, where others of the direction were overtaken."""
    for story in stories:
        # What several captures show needs no identification.
        if story.rule == LOSS and story.certain and not story.places:
            story.certain = not (is_unproven(story) or _came_once_more(story))


def _doubt_late(stories: Sequence[Story]) -> None:
    """Leave open whether a packet that filled a gap came late, where its requester goes back as soon.

    The capture may lack the NAK; and a go-back of which it has only that packet looks the same, where others
    were lost before the capture as well.
    """
    late = [s for s in stories if s.rule == REORDERING and s.certain and s.late and not s.naks]
    late = [s for s in late if not (s.of_response or s.places or any(event.ip_id for event in s.late))]
    soonest = dict.fromkeys(map(way_of, late), _NEVER_NS)
    for story in stories if late else ():
        way, hole = way_of(story), story.hole
        if hole is None or way not in soonest:
            continue
        for run in story.runs():
            if run.first_sight:
                soonest[way] = min(run.time_ns - hole.time_ns, soonest[way])
    for story in late:
        if story.hole is not None and story.late[0].time_ns - story.hole.time_ns >= soonest[way_of(story)]:
            story.certain = False


def _doubt_late_responses(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Leave open whether a response came late, where the capture lacks packets: it may lack a request, too.

    A READ that came again, unseen, has its responses again. No network keeps a packet for so long as a
    requester waits.
    """
    lacking: dict[tuple[int, int], bool] = {}
    for story in stories:
        if story.rule != REORDERING or not story.of_response or not story.certain or story.runs():
            continue
        if any(event.ip_id for event in story.late):
            continue
        way = way_of(story)
        if way not in lacking:
            lacking[way] = misses_packets(story.connection) or any(
                t.is_read and (t.responses_missing or not t.started)
                for t in evidence.transfers_of.get(way, ())
            )
        behind_ns = story.hole.time_ns if story.hole is not None else 0
        if lacking[way] or any(event.time_ns - behind_ns >= _KEPT_NS for event in story.late):
            story.certain, story.gappy = False, True


def fills_gap_openly(story: Story) -> bool:
    """Whether nothing tells whether the packet that filled a story's gap came late, or was sent again."""
    return bool(story.late) and not (story.certain or story.naks or story.of_response)


def is_unproven(story: Story) -> bool:
    """Whether the packet that filled a gap may be the first copy, late, as others were that came behind it.

    Its identification does not tell: mostly too few packets came before it to know that the sender counts
    them.
    """
    runs, connection, side = story.runs(), story.connection, story.side
    if not story.naks or not runs or connection.overtaken[side] < REORDERS:
        return False
    # A receiver that takes packets out of order sends no NAK for one that is only late.
    if connection.recoveries[side] == SELECTIVE:
        return False
    opener = runs[0].opener
    return opener.psn == story.psn and bool(opener.first_sight and opener.ip_id) and not opener.resent


def _came_once_more(story: Story) -> bool:
    """Whether what was first seen in the go-back came again, without identification, and for no NAK.

    It was acknowledged, or it came alone, where a requester that goes back sends all behind it as well.
    Either copy may be the first one, late; or the ACK was lost behind the capture.
    """
    runs, transfer = story.runs(), story.held_by()
    if not story.naks or not runs or transfer is None or story.connection.recoveries[story.side] == SELECTIVE:
        return False
    first = runs[0].opener
    if first.psn != story.psn or not first.first_sight or first.ip_id:
        return False
    if any(run.packets == 1 and run.first_psn == story.psn < run.opener.sent_psn for run in runs[1:]):
        return True
    return any(
        event.kind == "repeat"
        and event.after_ack
        and event.psn <= story.psn <= event.last_psn
        and event.time_ns > first.time_ns
        for event in transfer.events
    )


def is_doubted(story: Story) -> bool:
    """Whether a loss without identifications is only probable, and nothing else than this says why."""
    why = story.naks_lacking or story.early or story.or_overtaken or story.gappy
    return not story.certain and bool(story.naks) and not why


def unidentified_ways(stories: Sequence[Story]) -> frozenset[tuple[int, int]]:
    """The directions of connections in which no packet that was sent again has an identification."""
    found: dict[tuple[int, int], bool] = {}
    for story in stories:
        for run in story.runs():
            way = way_of(story)
            if found.get(way, True):
                found[way] = not any(event.ip_id for event in run.events)
    return frozenset(way for way, without in found.items() if without)


def way_of(story: Story) -> tuple[int, int]:
    """The connection of a story, and its requester's side."""
    return story.connection.id, story.side
