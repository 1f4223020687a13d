"""Finds where a packet was lost, from which of several captures have it.

A packet that one capture has and the next one on its way has not was lost between the two. A lost packet that
the last one has was lost beyond it; one that the first one has not was lost before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.finding import MAX_LISTED
from rocekit.findings.stories import ACK_LOSS
from rocekit.findings.stories.copies import RESPONSE_LOSSES, lost_copies
from rocekit.wire.psn import wire_psn

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story
    from rocekit.findings.stories.copies import LostCopy
    from rocekit.points.sightings import Sightings, Transmission

BEFORE, BETWEEN, BEYOND = "before", "between", "beyond"
#: How many later ACKs are searched.
_LATER: Final = 64


@dataclass(frozen=True, slots=True)
class LossPlace:
    """Where a packet was lost.

    Attributes:
        where: ``before`` the first capture point on its way, ``between`` two, or ``beyond`` the last.
        files: the captures next to the place: one, or the one that has the packet and the next, which has
        not. sender: the address of its sender.
        seen: the frames of the lost packet, one in each capture that has it.
    """

    psn: int
    where: str
    files: tuple[int, ...]
    sender: str
    seen: tuple[int, ...]

    def words(self, names: Sequence[str]) -> str:
        """``between x.pcap and y.pcap``."""
        files = [names[f] for f in self.files]
        if self.where == BETWEEN:
            return f"between {files[0]} and {files[1]}"
        if self.where == BEYOND:
            return f"beyond {files[0]}"
        return f"between {self.sender} and {files[0]}"


def place_each(evidence: Evidence, story: Story) -> list[LossPlace]:
    """Where each packet that a story lost was lost; empty with one capture, or if their order is unknown."""
    sightings = evidence.sightings
    if sightings is None:
        return []
    connection = story.connection
    of_response = story.rule in RESPONSE_LOSSES
    side = 1 - story.side if of_response else story.side
    src, dst = connection.ips[side], connection.ips[1 - side]
    if src is None or dst is None:
        return []
    points = sightings.points(src, dst)
    if not points:
        return []
    found = []
    for copy in lost_copies(story):
        sent = _sent(sightings, story, copy, side, request=not of_response)
        reached = max((points.index(f) for t in sent for f in t.frames if f in points), default=-1)
        seen = tuple(frame for t in sent for frame in t.frames.values())
        if reached < 0:
            found.append(LossPlace(copy.psn, BEFORE, points[:1], src, seen))
        elif reached == len(points) - 1:
            found.append(LossPlace(copy.psn, BEYOND, points[-1:], src, seen))
        else:
            found.append(LossPlace(copy.psn, BETWEEN, points[reached : reached + 2], src, seen))
    return found


def _sent(
    sightings: Sightings, story: Story, copy: LostCopy, side: int, *, request: bool
) -> list[Transmission]:
    """The transmission that counts; of ACKs, all that would have been enough: those of later PSNs too."""
    psns = range(copy.psn, copy.psn + 1)
    if story.rule == ACK_LOSS:
        psns = range(copy.psn, min(story.repeats[0].opener.sent_psn, copy.psn + _LATER) + 1)
    bad = set(story.bad_frames)
    sent = [
        t
        for psn in psns
        for t in sightings.transmissions(story.connection, side, psn, request=request)
        if copy.since_ns <= t.time_ns < copy.until_ns and bad.isdisjoint(t.frames.values())
    ]
    return sent if story.rule == ACK_LOSS else sent[-1:]


def places(evidence: Evidence, stories: Sequence[Story]) -> tuple[dict[str, Any], str]:
    """Where the stories' packets were lost, as evidence and in words for the title; both empty if unknown."""
    by_story = [place_each(evidence, story) for story in stories]
    found = [p for each in by_story for p in each]
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
    return {"places": cases, "places_unknown": sum(not each for each in by_story)}, where


def lost(where: str, how: str = "lost") -> str:
    """The words of ``places`` as the end of a title: ``; lost between x.pcap and y.pcap``."""
    return f"; {how} {where}" if where else ""
