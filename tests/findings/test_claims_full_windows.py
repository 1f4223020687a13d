"""A requester that waits in mid message for its window: what is behind it was not sent, and so not lost.

All here are of ``drawn-601`` of the truth bench, where responses come 0.2 s late and nothing is lost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from talk import MS, TIMEOUT, US, Talk, of_rule, only, settled
from two_points import findings_of_two


def full(packets: int, *, answer_ns: int = 50 * US) -> tuple[Talk, range, int]:
    """``packets`` of a longer message, and once more after a silence; the frames of these and their ACK."""
    t = Talk()
    t.connect()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    t.send(20, 400, only=range(20, 20 + packets))
    t.wait(TIMEOUT)
    again = t.send(20, 400, only=range(20, 20 + packets))
    t.wait(answer_ns)
    ack = t.ack(19 + packets)
    t.send(20, 400, only=range(20 + packets, 420))
    t.wait(50 * US)
    t.ack(419)
    return t, range(again[20], again[19 + packets] + 1), ack


@pytest.mark.parametrize("packets", [40, 128])
def test_a_requester_that_never_went_back_may_wait_for_its_window_as_well(packets: int) -> None:
    t, _, _ = full(packets)
    found = only(t.findings(), "tail-loss")
    assert found.evidence["psns"] == [20 + packets]
    assert ("probably" in found.title) == (packets == 128)
    assert ("with its window full" in found.advice) == (packets == 128)


def test_a_late_response_is_not_to_what_had_not_been_sent(tmp_path: Path) -> None:
    """The ACK leaves the responder before the repeat arrives there, and comes behind it."""
    t, again, ack = full(40, answer_ns=40 * MS)
    began_ns = t.frames[again[0] - 1].time_ns

    def at_b(number: int) -> int:
        own_ns = t.frames[number - 1].time_ns
        return own_ns + 30 * MS if number in again else began_ns + 20 * MS if number == ack else own_ns

    second = [replace(frame, time_ns=at_b(n)) for n, frame in enumerate(t.frames, 1)]
    found = only(findings_of_two(tmp_path, t.frames, second), "timeout-too-short")
    assert found.evidence["psns"] == [20]


@pytest.mark.parametrize("late", [False, True])
def test_an_ack_of_what_was_not_repeated_yet_proves_no_loss_by_the_ack_before_it(late: bool) -> None:
    """The repeat of 100 and 101 draws an ACK of 103, so 104 was lost, but for an ACK of 107 behind it."""
    t = Talk()
    for psn in range(60, 100):
        t.send(psn)
        t.wait(5 * MS)
        t.ack(psn)
    for begin in (100, 104):
        t.send(begin, 4)
    t.wait(TIMEOUT)
    t.send(100, 4, only=[100, 101])
    t.wait(6 * MS)
    t.ack(103)
    if late:
        t.ack(107)
    t.wait(20 * MS)
    t.send(100, 4, only=[102, 103])
    t.send(104, 4)
    t.wait(6 * MS)
    t.ack(107)
    found = of_rule(t.findings(), "tail-loss")
    assert [f.evidence["psns"] for f in found] == [[104]]
    assert [f.evidence["or_acknowledgement_lost"] for f in found] == [int(late)]
