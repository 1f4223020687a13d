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
from rocekit.findings.stories import ACK_LOSS, IMPLIED_NAK
from rocekit.wire.psn import wire_psn

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story
    from rocekit.points.sightings import Sightings, Transmission

BEFORE, BETWEEN, BEYOND = "before", "between", "beyond"
#: How many later ACKs are searched.
_LATER: Final = 64
#: The rules by which a response was lost.
_RESPONSE_LOSSES: Final = frozenset({ACK_LOSS, IMPLIED_NAK})


@dataclass(frozen=True, slots=True)
class LossPlace:
    """Where a packet was lost.

    Attributes:
        where: ``before`` the first capture point on its way, ``between`` two, or ``beyond`` the last.
        files: the captures next to the place: one, or the one that has the packet and the next, which has
        not. sender: the address of its sender.
        seen: the frames of the lost transmissions, by transmission.
    """

    where: str
    files: tuple[int, ...]
    sender: str
    seen: tuple[tuple[int, ...], ...]

    def words(self, names: Sequence[str]) -> str:
        """``between x.pcap and y.pcap``."""
        files = [names[f] for f in self.files]
        if self.where == BETWEEN:
            return f"between {files[0]} and {files[1]}"
        if self.where == BEYOND:
            return f"beyond {files[0]}"
        return f"between {self.sender} and {files[0]}"


def place(evidence: Evidence, story: Story) -> LossPlace | None:
    """Where a story's packet was lost; None with one capture, or if the order of the captures is unknown."""
    sightings = evidence.sightings
    if sightings is None:
        return None
    connection = story.connection
    of_response = story.rule in _RESPONSE_LOSSES
    side = 1 - story.side if of_response else story.side
    src, dst = connection.ips[side], connection.ips[1 - side]
    if src is None or dst is None:
        return None
    points = sightings.points(src, dst)
    lost = _lost(sightings, story, side, request=not of_response)
    if not points or lost is None:
        return None
    reached = max((points.index(f) for t in lost for f in t.frames if f in points), default=-1)
    seen = tuple(tuple(t.frames.values()) for t in lost)
    if reached < 0:
        return LossPlace(BEFORE, points[:1], src, seen)
    if reached == len(points) - 1:
        return LossPlace(BEYOND, points[-1:], src, seen)
    return LossPlace(BETWEEN, points[reached : reached + 2], src, seen)


def _lost(sightings: Sightings, story: Story, side: int, *, request: bool) -> list[Transmission] | None:
    """The lost transmissions: all before the repeat. None if there is no repeat."""
    repeats = [g for g in story.repeats if not request or g.first_psn <= story.psn <= g.last_psn]
    if not repeats:
        return None
    psns = range(story.psn, story.psn + 1)
    if story.rule == ACK_LOSS:  # an ACK of a later PSN would have been enough
        psns = range(story.psn, min(repeats[0].opener.sent_psn, story.psn + _LATER) + 1)
    sent = [t for psn in psns for t in sightings.transmissions(story.connection, side, psn, request=request)]
    bad = set(story.bad_frames)
    return [t for t in sent if t.time_ns < repeats[0].time_ns and bad.isdisjoint(t.frames.values())]


def places(evidence: Evidence, stories: Sequence[Story]) -> tuple[dict[str, Any], str]:
    """Where the stories' packets were lost, as evidence and in words for the title; both empty if unknown."""
    found = [(story, p) for story in stories if (p := place(evidence, story)) is not None]
    if not found or evidence.sightings is None:
        return {}, ""
    names = evidence.sightings.names
    counted = Counter(p.words(names) for _, p in found)
    cases = [
        {
            "psn": wire_psn(story.psn),
            "lost": p.where,
            "files": list(p.files),
            "frames": [list(frames) for frames in p.seen],
        }
        for story, p in found[:MAX_LISTED]
    ]
    where = ", ".join(words if len(found) == 1 else f"{n:,} {words}" for words, n in counted.most_common())
    return {"places": cases, "places_unknown": len(stories) - len(found)}, where


def lost(where: str, how: str = "lost") -> str:
    """The words of ``places`` as the end of a title: ``; lost between x.pcap and y.pcap``."""
    return f"; {how} {where}" if where else ""
