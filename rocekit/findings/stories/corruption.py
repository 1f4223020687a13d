"""Finds losses caused by corruption: receivers drop corrupted packets silently (IBA Vol. 1, 9.6)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import ACK_LOSS, ICRC_BAD, IMPLIED_NAK, LOSS, RETRY_EXCEEDED, TAIL_LOSS
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.flows.observer import BadPacket, Observer

_LOSSES: Final = frozenset({LOSS, TAIL_LOSS, ACK_LOSS, IMPLIED_NAK, RETRY_EXCEEDED})
#: A corrupted packet with damaged headers is taken for the lost one if it came at most so long before the
#: loss was noticed.
_NEAR_NS: Final = 5_000_000
#: How many PSNs of a hole, or of a repeat, are searched.
_MOST: Final = 4096

_Name = tuple[str, str, int, int]


def find_corruption(evidence: Evidence, stories: list[Story]) -> None:
    """Change losses to ``icrc-bad`` if the lost packet was captured, corrupted."""
    if evidence.observer is None or evidence.icrc_ignored:
        return
    bad = [b for b in evidence.observer.bad if b.icrc_wrong]
    if not bad:
        return
    lost = [s for s in stories if s.rule in _LOSSES]
    by_name: dict[_Name, list[BadPacket]] = defaultdict(list)
    for packet in bad:
        by_name[packet.src, packet.dst, packet.dest_qpn, packet.psn].append(packet)
    taken: set[int] = set()
    for story in lost:
        _take(
            story,
            [b for name, until in _names(story) for b in by_name.get(name, ()) if b.time_ns <= until],
            taken,
        )
    # The headers of the others are damaged themselves: only their time can match them with a loss.
    bad = sorted((b for b in bad if b.frame not in taken), key=lambda b: b.time_ns)
    times = [b.time_ns for b in bad]
    for story in lost:
        if not story.bad_frames:
            _take(story, _nearest(evidence.observer, story, bad, times, taken), taken)


def _take(story: Story, packets: list[BadPacket], taken: set[int]) -> None:
    """Make those packets that no other story has the cause of this one."""
    fresh = [b for b in packets if b.frame not in taken]
    if not fresh:
        return
    taken.update(b.frame for b in fresh)
    story.bad_frames = [*story.bad_frames, *(b.frame for b in fresh)]
    if story.rule != RETRY_EXCEEDED:
        story.rule = ICRC_BAD


def _noticed_ns(story: Story) -> int:
    """When the loss was noticed: at the hole, at the NAK, or at the repeat."""
    if story.hole is not None:
        return story.hole.time_ns
    return story.repeats[0].time_ns if story.repeats and not story.naks else story.time_ns


def _names(story: Story) -> Iterator[tuple[_Name, int]]:
    """The packets that the story may have lost, and the time by which each must have come."""
    connection, side = story.connection, story.side
    here, there = connection.ips[side], connection.ips[1 - side]
    mine, peers = connection.qpns[side], connection.qpns[1 - side]
    if here is None or there is None:
        return
    repeats = story.repeats
    until = max(_noticed_ns(story), repeats[-1].time_ns if repeats else 0)
    if story.rule != ACK_LOSS and peers is not None:
        psns = {story.psn}
        if story.hole is not None:
            psns.update(range(story.hole.psn, min(story.hole.last_psn + 1, story.hole.psn + _MOST)))
        for psn in sorted(psns):
            yield (here, there, peers, psn & MASK), until
    if story.rule != LOSS and mine is not None:
        spans = [e for g in repeats[:1] for e in g.events]
        responses = {p for e in spans for p in range(e.psn, min(e.last_psn + 1, e.psn + _MOST))}
        for psn in sorted(responses | {story.psn}):
            yield (there, here, mine, psn & MASK), until


def _nearest(
    observer: Observer, story: Story, bad: list[BadPacket], times: list[int], taken: set[int]
) -> list[BadPacket]:
    """The first packet with damaged headers between the two hosts at the time of the story's lost one."""
    noticed = _noticed_ns(story)
    start = noticed - _NEAR_NS
    if not story.naks and story.repeats:
        start -= story.repeats[0].waited_ns
    connection = story.connection
    hosts = {connection.ips[0], connection.ips[1]}
    own = {(connection.ips[s], connection.ips[1 - s], connection.qpns[1 - s]) for s in (0, 1)}
    for packet in bad[bisect_left(times, start) :]:
        if packet.time_ns > noticed:
            break
        name = packet.src, packet.dst, packet.dest_qpn
        if packet.frame in taken or (observer.number(*name) is not None and name not in own):
            continue
        if {packet.src, packet.dst} & hosts:
            return [packet]
    return []
