"""Where on the way something was lost, by which of several captures saw it.

A packet that one capture saw and the next one on its way did not, was lost between the two. What the last one
saw was lost beyond it, what the first one did not see, before it.
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
#: Later acknowledgements that are looked for.
_LATER: Final = 64
_ANSWERS: Final = frozenset({ACK_LOSS, IMPLIED_NAK})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a packet was lost.

    Attributes:
        where: ``before`` the first capture point on its way, ``between`` two, or ``beyond`` the last.
        files: the captures that bound it: one, or the one that saw it and the next, which did not.
        sender: the address it came from.
        seen: the frames that show the lost transmissions, by transmission.
    """

    where: str
    files: tuple[int, ...]
    sender: str
    seen: tuple[tuple[int, ...], ...]

    def words(self, names: Sequence[str]) -> str:
        """``between x.pcap and y.pcap``."""
        told = [names[f] for f in self.files]
        if self.where == BETWEEN:
            return f"between {told[0]} and {told[1]}"
        if self.where == BEYOND:
            return f"beyond {told[0]}"
        return f"between {self.sender} and {told[0]}"


def place(evidence: Evidence, story: Story) -> Place | None:
    """Where a story's packet was lost; None with one capture, or where their order is not known."""
    sightings = evidence.sightings
    if sightings is None:
        return None
    connection = story.connection
    of_answer = story.rule in _ANSWERS
    side = 1 - story.side if of_answer else story.side
    src, dst = connection.ips[side], connection.ips[1 - side]
    if src is None or dst is None:
        return None
    points = sightings.points(src, dst)
    lost = _lost(sightings, story, side, request=not of_answer)
    if not points or lost is None:
        return None
    reached = max((points.index(f) for t in lost for f in t.frames if f in points), default=-1)
    seen = tuple(tuple(t.frames.values()) for t in lost)
    if reached < 0:
        return Place(BEFORE, points[:1], src, seen)
    if reached == len(points) - 1:
        return Place(BEYOND, points[-1:], src, seen)
    return Place(BETWEEN, points[reached : reached + 2], src, seen)


def _lost(sightings: Sightings, story: Story, side: int, *, request: bool) -> list[Transmission] | None:
    """What was sent of it before the repeat, for that did not get through. None where there is no repeat."""
    repeats = [g for g in story.repeats if not request or g.first_psn <= story.psn <= g.last_psn]
    if not repeats:
        return None
    psns = range(story.psn, story.psn + 1)
    if story.rule == ACK_LOSS:  # an acknowledgement of later PSNs would have done as well
        psns = range(story.psn, min(repeats[0].opener.sent_psn, story.psn + _LATER) + 1)
    sent = [t for psn in psns for t in sightings.transmissions(story.connection, side, psn, request=request)]
    bad = set(story.bad_frames)
    return [t for t in sent if t.time_ns < repeats[0].time_ns and bad.isdisjoint(t.frames.values())]


def places(evidence: Evidence, stories: Sequence[Story]) -> tuple[dict[str, Any], str]:
    """Evidence of where the stories' packets were lost, and the same in words for the title; both empty where
    it is not known.
    """
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
    told = ", ".join(words if len(found) == 1 else f"{n:,} {words}" for words, n in counted.most_common())
    return {"places": cases, "places_unknown": len(stories) - len(found)}, f"; lost {told}"
