"""Losses that NAKs alone tell: the capture has no request of their direction, or no repeat that obeys them.

A NAK "PSN sequence error" says that a packet came before the one that was expected (IBA Vol. 1, 9.7.5.1.1).
Whether that one was lost or only overtaken, the requests show: it comes late, or it is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.findings.stories import LOSS
from rocekit.findings.stories.copies import misses_packets
from rocekit.wire import OPERATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story

_ANSWERS: Final = frozenset({"ACK", "ATOMIC_ACK", "READ_RESPONSE", "CNP"})


def doubt_naks_alone(evidence: Evidence, stories: Sequence[Story]) -> None:
    """A loss that only NAKs tell is only probable where the capture has no request of that direction.

    So it is where no repeat obeys them, and the packet was acknowledged behind them, or the capture misses
    packets: it arrived late, or the capture lacks the repeat, or what made the NAK old.
    """
    for story in naks_alone(evidence, stories):
        if story.rule == LOSS:
            story.certain, story.or_overtaken, story.places = False, True, []
    for story in stories:
        if story.rule == LOSS and story.certain and not story.places and is_not_obeyed(story):
            story.certain, story.or_overtaken = False, True


def is_not_obeyed(story: Story) -> bool:
    """Whether the requester did not go back for the NAKs, and it may be because the packet arrived."""
    if not story.naks:
        return False
    if story.go_backs:
        return story.go_backs[0].cause == "timeout" and misses_packets(story.connection)
    transfer, last_ns = story.held_by(), story.naks[-1].time_ns
    return transfer is not None and transfer.acked_ns is not None and transfer.acked_ns > last_ns


def naks_alone(evidence: Evidence, stories: Sequence[Story]) -> list[Story]:
    """Those of stories that are made of NAKs, in a direction without requests in the capture."""
    lacking: dict[tuple[int, int], bool] = {}
    found = []
    for story in stories:
        if not story.naks or story.go_backs or story.hole is not None:
            continue
        way = story.connection.id, story.side
        if way not in lacking:
            lacking[way] = _lacks_requests(evidence, story)
        if lacking[way]:
            found.append(story)
    return found


def _lacks_requests(evidence: Evidence, story: Story) -> bool:
    if evidence.observer is None:
        return not evidence.transfers_of.get((story.connection.id, story.side))
    view = evidence.observer.flow(story.connection, story.side)
    return view is None or all(OPERATION[opcode] in _ANSWERS for opcode in view.opcodes)
