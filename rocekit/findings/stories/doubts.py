"""What a capture that lacks NAKs leaves open.

A requester that goes back sooner than any timer obeys a NAK. Where the capture has none, it lacks NAKs of
that direction: a silence there may have been one too, and what looks like a lost packet may have been
overtaken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import NEEDLESS, TAIL_LOSS, TIMEOUT_TOO_SHORT
from rocekit.track.causes import NAK_MISSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.stories import Story

#: What “probably” means then, for the advice of a finding.
NAKS_LACKING: Final = (
    " “Probably” means: this requester also went back sooner than any timer, so the capture lacks NAKs, and "
    "one of them may be the cause here."
)
_DOUBTED: Final = frozenset({NEEDLESS, TAIL_LOSS, TIMEOUT_TOO_SHORT})


def doubt_without_naks(stories: Sequence[Story]) -> None:
    """Where NAKs are not in the capture, what follows from silence is only probable."""
    lacking = {
        (story.connection.id, story.side)
        for story in stories
        if any(run.cause == NAK_MISSED for run in story.go_backs)
    }
    for story in stories:
        if story.rule in _DOUBTED and (story.connection.id, story.side) in lacking:
            story.certain = story.certain and any(run.opener.first_sight for run in story.repeats)
            story.naks_lacking = not story.certain
