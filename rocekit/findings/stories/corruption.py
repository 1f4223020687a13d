"""Corrupted packets and what they brought about: receivers drop them silently (IBA Vol. 1, 9.6)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story
    from rocekit.flows.observer import BadPacket, Observer

_LOSSES: Final = frozenset({"loss", "tail-loss", "ack-loss", "implied-nak", "retry-exceeded"})
#: A corrupted packet whose own headers are damaged is taken for the lost one if it came so long before the
#: gap was noticed.
_NEAR_NS: Final = 5_000_000
#: PSNs of a hole, or of a repeat, that are looked for.
_MOST: Final = 4096

_Name = tuple[str, str, int, int]


def blame_corruption(evidence: Evidence, stories: list[Story]) -> None:
    """Turn losses into ``icrc-bad`` where the lost packet was captured, corrupted."""
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
    # What is left has headers that are damaged themselves: only the time can tell.
    bad = sorted((b for b in bad if b.frame not in taken), key=lambda b: b.time_ns)
    times = [b.time_ns for b in bad]
    for story in lost:
        if not story.bad_frames:
            _take(story, _nearest(evidence.observer, story, bad, times, taken), taken)


def _take(story: Story, packets: list[BadPacket], taken: set[int]) -> None:
    fresh = [b for b in packets if b.frame not in taken]
    if not fresh:
        return
    taken.update(b.frame for b in fresh)
    story.bad_frames += [b.frame for b in fresh]
    if story.rule != "retry-exceeded":
        story.rule = "icrc-bad"


def _noticed_ns(story: Story) -> int:
    """When the loss showed: at the hole, at the NAK, or with the repeat."""
    if story.hole is not None:
        return story.hole.time_ns
    return story.repeats[0].time_ns if story.repeats and not story.naks else story.time_ns


def _names(story: Story) -> Iterator[tuple[_Name, int]]:
    """The packets that the story may have lost, and until when each must have come."""
    connection, side = story.connection, story.side
    here, there = connection.ips[side], connection.ips[1 - side]
    mine, peers = connection.qpns[side], connection.qpns[1 - side]
    if here is None or there is None:
        return
    repeats = story.repeats
    until = max(_noticed_ns(story), repeats[-1].time_ns if repeats else 0)
    if story.rule != "ack-loss" and peers is not None:
        psns = {story.psn}
        if story.hole is not None:
            psns.update(range(story.hole.psn, min(story.hole.last_psn + 1, story.hole.psn + _MOST)))
        for psn in sorted(psns):
            yield (here, there, peers, psn & MASK), until
    if story.rule != "loss" and mine is not None:
        spans = [e for g in repeats[:1] for e in g.events]
        answers = {p for e in spans for p in range(e.psn, min(e.last_psn + 1, e.psn + _MOST))} | {story.psn}
        for psn in sorted(answers):
            yield (there, here, mine, psn & MASK), until


def _nearest(
    observer: Observer, story: Story, bad: list[BadPacket], times: list[int], taken: set[int]
) -> list[BadPacket]:
    """The first packet with damaged headers between the two hosts that came when the story's was due."""
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
