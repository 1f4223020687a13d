"""Finds timeouts caused by a pause whose frames were not captured: one traffic class of a host is silent.

Hosts and mirror ports rarely pass on PAUSE and PFC frames. The effect of a pause is visible: one traffic
class of a host sends nothing on several connections at once, another class of the host goes on, nothing is
missing afterwards, and at the end the requesters' timers have expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit.findings.stories import ACK_LOSS, NEEDLESS, PAUSE_STALL, TAIL_LOSS
from rocekit.flows.observer import REQUEST

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.flows.silences import Silences

#: So many connections must have a timeout in one silence: a single one proves nothing about its class.
_CONNECTIONS: Final = 2
#: A wait and the silence of its class must share at least so much of the longer one.
_SHARE: Final = 0.75
#: Another class went on if its longest silence meanwhile is at most this share.
_WENT_ON: Final = 0.5

_Class = tuple[str, int]


def find_pauses(evidence: Evidence, stories: list[Story]) -> None:
    """Change timeouts to ``pause-stall`` if their whole traffic class was silent and nothing was lost."""
    observer = evidence.observer
    if observer is None:
        return
    waiting: dict[_Class, list[Story]] = {}
    for story in stories:
        if not _is_timeout_without_loss(story):
            continue
        kind = _class_of(evidence, story)
        if kind is not None:
            waiting.setdefault(kind, []).append(story)
    if not waiting:
        return
    classes = _Classes(observer.silences)
    for kind, own in waiting.items():
        spells = classes.spells.get(kind)
        if spells is None:
            continue
        waits = _Waits(own)
        for spell in dict.fromkeys(spells.all):
            stalled = waits.within(spell)
            if len({s.connection.id for s in stalled}) >= _CONNECTIONS and classes.others_went_on(
                kind, spell
            ):
                for story in stalled:
                    story.rule, story.paused = PAUSE_STALL, spell


class _Waits:
    """The waits of stories, in order of their ends: only those that end near a silence are looked at."""

    def __init__(self, stories: list[Story]) -> None:
        self._stories = sorted(stories, key=lambda s: s.go_backs[0].time_ns)
        runs = [s.go_backs[0] for s in self._stories]
        self._end = np.array([run.time_ns for run in runs], np.int64)
        self._waited = np.array([run.waited_ns for run in runs], np.int64)

    def within(self, spell: tuple[int, int]) -> list[Story]:
        """Those whose wait and the silence are nearly the same, without those of another silence.

        What both share is at least _SHARE of either: so a wait is at most 1/_SHARE of the silence, ends when
        that much of the silence has passed, and no later behind it than the rest of the wait.
        """
        start, end = spell
        long = end - start
        # In whole numbers: as floating-point numbers, times of today differ by hundreds of nanoseconds.
        latest = end + int(long / _SHARE) - long + 1
        first = np.searchsorted(self._end, start + int(_SHARE * long))
        last = np.searchsorted(self._end, latest, "right")
        ends, waited = self._end[first:last], self._waited[first:last]
        common = np.minimum(ends, end) - np.maximum(ends - waited, start)
        rows = np.flatnonzero(common >= _SHARE * np.maximum(waited, long)) + first
        return [s for s in (self._stories[n] for n in rows.tolist()) if s.rule != PAUSE_STALL]


class _Spells:
    """The silences of one class, in order of their starts; they overlap only where times run backwards."""

    def __init__(self, spells: list[tuple[int, int]]) -> None:
        self.all = spells
        times = np.array(spells, np.int64)
        self._start, self._end = times[:, 0], times[:, 1]
        self._ended = np.maximum.accumulate(self._end)

    def longest_in(self, start: int, end: int) -> int:
        """The longest part of a silence between two times."""
        first, last = np.searchsorted(self._ended, start, "right"), np.searchsorted(self._start, end)
        parts = np.minimum(self._end[first:last], end) - np.maximum(self._start[first:last], start)
        return int(parts.max(initial=0))


class _Classes:
    """When each traffic class of each host was silent, asked for once."""

    def __init__(self, silences: Silences) -> None:
        self.spells = {kind: _Spells(spells) for kind, spells in silences.spells.items()}
        self._seen: dict[str, list[tuple[_Class, int, int]]] = {}
        for kind, (first, last) in silences.seen.items():
            self._seen.setdefault(kind[0], []).append((kind, first, last))

    def others_went_on(self, kind: _Class, spell: tuple[int, int]) -> bool:
        """Whether the host sent packets of another class meanwhile; else the host or the capture stopped."""
        for other, first, last in self._seen.get(kind[0], ()):
            if other == kind or first > spell[0] or last < spell[1]:
                continue
            own = self.spells.get(other)
            if own is None or own.longest_in(*spell) <= _WENT_ON * (spell[1] - spell[0]):
                return True
        return False


def _class_of(evidence: Evidence, story: Story) -> _Class | None:
    """The host and DSCP of a story's requests; None if they have several DSCPs."""
    view = evidence.survey.flow(story.connection, story.side)
    dscps = {} if view is None else view.dscps.get(REQUEST, {})
    return (view.src, next(iter(dscps))) if view is not None and len(dscps) == 1 else None


def _is_timeout_without_loss(story: Story) -> bool:
    """Whether a timer expired, and no packet is proven to be lost."""
    if not story.go_backs or story.hole is not None or story.naks or story.rnrs:
        return False
    opener = story.go_backs[0].opener
    if story.go_backs[0].cause != "timeout" or story.go_backs[0].first_sight:
        return False
    if story.rule == TAIL_LOSS:
        return not story.certain or opener.mid_message
    return story.rule in (NEEDLESS, ACK_LOSS)
