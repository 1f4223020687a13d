"""A READ request in the capture once, behind its only response: two clocks or queues, and no loss."""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, named, settled

from rocekit.findings.cause_words import repeat_cause


def around(early: int, *, packets: int = 1, wait_ns: int = 50 * US) -> Talk:
    """READs that were each answered; the requests of ``early`` of them are behind their responses."""
    t = settled(Talk(), 99)
    t.read(100, 1)
    t.responses(100, 1)
    p = 101
    for i in range(3):
        if i == 1 and early:
            for n in range(early):
                t.responses(p + n * packets, packets)
            t.wait(wait_ns)
            for n in range(early):
                t.read(p + n * packets, packets)
            p += early * packets
        else:
            t.read(p, packets)
            t.responses(p, packets)
            p += packets
        t.wait(100 * US)
    t.write(p, 3)
    t.ack(p + 2)
    return t


@pytest.mark.parametrize("early", [1, 2])
@pytest.mark.parametrize("packets", [1, 3])
@pytest.mark.parametrize("wait_ns", [0, 50 * US, 500 * US])
def test_a_request_behind_its_only_response_is_no_loss(early: int, packets: int, wait_ns: int) -> None:
    talk = around(early, packets=packets, wait_ns=wait_ns)
    evidence = talk.evidence()
    assert evidence.stories == []
    (found,) = talk.findings()
    assert found.rule == "capture-gap"
    assert found.evidence["requests_behind_responses"] == early
    assert "behind the response" in found.title
    assert "without" not in found.title
    words = {
        repeat_cause(e, tr.connection, tr.side, tr)
        for tr in evidence.transfers
        for e in tr.events
        if e.kind == "repeat"
    }
    assert words == {"or in the capture behind its only response"}
    assert [tr.retransmitted_packets for tr in evidence.transfers] == [0] * len(evidence.transfers)
    assert [c.retransmitted_packets for c in evidence.connections] == [0]


def test_a_response_that_comes_again_answers_a_request_sent_again() -> None:
    t = settled(Talk(), 99)
    t.responses(100, 1)
    t.wait(70 * MS)
    t.read(100, 1)
    t.responses(100, 1)
    t.read(101, 1)
    t.responses(101, 1)
    assert not any("requests_behind_responses" in f.evidence for f in t.findings())


def test_without_a_later_answer_the_request_may_have_been_sent_again() -> None:
    t = settled(Talk(), 99)
    t.read(100, 1)
    t.responses(100, 1)
    t.responses(101, 1)
    t.wait(70 * MS)
    t.read(101, 1)
    assert not any("requests_behind_responses" in f.evidence for f in t.findings())
    assert "implied-nak" in named(t.findings())
    assert [c.retransmitted_packets for c in t.evidence().connections] == [1]
