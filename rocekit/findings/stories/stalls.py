"""How long each story stopped its connection, so that no moment counts twice.

What a problem costs is the time in which its connection made no progress because of it. Stories overlap: a
loss falls into the wait after another. So the times of a connection's stories are shared out: each moment
belongs to the story that started first.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.stories.story import Story


def share_stalls(stories: Sequence[Story]) -> None:
    """Set the cost of each story. Those of a connection add up to no more than its duration."""
    by_connection: dict[int, list[tuple[int, int, int, Story]]] = defaultdict(list)
    for story in stories:
        own = by_connection[story.connection.id]
        start_ns, end_ns = story.stalled()
        own.append((start_ns, end_ns, len(own), story))
    for own in by_connection.values():
        covered_ns = own[0][3].connection.first_ns or 0
        own.sort()
        for start_ns, end_ns, _, story in own:
            story.copies = None  # what later steps changed counts
            story.added_ns = end_ns - start_ns
            story.cost_ns = max(0, end_ns - max(start_ns, covered_ns))
            covered_ns = max(covered_ns, end_ns)


def stalled_ns(stories: Sequence[Story]) -> int:
    """How long at least one connection made no progress: the union of all stalls."""
    total_ns = covered_ns = 0
    for start_ns, end_ns in sorted(story.stalled() for story in stories):
        total_ns += max(0, end_ns - max(start_ns, covered_ns))
        covered_ns = max(covered_ns, end_ns)
    return total_ns
