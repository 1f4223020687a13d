"""Repeats too soon for the requester's timer to have run out for the packet that comes again.

A response that comes later than the timer shows that the timer is too short only if the wait was a whole
one.
rdma_rxe does not start its timer anew with each packet: of packets that are sent one after the other it may
run out soon after one was sent, though it is much longer than a round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.findings.stories import ACK_LOSS, NEEDLESS, TIMEOUT_TOO_SHORT
from rocekit.track.short_timers import short_timer_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack, Story

#: A timer may run out this much too early, as kernels count in ticks, or after up to four timeouts (IBA
#: Vol. 1, 9.7.6.1.3), and a tenth more for the capture's own error.
_EARLIEST, _LATEST = 0.875, 4.4
_Side = tuple[int, int]


def without_parts_of_timers(evidence: Evidence, stories: list[Story]) -> list[Story]:
    """Call no timer too short by a repeat that came too soon for a whole one; gives the stories.

    Such a repeat joins the story of a NAK for its first packet that the requester may have obeyed late.
    """
    short = [story for story in stories if story.rule == TIMEOUT_TOO_SHORT]
    if not short:
        return stories
    longest = _longest_waits(stories)
    refused = {(s.connection.id, s.side, s.psn): s for s in stories if s.naks and not s.runs()}
    joined: set[int] = set()
    for story in short:
        run, side = story.repeats[0], (story.connection.id, story.side)
        timeout_ns = evidence.timeout_ns(story.connection, story.side)
        if timeout_ns is None:
            timeout_ns = int(longest.get(side, 0) / _LATEST)
        elif short_timer_ns(story.connection, story.side) is not None:
            continue
        if _since_sent_ns(run) >= _EARLIEST * timeout_ns:
            continue
        of_nak = refused.get((*side, run.first_psn))
        if of_nak is not None and _may_obey(evidence, of_nak, run):
            of_nak.go_backs = [*of_nak.go_backs, *story.go_backs]
            of_nak.add_transfers(story.transfers)
            joined.add(id(story))
        else:
            _name_anew(evidence, story, run)
    return [story for story in stories if id(story) not in joined]


def _may_obey(evidence: Evidence, story: Story, run: GoBack) -> bool:
    """Whether a story's last NAK, which what was sent just before the repeat drew, had come before it."""
    nak = story.naks[-1]
    if nak.of_pass is None or run.opener.of_pass is None or nak.of_pass.number != run.opener.of_pass.number:
        return False
    return _came_ns(evidence, nak.frame, nak.time_ns) <= run.time_ns


def _came_ns(evidence: Evidence, frame: int, time_ns: int) -> int:
    """When a response passed the last capture on its way."""
    sightings = evidence.sightings
    row = -1 if sightings is None else sightings.row_of(frame)
    return time_ns if sightings is None or row < 0 else max(sightings.times_of(row).values())


def _longest_waits(stories: Sequence[Story]) -> dict[_Side, int]:
    """The longest wait for a timer on each side, but for those after a repeat: a timer may double."""
    longest: dict[_Side, int] = {}
    for story in stories:
        for run in story.runs()[:1]:
            if run.cause == "timeout":
                side = story.connection.id, story.side
                longest[side] = max(longest.get(side, 0), run.waited_ns)
    return longest


def _since_sent_ns(run: GoBack) -> int:
    """How long before a repeat its first packet was sent, at most."""
    since_ns = 0 if run.opener.of_pass is None else run.opener.of_pass.began_ns
    for transfer in run.transfers:
        if transfer.first_psn <= run.first_psn <= transfer.last_psn:
            since_ns = max(since_ns, transfer.first_ns)
    return max(run.waited_ns, run.time_ns - since_ns)


def _name_anew(evidence: Evidence, story: Story, run: GoBack) -> None:
    """Nothing was lost, but for an ACK that came long before the repeat: behind the capture, perhaps."""
    transfer = story.transfer
    acked_ns = run.time_ns
    if run.after_ack and transfer is not None and transfer.acked_ns is not None:
        acked_ns = _came_ns(evidence, transfer.ack_frame, transfer.acked_ns)
    if (run.time_ns - acked_ns) * 2 < run.waited_ns:
        story.rule, story.certain = NEEDLESS, False  # a NAK may be the cause that no capture has
    else:
        story.rule, story.certain, story.places = ACK_LOSS, False, None
