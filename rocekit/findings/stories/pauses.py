"""Finds timeouts caused by a pause whose frames were not captured: one traffic class of a host is silent.

Hosts and mirror ports rarely pass on PAUSE and PFC frames. The effect of a pause is visible: one traffic
class of a host sends nothing on several connections at once, another class of the host goes on, nothing is
missing afterwards, and at the end the requesters' timers have expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import ACK_LOSS, NEEDLESS, PAUSE_STALL, TAIL_LOSS
from rocekit.flows.observer import REQUEST

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story

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
    spells = observer.silences.spells if waiting else {}
    for kind, own in waiting.items():
        for spell in spells.get(kind, ()):
            stalled = [s for s in own if s.rule != PAUSE_STALL and _waited_in(s, spell)]
            if len({s.connection.id for s in stalled}) >= _CONNECTIONS and _others_went_on(
                evidence, kind, spell
            ):
                for story in stalled:
                    story.rule, story.paused = PAUSE_STALL, spell


def _class_of(evidence: Evidence, story: Story) -> _Class | None:
    """The host and DSCP of a story's requests; None if they have several DSCPs."""
    view = None if evidence.observer is None else evidence.observer.flow(story.connection, story.side)
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


def _waited_in(story: Story, spell: tuple[int, int]) -> bool:
    """Whether a story's wait and the silence are nearly the same."""
    run = story.go_backs[0]
    start, end = run.time_ns - run.waited_ns, run.time_ns
    common = min(end, spell[1]) - max(start, spell[0])
    return common >= _SHARE * max(run.waited_ns, spell[1] - spell[0])


def _others_went_on(evidence: Evidence, kind: _Class, spell: tuple[int, int]) -> bool:
    """Whether the host sent packets of another class meanwhile; if not, the host or the capture stopped."""
    assert evidence.observer is not None
    silences = evidence.observer.silences
    for other, (first, last) in silences.seen.items():
        if other[0] != kind[0] or other == kind or first > spell[0] or last < spell[1]:
            continue
        own = [min(end, spell[1]) - max(start, spell[0]) for start, end in silences.spells.get(other, ())]
        if max(own, default=0) <= _WENT_ON * (spell[1] - spell[0]):
            return True
    return False
