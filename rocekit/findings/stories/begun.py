"""What a requester had sent before the capture began.

The first packet of a requester that a capture has need not be the first that was sent. Where it goes back to
PSNs below that one, the capture has no hole in front of it: these were sent before the capture began, and
what became of them there is not known. They may have been lost, overtaken, refused by an RNR NAK, or only
their ACKs were lost. A NAK that the capture has still says that its PSN had not arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import IMPLIED_NAK, LOSS, TAIL_LOSS, TIMEOUT_TOO_SHORT, UNDECIDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story

#: What was sent so long before the first packet that a capture has is not of the same pass.
_PASS_NS: Final = 1_000_000_000
_OPEN: Final = frozenset({LOSS, TAIL_LOSS, TIMEOUT_TOO_SHORT})


def find_begun(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Find stories whose packets were sent before the capture began, and take their holes away."""
    first: dict[tuple[int, int], int] = {}
    for story in stories:
        hole = story.hole
        if hole is None:
            continue
        way = story.connection.id, story.side
        if way not in first:
            first[way] = _first_ns(evidence, story)
        if hole.time_ns <= first[way]:
            story.hole = None
            story.begun = _is_of_first_pass(story)


def _first_ns(evidence: Evidence, story: Story) -> int:
    """When the first request of a story's requester came; −1 if the ones before were captured as well."""
    observer = evidence.observer
    if story.connection.negotiated[story.side].starting_psn is not None:
        return -1
    transfers = evidence.transfers_of.get((story.connection.id, story.side), ())
    # Of a READ whose request the capture lacks, the first packet is a response.
    times = [t.first_ns for t in transfers if t.started or not t.is_read]
    first_ns = min(times, default=-1)
    if observer is None or observer.first_ns is None or first_ns - observer.first_ns > _PASS_NS:
        return -1
    return first_ns


def _is_of_first_pass(story: Story) -> bool:
    """Whether what it tells of was sent before the requester went back for the first time in the capture."""
    passes = [nak.of_pass for nak in story.naks] or [run.opener.of_pass for run in story.runs()[:1]]
    return any(of_pass is not None and not of_pass.began_ns for of_pass in passes)


def leave_open_begun(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Say less of what was sent before the capture began: a loss is probable where a NAK names it."""
    first: dict[tuple[int, int], int] = {}
    for story in stories:
        if story.rule == IMPLIED_NAK and story.certain and story.go_backs:
            way = story.connection.id, story.side
            if way not in first:
                first[way] = _first_ns(evidence, story)
            # What was sent just before may have been answered late, and made the requester ask again.
            run = story.go_backs[0]
            if first[way] >= 0 and run.time_ns - run.waited_ns - first[way] < run.waited_ns:
                story.certain, story.or_overtaken = False, True
        if story.begun and story.rule in _OPEN:
            story.certain, story.gappy = False, True
            if not story.naks:
                story.rule = UNDECIDED
