"""Puts the tracker's events together as stories.

The tracker leaves events on transfers: holes, NAKs, runs of repeats. Here the events of one direction of a
connection are joined, in order of time, where they have one cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import ACK_LOSS, LOSS, PEER_SILENT, RETRY_EXCEEDED, TAIL_LOSS, USED_AGAIN
from rocekit.findings.stories.begun import find_begun, leave_open_begun
from rocekit.findings.stories.builder import StoryBuilder, marks_of
from rocekit.findings.stories.causes import name_causes, name_open_causes
from rocekit.findings.stories.copies import acknowledged_psn
from rocekit.findings.stories.corruption import find_corruption
from rocekit.findings.stories.doubts import (
    doubt_gaps,
    doubt_missed_responses,
    doubt_short_waits,
    doubt_sparse,
    doubt_without_naks,
)
from rocekit.findings.stories.early_answers import without_early_answers
from rocekit.findings.stories.journal_losses import find_journal_losses
from rocekit.findings.stories.late_packets import doubt_beside_lateness, find_reordering, join_late_packets
from rocekit.findings.stories.late_rests import doubt_firsts, find_late_rests
from rocekit.findings.stories.naks_alone import doubt_naks_alone
from rocekit.findings.stories.overtaken import doubt_by_file, spread_answered
from rocekit.findings.stories.pauses import find_pauses
from rocekit.findings.stories.read_sizes import find_unlike_reads
from rocekit.findings.stories.stalls import share_stalls
from rocekit.findings.stories.story import Story
from rocekit.findings.stories.unidentified import doubt_unidentified
from rocekit.findings.stories.unseen_rnrs import (
    doubt_behind_refusals,
    doubt_behind_rnrs,
    doubt_unseen_rnrs,
)
from rocekit.findings.stories.used_again import leave_open_used_again
from rocekit.findings.stories.whole_timers import without_parts_of_timers

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

#: The rules of stories with which a connection ends.
_ENDS: Final = frozenset({RETRY_EXCEEDED, PEER_SILENT})


def build_stories(evidence: Evidence) -> list[Story]:
    """The stories of a capture, in order of time."""
    stories: list[Story] = []
    by_id = {c.id: c for c in evidence.connections}
    for (number, side), marks in marks_of(evidence).items():
        stories += StoryBuilder(by_id[number], side, marks).build()
    find_begun(evidence, stories)
    spread_answered(stories)
    find_late_rests(evidence, stories)
    find_unlike_reads(evidence, stories)
    still_open = name_causes(evidence, stories)
    name_open_causes(evidence, still_open, [story for story in stories if story.rule])
    stories = without_early_answers(stories)
    doubt_without_naks(stories)
    doubt_short_waits(evidence, stories)
    doubt_gaps(evidence, stories)
    doubt_missed_responses(evidence, stories)
    leave_open_begun(evidence, stories)
    doubt_by_file(evidence, stories)
    if evidence.sightings is not None:
        from rocekit.findings.stories.captures import decide_by_captures

        stories = decide_by_captures(evidence, stories)
    else:
        leave_open_used_again(evidence, stories)
    doubt_naks_alone(evidence, stories)
    stories = without_parts_of_timers(evidence, stories)
    stories = _join_with_end(stories)
    stories += find_journal_losses(evidence, stories)
    for story in stories:
        if story.rule == ACK_LOSS and story.places is None:
            story.psn = acknowledged_psn(story)
    stories = join_late_packets(evidence, sorted(stories, key=Story.first_ns))
    find_reordering(stories)
    doubt_firsts(stories)
    doubt_unidentified(evidence, stories)
    doubt_beside_lateness(stories)
    doubt_unseen_rnrs(stories)
    doubt_behind_rnrs(stories)
    doubt_behind_refusals(stories)
    doubt_sparse(evidence, stories)
    find_corruption(evidence, stories)
    find_pauses(evidence, stories)
    share_stalls([story for story in stories if story.rule != USED_AGAIN])
    return stories


def _join_with_end(stories: list[Story]) -> list[Story]:
    """The stories, with the end of a connection joined to the loss of the same PSN just before it."""
    if not any(story.rule in _ENDS for story in stories):
        return stories
    kept: dict[int, Story] = {}
    last: dict[tuple[int, int], Story] = {}
    for story in sorted(stories, key=Story.first_ns):
        key = story.connection.id, story.side
        before = last.get(key)
        last[key] = story
        if (
            before is not None
            and story.rule in _ENDS
            and before.rule in (LOSS, TAIL_LOSS)
            and before.psn == story.psn
        ):
            story.naks = [*before.naks, *story.naks]
            story.go_backs = [*before.go_backs, *story.go_backs]
            story.hole = before.hole or story.hole
            story.add_transfers(before.transfers)
            del kept[id(before)]
        kept[id(story)] = story
    return list(kept.values())
