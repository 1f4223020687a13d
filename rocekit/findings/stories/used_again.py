"""A requester that is back at its first PSN, although responses to what it sent came one after the other.

A program that ends and starts again may get a QP with the same number, and many start with the same PSN each
time (0: NCCL, UCX). That looks like a requester that got none of these responses and sends everything again.
The packets do not tell which of the two it is, so nothing is said of a loss.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import (
    ACK_LOSS,
    IMPLIED_NAK,
    NEEDLESS,
    REORDERING,
    TAIL_LOSS,
    TIMEOUT_TOO_SHORT,
    USED_AGAIN,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story

_SILENT: Final = frozenset({ACK_LOSS, IMPLIED_NAK, NEEDLESS, REORDERING, TAIL_LOSS, TIMEOUT_TOO_SHORT})
#: So many responses, one after the other, are not all lost behind the capture point.
_RESPONSES: Final = 3


def leave_open_used_again(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Leave open what a QP that is used again may explain: repeats without a NAK from its first PSN on."""
    again: dict[tuple[int, int], int] = {}
    for story in sorted(stories, key=lambda story: story.first_ns()):
        way = story.connection.id, story.side
        if story.rule not in _SILENT or story.naks or story.rnrs:
            continue
        if way in again and story.psn <= again[way]:
            story.rule = USED_AGAIN
            continue
        first, time_ns = _first_psn(story), story.first_ns()
        requests = story.connection.progress[story.side]
        if requests is None or first is None or first > requests.begin:
            continue
        responses, last = _answered(evidence, way, time_ns)
        if responses >= (_RESPONSES if first == requests.begin else 1):
            story.rule = USED_AGAIN
            again[way] = last


def _first_psn(story: Story) -> int | None:
    """The PSN at which its requester went back, or that came out of order; None: it is of another kind."""
    runs = story.runs()
    if runs:
        return runs[0].first_psn
    return min((event.psn for event in story.late), default=None)


def _answered(evidence: Evidence, way: tuple[int, int], time_ns: int) -> tuple[int, int]:
    """How many responses acknowledged all that was sent before a time, and the last PSN of that.

    0 responses if something had none.
    """
    transfers = evidence.transfers_of.get(way, [])
    before = transfers[: bisect_left(transfers, time_ns, key=lambda t: t.first_ns)]
    frames = set()
    for t in before:
        if t.acked_ns is None or t.acked_ns >= time_ns:
            return 0, 0
        frames.add(t.acked_frame)
    return len(frames), max((t.last_psn for t in before), default=0)
