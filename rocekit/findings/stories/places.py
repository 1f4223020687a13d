"""Where the packets of stories were lost, as evidence and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import MAX_LISTED
from rocekit.findings.stories.copies import is_captured, lost_copies, misses_packets
from rocekit.findings.stories.loss_place import BEFORE, BETWEEN, BEYOND, LostCopy
from rocekit.track import passes
from rocekit.wire.psn import wire_psn

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story


#: Where a capture lacks packets, one loss before it among so many behind it need not be one.
_FEW: Final = 8


def sides(stories: Sequence[Story], copies: Sequence[LostCopy] | None = None) -> dict[str, int]:
    """How many losses were before, and behind, the capture point.

    With several captures: before the first, behind the last, or between two. ``copies`` are what the stories
    lost, if the caller has them.
    """
    if any(story.places is not None for story in stories):
        where = [place.where for story in stories for place in story.places or ()]
        return {
            "lost_behind_capture_point": where.count(BEYOND),
            "lost_before_capture_point": where.count(BEFORE),
            "lost_between_capture_points": where.count(BETWEEN),
        }
    if copies is None:
        copies = [copy for story in stories for copy in lost_copies(story)]
    where = [copy.where for copy in copies]
    behind, before = where.count(passes.BEHIND), where.count(passes.BEFORE)
    if before * _FEW <= behind and any(misses_packets(s.connection) for s in stories):
        before = 0  # a few of those behind may be packets that the capture missed as well
    return {"lost_behind_capture_point": behind, "lost_before_capture_point": before}


def places(evidence: Evidence, stories: Sequence[Story]) -> tuple[dict[str, Any], str]:
    """Where the stories' packets were lost, as evidence and in words for the title; both empty if unknown."""
    found = [place for story in stories for place in story.places or ()]
    if not found or evidence.sightings is None:
        return {}, ""
    names = evidence.sightings.names
    counted = Counter(p.words(names) for p in found)
    cases = [
        {
            "psn": wire_psn(p.psn),
            "lost": p.where,
            "files": list(p.files),
            "frames": [list(p.seen)] if p.seen else [],
        }
        for p in found[:MAX_LISTED]
    ]
    where = ", ".join(words if len(found) == 1 else f"{n:,} {words}" for words, n in counted.most_common())
    return {"places": cases, "places_unknown": sum(not s.places for s in stories)}, where


def checks_icrcs(evidence: Evidence) -> bool:
    """Whether a corrupted packet would be known: no packet was cut, and ICRCs tell of corruption here."""
    return not evidence.icrc_ignored and not evidence.counts.unchecked_icrc


def probably_words(stories: Sequence[Story], other: str) -> str:
    """What “probably” means in a finding about lost responses, for its advice; empty if nothing is open.

    Args:
        other: the ground where the capture does not have the response.
    """
    open_ = [s for s in stories if not s.certain]
    captured = [s for s in open_ if s.repeats and is_captured(s)]
    words = ""
    if captured:
        words += (
            " “Probably” means: the capture has the response, so it was lost behind the capture point, or "
            "came too late or out of order there. A capture at the requester decides."
        )
    if len(captured) < len(open_):
        words += f" “Probably” means: {other}."
    return words


def lost(where: str, how: str = "lost") -> str:
    """The words of ``places`` as the end of a title: ``; lost between x.pcap and y.pcap``."""
    return f"; {how} {where}" if where else ""
