"""Lone packets that come long after their time: the original that was given up, or a copy of it.

A requester that goes back sends everything from there on again. One old packet by itself, already
acknowledged, amid new ones is none of its doing: the network held it up. If it had been taken for lost, it
was only late.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import GoBack, Story

#: Sooner after the last packet than this no timer runs out, where the timeout is not known.
_SOON_NS: Final = 1_000_000
#: Sooner than this share of the timeout no timer runs out, where it is known.
_EARLY: Final = 0.9
#: This soon nothing but the network sends a packet again.
_AT_ONCE_NS: Final = 50_000
#: Packets that came late by themselves, from which on a direction is known to reorder.
_MANY: Final = 3
#: How many stories back the one may be that a straggler undoes.
_RECENT: Final = 1024
_LOSSES: Final = frozenset({"loss", "tail-loss"})


def settle_stragglers(evidence: Evidence, stories: list[Story]) -> list[Story]:
    """The stories without stragglers: what they explain is ``reordering``, the others are ``duplicate``."""
    kept: list[Story] = []
    for story in stories:
        if story.rule in _LOSSES and _came_twice(evidence, story):
            story.rule = "reordering"
        if not is_straggler(evidence, story):
            kept.append(story)
            continue
        given_up = _given_up(story, kept)
        if given_up is None:
            story.rule = "duplicate"
            kept.append(story)
            continue
        given_up.rule = "reordering"
        for run in story.go_backs:
            run.cause = "late"
        given_up.go_backs += story.go_backs
    return kept


def settle_reordering(stories: list[Story]) -> None:
    """Where the capture proves that a direction reorders, what is not proven to be lost there was overtaken.

    A responder refuses what comes too early although nothing is missing, and requesters then repeat what is
    still on its way.
    """
    late: dict[_Way, int] = defaultdict(int)
    lost: dict[_Way, int] = defaultdict(int)
    for story in stories:
        late[_way(story)] += story.rule == "reordering" and _is_late(story)
        lost[_way(story)] += _is_proven(story)
    for story in stories:
        way = _way(story)
        doubtful = story.rule in _LOSSES and (story.hole is None or not _is_proven(story))
        if (doubtful or (story.rule == "ack-loss" and not story.certain)) and late[way] >= max(
            _MANY, lost[way]
        ):
            story.rule, story.certain = "reordering", False


_Way = tuple[str | None, str | None]


def _way(story: Story) -> _Way:
    ips, side = story.connection.ips, story.side
    return ips[side], ips[1 - side]


def _is_proven(story: Story) -> bool:
    """Whether a hole was seen and only a repeat closed it."""
    return story.rule == "loss" and story.hole is not None and any(g.first_sight for g in story.go_backs)


def _is_late(story: Story) -> bool:
    """Whether the capture shows the packet itself come late."""
    return bool(story.late) or any(g.cause == "late" for g in story.go_backs)


def _is_lone(evidence: Evidence, story: Story, run: GoBack) -> bool:
    """Whether a run is the story's packet alone, sooner than a timer can bring it."""
    timeout_ns = evidence.timeout_ns(story.connection, story.side)
    soon = run.waited_ns < (_SOON_NS if timeout_ns is None else _EARLY * timeout_ns)
    return run.cause == "timeout" and run.packets == 1 and run.first_psn == story.psn and soon


def _came_twice(evidence: Evidence, story: Story) -> bool:
    """Whether what the capture first showed in the repeat came once more by itself: the original, late."""
    seen = [g for g in story.go_backs if g.first_sight]
    if seen and any(_is_lone(evidence, story, g) for g in story.go_backs if g.time_ns > seen[0].time_ns):
        for run in story.go_backs:
            if run is not seen[0] and _is_lone(evidence, story, run):
                run.cause = "late"
        return True
    return bool(seen) and any(
        event.kind == "duplicate" and event.psn == story.psn and event.time_ns > seen[0].time_ns
        for transfer in story.transfers
        for event in transfer.events
    )


def is_straggler(evidence: Evidence, story: Story) -> bool:
    """Whether a story is one old packet alone."""
    if story.naks or story.rnrs or story.late or len(story.go_backs) != 1:
        return False
    run = story.go_backs[0]
    opener, transfer = run.opener, story.transfer
    if run.packets != 1 or transfer is None:
        return False
    if run.cause == "implied_nak":
        # A requester that misses an answer asks for all from there on again, and for part of a READ.
        whole = run.first_psn == transfer.first_psn and not transfer.met("response_hole")
        newer = opener.sent_psn > transfer.last_psn
        return whole and opener.after_ack and (newer or run.waited_ns < _AT_ONCE_NS)
    timeout_ns = evidence.timeout_ns(story.connection, story.side)
    if run.waited_ns >= (_SOON_NS if timeout_ns is None else _EARLY * timeout_ns):
        return False
    # A requester that goes back by itself sends on from there; a copy stands alone among newer packets, or
    # right behind its original.
    reach = transfer.last_psn if transfer.is_read else run.last_psn
    return (opener.after_ack and opener.sent_psn > reach) or run.waited_ns < _AT_ONCE_NS


def _given_up(story: Story, before: list[Story]) -> Story | None:
    """The loss that the straggler undoes: of the same PSN, which the capture had not shown until it was
    repeated.
    """
    for other in reversed(before[-_RECENT:]):
        if (
            other.connection is story.connection
            and other.side == story.side
            and other.rule in _LOSSES
            and other.psn == story.psn
            and (other.unseen is not None or any(g.first_sight for g in other.go_backs))
        ):
            return other
    return None
