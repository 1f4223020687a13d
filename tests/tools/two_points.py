"""The same traffic as two capture points show it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capture_bytes import Frame, pcap
from story import Shot, Story
from talk import US, A, B

import rocekit
from rocekit.findings import Finding

FLIGHT = US // 2


def seen_at(shots: list[Shot], delays_ns: dict[str, int], ahead_ns: int = 0) -> list[Shot]:
    """What a capture point shows: each host's packets so much after they were sent, on its own clock."""
    moved = [Shot(s.data, s.time_ns + delays_ns[source(s.data)] + ahead_ns) for s in shots]
    return sorted(moved, key=lambda s: s.time_ns)


def source(frame: bytes) -> str:
    return ".".join(str(b) for b in frame[26:30])


def both_ends(story: Story, *, flight_ns: int = 2_000, ahead_ns: int = 0) -> tuple[list[Shot], list[Shot]]:
    """Captures at A and at B, whose clock is ahead."""
    a, b = story.ends["a"].ip, story.ends["b"].ip
    at_a = seen_at(story.shots, {a: 0, b: flight_ns})
    at_b = seen_at(story.shots, {a: flight_ns, b: 0}, ahead_ns)
    return at_a, at_b


def findings_of_two(folder: Path, at_a: Sequence[Frame], at_b: Sequence[Frame]) -> list[Finding]:
    """The findings of captures at A and at B (see ``analysis_of_two``)."""
    return analysis_of_two(folder, at_a, at_b).findings


def analysis_of_two(
    folder: Path, at_a: Sequence[Frame], at_b: Sequence[Frame], *, by_time: bool = True
) -> rocekit.Analysis:
    """The analysis of captures at A and at B; each packet of a talk takes ``FLIGHT`` between them.

    What a capture lacks was lost between the two, or before.

    Args:
        by_time: the files have the packets in the order of their times, not in the one given.
    """
    paths = []
    for name, frames, host in (("va", at_a, A), ("vb", at_b, B)):
        moved = [
            Frame(f.data, f.time_ns + (0 if source(f.data) == host else FLIGHT), f.wirelen) for f in frames
        ]
        path = folder / f"{name}.pcap"
        if by_time:
            moved.sort(key=lambda f: f.time_ns)
        path.write_bytes(pcap(moved, unit="ns"))
        paths.append(path)
    return rocekit.analyze(*paths)
