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
from rocekit.findings.stories.story import Story

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.track.transfers import Transfer

_SILENT: Final = frozenset({ACK_LOSS, IMPLIED_NAK, NEEDLESS, REORDERING, TAIL_LOSS, TIMEOUT_TOO_SHORT})
#: So many responses, one after the other, are not all lost behind the capture point.
_RESPONSES: Final = 3
#: One ACK may be in the capture so often, as behind a mirror of two ports.
_COPIES: Final = 2
#: Sooner after the last request no other QP sends its first.
_SOONEST_NS: Final = 1_000_000


def leave_open_used_again(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Leave open what a QP that is used again may explain: repeats without a NAK from its first PSN on."""
    again: dict[tuple[int, int], int] = {}
    answers: dict[tuple[int, int], _Answers] = {}
    silent = [s for s in stories if s.rule in _SILENT and not s.naks and not s.rnrs]
    for story in sorted(silent, key=Story.first_ns):
        way = story.connection.id, story.side
        if way in again and story.psn <= again[way]:
            story.rule = USED_AGAIN
            continue
        transfers, requests = evidence.transfers_of.get(way), story.connection.progress[story.side]
        if requests is None or not transfers or transfers[0].acked_ns is None:
            continue  # its first message has no response
        first = _first_psn(story)
        # Another QP that sent later, with PSNs of its own, began elsewhere.
        begin = min(requests.begin, transfers[0].first_psn)
        if first is None or first > begin:
            continue
        if way not in answers:
            answers[way] = _Answers(transfers)
        responses, last = answers[way].before(story.first_ns())
        if first == begin and _is_of_same_qp(story):
            continue
        if (
            first < begin
            and story.first_ns() - answers[way].last_began(story.first_ns(), begin) < _SOONEST_NS
        ):
            continue
        if responses >= (_RESPONSES if first == begin else 1):
            story.rule = USED_AGAIN
            again[way] = last


def _is_of_same_qp(story: Story) -> bool:
    """Whether the QP that begins again is certainly the one that was there before.

    A responder acknowledges each duplicate with the last PSN that it has (9.7.5.1.2), and a new QP has none
    that was not sent to it. And no program makes a QP, tells its peer, and is told of the peer's so soon.
    """
    runs = story.runs()
    if not runs:
        return False
    opener = runs[0].opener
    if opener.answer_psn is not None and opener.answer_psn > opener.reached_psn:
        return True
    if opener.same_answers > _COPIES:
        return True
    return 0 < runs[0].waited_ns < _SOONEST_NS


def _first_psn(story: Story) -> int | None:
    """The PSN at which its requester went back, or that came out of order; None: it is of another kind."""
    runs = story.runs()
    if runs:
        return runs[0].first_psn
    return min((event.psn for event in story.late), default=None)


class _Answers:
    """The responses to a requester's messages, from the first one on that it sent until one has none.

    Args:
        transfers: its messages, in the order in which they began.
    """

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self._began: list[int] = []
        self._first_psns: list[int] = []
        self._all: list[tuple[int, int, int]] = []
        frames: set[int | None] = set()
        latest_ns = last = 0
        self._end_ns: int | None = None
        for t in transfers:
            if t.acked_ns is None:
                self._end_ns = t.first_ns
                return
            frames.add(t.acked_frame)
            latest_ns, last = max(latest_ns, t.acked_ns), max(last, t.last_psn)
            self._began.append(t.first_ns)
            self._first_psns.append(t.first_psn)
            self._all.append((latest_ns, len(frames), last))

    def before(self, time_ns: int) -> tuple[int, int]:
        """How many acknowledged all that was sent before a time, and the last PSN of that.

        0 responses if something had none by then.
        """
        if self._end_ns is not None and self._end_ns < time_ns:
            return 0, 0
        count = bisect_left(self._began, time_ns)
        if not count:
            return 0, 0
        latest_ns, responses, last = self._all[count - 1]
        return (responses, last) if latest_ns < time_ns else (0, 0)

    def last_began(self, time_ns: int, begin: int) -> int:
        """When the last message from a PSN on began before a time; 0 if none did."""
        at = bisect_left(self._began, time_ns)
        while at and self._first_psns[at - 1] < begin:
            at -= 1
        return self._began[at - 1] if at else 0
