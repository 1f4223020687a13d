"""Corrupted packets and what they brought about: the receiver drops them silently (IBA Vol. 1, 9.6), so to it
they are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.psn import MASK

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story
    from rocekit.observe import BadPacket

_LOSSES: Final = frozenset({"loss", "tail-loss", "ack-loss", "implied-nak", "retry-exceeded"})
#: A corrupted packet whose own headers are damaged is taken for the lost one this long before the gap was
#: noticed.
_NEAR_NS: Final = 5_000_000


def blame_corruption(evidence: Evidence, stories: list[Story]) -> None:
    """Turn losses into ``icrc-bad`` where the lost packet was captured, corrupted."""
    if evidence.observer is None or evidence.icrc_ignored:
        return
    bad = [b for b in evidence.observer.bad if b.icrc_wrong]
    for exact in (True, False):
        for story in stories:
            if not bad:
                return
            if story.rule not in _LOSSES or story.bad_frames:
                continue
            for packet in [b for b in bad if _fits(story, b, exact=exact)]:
                story.bad_frames.append(packet.frame)
                bad.remove(packet)
                if not exact:
                    break
            if story.bad_frames and story.rule != "retry-exceeded":
                story.rule = "icrc-bad"


def _fits(story: Story, packet: BadPacket, *, exact: bool) -> bool:
    """Whether ``packet`` is what the story's receiver did not get."""
    connection, side = story.connection, story.side
    repeats = story.repeats
    noticed = story.hole.time_ns if story.hole is not None else story.time_ns
    until = repeats[-1].time_ns if repeats else noticed
    if not story.naks and repeats:
        noticed = max(noticed, repeats[0].time_ns)
    here, there = connection.ips[side], connection.ips[1 - side]
    asked = (packet.src, packet.dst) == (here, there)
    answered = (packet.src, packet.dst) == (there, here)
    if exact:
        if asked and packet.dest_qpn == connection.qpns[1 - side] and story.rule != "ack-loss":
            hit = story.psn & MASK == packet.psn or _in_hole(story, packet.psn)
            return hit and packet.time_ns <= max(until, noticed)
        if answered and packet.dest_qpn == connection.qpns[side] and story.rule != "loss":
            span = {p & MASK for g in repeats[:1] for e in g.events for p in range(e.psn, e.last_psn + 1)}
            start = repeats[0].time_ns - 2 * repeats[0].waited_ns if repeats else noticed
            return packet.psn in span and start <= packet.time_ns <= until
        return False
    start = noticed - _NEAR_NS
    if not story.naks and repeats:
        start = repeats[0].time_ns - repeats[0].waited_ns - _NEAR_NS
    return {packet.src, packet.dst} & {here, there} != set() and start <= packet.time_ns <= noticed


def _in_hole(story: Story, psn: int) -> bool:
    hole = story.hole
    return hole is not None and (psn - hole.psn) & MASK <= hole.last_psn - hole.psn
