"""The same traffic as two capture points show it."""

from __future__ import annotations

from story import Shot, Story


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
