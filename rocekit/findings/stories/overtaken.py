"""Requests that a NAK names and that were not lost: they arrived later than others sent behind them.

* A responder answers each copy of a READ or atomic that arrives in its turn or later (IBA Vol. 1, 9.7.5.1.3).
  At the time of a NAK none had arrived. So more answers than copies sent since are to an earlier copy.
* Where a capture's times run back, the order in the file may be the one that the responder saw. If that order
  has the packet behind a later one, and a NAK names it, both say the same. After a silence the order in the
  file leaves open whether the packet was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit.files.frame_names import FRAME_BITS
from rocekit.findings.stories import REORDERING, TAIL_LOSS
from rocekit.findings.stories.copies import is_answered, misses_packets
from rocekit.track.passes import ANSWERED, BEFORE, BEHIND, MISSED, OPEN, OVERTAKEN
from rocekit.wire import OWN_RESPONSE
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.track.connections import Connection
    from rocekit.track.passes import Pass
    from rocekit.track.transfers import Transfer

#: A transfer that more happened to is not looked at: all its stories would look at all of it.
_MANY: Final = 64
#: So many messages, none answered again that was sent once, show that the network makes no copies.
_ENOUGH: Final = 8
#: Of so many messages, one that was answered again and sent once makes others like it improbable.
_SELDOM: Final = 16
_NOT, _PROBABLY, _SURELY = 0, 1, 2


def spread_answered(stories: Sequence[Story]) -> None:
    """Where an ACK named just a packet that had been sent again, others of its direction may be late as well.

    An original that comes after its repeat is a duplicate, too, but nothing tells its ACK from other ones.
    """
    ways = {(s.connection.id, s.side) for s in stories if s.naks and is_answered(s)}
    for story in stories if ways else ():
        transfer = story.held_by()
        if (story.connection.id, story.side) not in ways or transfer is None:
            continue
        for nak in story.naks if transfer.operation not in OWN_RESPONSE else ():
            if nak.copy == BEHIND:
                nak.copy = ANSWERED
            elif nak.copy == BEFORE and misses_packets(story.connection):
                nak.copy = MISSED


def doubt_by_file(evidence: Evidence, stories: Sequence[Story]) -> None:
    """Leave open what the order in the file contradicts.

    After a silence: whether packets were lost that the file has behind later ones. A host stamps a packet
    that comes before it takes it: another processor may take its repeat sooner. And whether packets came out
    of order that the file has in order, where no NAK says so too: times may be some microseconds wrong.
    """
    late = evidence.late_in_files
    for story in stories:
        ips, side = story.connection.ips, story.side
        if late and story.rule == TAIL_LOSS and (ips[side], ips[1 - side], story.psn & MASK) in late:
            story.certain, story.or_overtaken, story.by_file = False, True, True
        elif story.rule == REORDERING and not story.naks and is_in_file_order(story):
            story.certain = False


def is_in_file_order(story: Story) -> bool:
    """Whether the file has a late packet before the one that overtook it by its time."""
    if story.hole is None:
        return False
    for event in story.late:
        same_file = event.frame >> FRAME_BITS == story.hole.frame >> FRAME_BITS
        if same_file and event.frame < story.hole.frame:
            return True
    return False


class Overtaken:
    """Tells which requests were overtaken, of all stories of a capture.

    Args:
        evidence: what else is known.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._seen = evidence.overtaken
        # By connection and side, how many requests were answered again that were sent once, and of how many.
        self._doubles: dict[tuple[int, int], tuple[int, int]] = {}

    def note(self, story: Story) -> None:
        """Mark the NAKs of a story whose packet arrived after all, as its answers show."""
        transfer = story.held_by()
        if transfer is None or transfer.operation not in OWN_RESPONSE or len(transfer.events) > _MANY:
            return
        for nak in story.naks:
            of_pass: Pass | None = nak.of_pass
            if of_pass is None or not of_pass.ended_ns or nak.copy not in (BEHIND, OPEN):
                continue
            more = _more_answers(transfer, story.psn, of_pass.ended_ns)
            doubled, of = self._doubled(story) if more else (0, 0)
            if more and doubled * _SELDOM > of:
                nak.copy = ANSWERED  # or the network made a copy of the one that was sent again
            elif more:
                nak.copy = OVERTAKEN
                if more == _PROBABLY or doubled or _may_lack_copies(story.connection):
                    story.certain = False

    def is_seen(self, story: Story) -> bool:
        """Whether the file has the story's packet behind a later one."""
        if not self._seen or story.hole is not None:
            return False
        ips, side = story.connection.ips, story.side
        return (ips[side], ips[1 - side], story.psn & MASK) in self._seen

    def _doubled(self, story: Story) -> tuple[int, int]:
        """How many READs and atomics of this requester were answered again and sent once, and of how many.

        The network makes copies of them, or the capture misses requests that were sent again.
        """
        key = story.connection.id, story.side
        known = self._doubles.get(key)
        if known is None:
            doubled = count = 0
            for transfer in self._evidence.transfers_of.get(key, ()):
                if transfer.operation in OWN_RESPONSE:
                    count += 1
                    doubled += _is_doubled(transfer)
            known = self._doubles[key] = doubled, count
        return known


def _may_lack_copies(connection: Connection) -> bool:
    """Whether the capture misses packets, or has too few messages to show that nothing makes copies."""
    return connection.transfers < _ENOUGH or misses_packets(connection)


def _more_answers(transfer: Transfer, psn: int, since_ns: int) -> int:
    """Whether more answers came to a PSN than copies of it were sent since a pass ended.

    ``_PROBABLY``, if they have no identification: then one of them may be a copy that the network made.
    """
    if transfer.is_read:
        answers = int(transfer.response_next > psn and psn not in transfer.responses_missing)
    else:
        answers = int(transfer.acked_ns is not None and transfer.acked_ns > since_ns)
    sent = without_id = 0
    for event in transfer.events:
        if event.time_ns <= since_ns or not event.psn <= psn <= event.last_psn:
            continue
        if event.kind == "response_repeat":
            if event.ip_id == 0:
                without_id += 1
            else:  # a copy that the network made has its original's identification
                answers += int(event.resent == event.count)
        elif event.kind in ("repeat", "duplicate", "late"):
            sent += 1
    if not sent or answers + without_id <= sent:
        return _NOT
    return _SURELY if answers > sent else _PROBABLY


def _is_doubled(transfer: Transfer) -> bool:
    """Whether it was answered again, and not sent again."""
    again = False
    for event in transfer.events:
        if event.kind == "repeat":
            return False
        again = again or event.kind == "response_repeat"
    return again
