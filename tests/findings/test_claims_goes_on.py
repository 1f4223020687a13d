"""A requester that goes on behind what it sent again: what the first answer then says of the first copies."""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, of_rule, only, settled


def gone_on(*, first: int, repeated: int, answer: int) -> Talk:
    """100 to 102 are sent; ``first`` to ``repeated`` again after a silence, then 103; ``answer`` comes."""
    talk = settled(Talk(), 99)
    talk.wait(1 * MS)
    for psn in (100, 101, 102):
        talk.send(psn)
    talk.wait(200 * MS)
    for psn in range(first, repeated + 1):
        talk.send(psn)
    talk.send(103)
    talk.wait(20 * US)
    talk.ack(answer)
    return talk


@pytest.mark.parametrize("answer", [101, 102, 103])
def test_an_ack_of_what_was_just_sent_does_not_show_that_the_first_copies_arrived(answer: int) -> None:
    """All three are sent again before the ACK, so that it may be to these copies, or to 103 behind them."""
    findings = gone_on(first=100, repeated=102, answer=answer).findings()
    assert not of_rule(findings, "ack-loss")
    found = only(findings, "tail-loss")
    assert "or its response" in found.title or found.evidence["psns"] == [answer + 1]


def test_an_ack_of_what_was_not_sent_again_yet_shows_that_the_first_copies_arrived() -> None:
    talk = settled(Talk(), 99)
    talk.wait(1 * MS)
    for psn in (100, 101, 102):
        talk.send(psn)
    talk.wait(200 * MS)
    talk.send(100)
    talk.wait(20 * US)
    talk.ack(102)
    found = only(talk.findings(), "ack-loss")
    assert found.evidence["count"] == 1
    assert "probably" not in found.title
