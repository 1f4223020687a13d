"""Losses of packets without IPv4 identifications, where others of the same way were overtaken.

An identification tells whether a packet that fills a gap was sent again, or is the first copy, late. Without
one (0, as many NICs send with DF; IPv6) the two look alike where a network lets packets overtake others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rocekit.findings.stories import LOSS, REORDERING
from rocekit.track.passes import SELECTIVE
from rocekit.track.repeats import REORDERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.stories.story import Story


def doubt_unidentified(stories: Sequence[Story]) -> None:
    """Leave open whether packets without identifications were lost, where others were overtaken."""
    ways = Counter(_way(s) for s in stories if s.rule == REORDERING and not s.of_response)
    often = {way for way, count in ways.items() if count >= REORDERS}
    for story in stories if often else ():
        if story.rule != LOSS or not story.certain or _way(story) not in often:
            continue
        # A receiver that takes packets out of order sends no NAK for one that is only late.
        if story.connection.recoveries[story.side] != SELECTIVE and _is_unidentified(story):
            story.certain = False


def is_doubted(story: Story) -> bool:
    """Whether a loss is only probable, and nothing else than this says why."""
    why = story.naks_lacking or story.early or story.or_overtaken or story.gappy
    return not story.certain and bool(story.naks) and not why and _is_unidentified(story)


def _is_unidentified(story: Story) -> bool:
    """Whether no packet that was sent again has an identification of its own."""
    runs = story.runs()
    return bool(runs) and not any(event.ip_id for run in runs for event in run.events)


def _way(story: Story) -> tuple[int, int]:
    return story.connection.id, story.side
