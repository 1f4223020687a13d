"""The rest of a go-back that comes behind packets which were sent after it: it is late, and no go-back.

A host with several queues sends new packets while others of a go-back still wait in one of them. They come
soon, without a NAK that they obey, and they are just those that the go-back skipped so far. A go-back of a
requester would send again what is behind them as well; where the responder keeps what comes out of order,
it would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import REORDERING
from rocekit.findings.stories.copies import misses_packets
from rocekit.track.causes import NAK_MISSED
from rocekit.track.passes import BEFORE, SELECTIVE, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack, Story
    from rocekit.track.passes import Pass

#: A rest that comes so late may be a repeat.
_SOON_NS: Final = 10_000_000
#: What goes on so soon, and so few PSNs behind a packet, may have begun with it.
_AT_ONCE_NS: Final = 1_000_000
_NEAR: Final = 4
_UNTOLD: Final = frozenset({"timeout", NAK_MISSED})


def find_late_rests(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Find runs that are the rest of the go-back before them: what these skipped was not lost.

    The order among several captures is estimated, and without identifications it may mix two go-backs. Where
    packets come twice, it is open without them which of two begins a go-back.
    """
    estimated = evidence.sightings is not None and not evidence.sightings.one_clock
    ended: dict[tuple[int, int, int], Pass] = {}
    for story in stories:
        if story.naks or story.rnrs or story.late or len(story.go_backs) != 1:
            continue
        run = story.go_backs[0]
        if estimated and not run.opener.ip_id:
            continue
        of_pass = _skipped_by(story, run)
        if of_pass is not None:
            run.be_late()
            story.certain = bool(run.opener.ip_id) or not story.connection.duplicates
            ended[story.connection.id, story.side, of_pass.number + 1] = of_pass
    for story in stories if ended else ():
        _judge_anew(story, ended)


def _skipped_by(story: Story, run: GoBack) -> Pass | None:
    """The pass that skipped just the packets of a run, which came soon after it; None: another cause."""
    opener = run.opener
    of_pass: Pass | None = opener.of_pass
    if of_pass is None or not of_pass.gaps or not of_pass.began_ns or run.cause not in _UNTOLD:
        return None
    if run.first_sight or run.waited_ns >= _SOON_NS:
        return None
    if story.connection.recoveries[story.side] == SELECTIVE:
        return None
    skipped = any(first <= run.first_psn and run.last_psn <= last for first, last in of_pass.gaps)
    return of_pass if skipped else None


def _judge_anew(story: Story, ended: dict[tuple[int, int, int], Pass]) -> None:
    """What seemed to begin with such a run is the pass before: it lacks what that one does, and new ones."""
    for event in [*story.naks, *(run.opener for run in story.go_backs)]:
        seeming: Pass | None = event.of_pass
        number = -1 if seeming is None else seeming.number
        before = ended.get((story.connection.id, story.side, number))
        if before is None or seeming is None:
            continue
        seeming.gaps = [gap for gap in seeming.gaps if gap[0] > before.last]
        if event.copy == BEFORE and not (before.lacks(event.psn) or seeming.lacks(event.psn)):
            event.copy = UNKNOWN


def doubt_firsts(stories: Sequence[Story]) -> None:
    """Leave open whether a packet came late with which a go-back may begin, where the capture misses packets.

    It has neither the NAK then nor the packet between this one and the others that were sent again.

    Args:
        stories: in order of time.
    """
    if not any(s.rule == REORDERING and s.late for s in stories):
        return
    late: dict[tuple[int, int], Story] = {}
    for story in stories:
        way, runs = (story.connection.id, story.side), story.runs()
        before = late.get(way)
        if before is not None and runs:
            came = before.late[-1]
            soon = 0 <= runs[0].time_ns - came.time_ns < _AT_ONCE_NS
            if soon and 0 < runs[0].first_psn - came.last_psn <= _NEAR:
                before.certain, before.gappy = False, True
        free = story.rule == REORDERING and not (story.naks or runs or story.of_response)
        if free and story.late and misses_packets(story.connection):
            late[way] = story
