"""What the finding ``reordering`` counts: packets that were overtaken, and packets sent again because of it.

A sender numbers its IPv4 packets, so identifications tell a packet that was overtaken from one sent again.
On rxe behind netem's reorder, the number of overtaken packets is exactly that of the two captures compared.
"""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, named, only, settled


def overtaken(*, ids: bool = True, naks: bool = True) -> Talk:
    """PSN 102 arrives behind 103 to 106; the responder sends a NAK for it, and 102 to 107 come again."""
    t = Talk()
    if not ids:
        t.common = {"identification": 0}
    settled(t, 98)
    settled(t, 99)
    t.send(100, 8, only=[100, 101])
    held = t.ident = t.ident + 1
    t.send(100, 8, only=[103, 104])
    if naks:
        t.nak(102)
    t.send(100, 8, only=[105, 106])
    t.send(100, 8, only=[102], identification=held if ids else 0)
    t.send(100, 8, only=[107])
    if naks:
        t.wait(100 * US)
        t.send(100, 8, only=range(102, 108))
    t.ack(107)
    return t


def test_overtaken_and_sent_again_are_two_numbers() -> None:
    found = only(overtaken().findings(), "reordering")
    assert found.evidence["overtaken_packets"] == 1
    assert found.evidence["overtaken_by"] == "identification"
    assert found.evidence["sent_again_packets"] == 6
    assert found.title.startswith("PSN 102 arrived out of order")
    assert "6 packets sent again" in found.title


def test_without_identifications_packets_that_filled_a_gap_are_counted() -> None:
    (found,) = [f for f in overtaken(ids=False, naks=False).findings() if f.rule == "reordering"]
    assert found.evidence["overtaken_packets"] == 1
    assert found.evidence["overtaken_by"] == "sequence"
    assert found.evidence["sent_again_packets"] == 0


def test_packets_sent_again_are_overtaken_too() -> None:
    t = overtaken()
    t.send(108, 8, only=[108])
    held = t.ident = t.ident + 1
    t.send(108, 8, only=[110])
    t.nak(109)
    t.send(108, 8, only=[109], identification=held)
    t.wait(100 * US)
    held = t.ident = t.ident + 1
    t.send(108, 8, only=[110, 111])
    t.send(108, 8, only=[109], identification=held)
    t.send(108, 8, only=range(112, 116))
    t.ack(115)
    (found,) = [f for f in t.findings() if f.rule == "reordering"]
    assert found.evidence["overtaken_packets"] == 3
    assert found.title.startswith("3 packets arrived out of order")


def test_a_gap_filled_by_a_packet_sent_later_is_no_reordering() -> None:
    """The NAK is not in the capture; 102 has the newest identification: it was sent again."""
    t = Talk()
    settled(t, 98)
    settled(t, 99)
    t.send(100, 8, lost={102})
    t.wait(5 * MS)
    t.send(100, 8, only=[102])
    t.ack(107)
    assert "reordering" not in named(t.findings())
    assert not [f for f in t.findings() if f.rule == "reordering"]


def test_a_timer_long_after_an_obeyed_nak_tells_of_no_reordering() -> None:
    """On rxe a timer ran out as the ACK of the last message came, 0.3 s after a loss and its go-back: the
    cause of that go-back is not this one's, and nothing was overtaken.
    """
    t = Talk()
    t.connect(primary_local_ack_timeout=16)
    for psn in range(8):
        settled(t, psn)
    t.send(8, 8, lost=[10])
    t.nak(10)
    t.wait(50 * US)
    t.send(8, 8, only=range(10, 16))
    t.ack(15)
    for psn in range(16, 40):
        t.wait(10 * MS)
        settled(t, psn)
    t.send(40, 4, only=range(40, 43))
    t.wait(4 * MS)
    t.send(40, 4, only=[43])
    t.wait(230 * US)
    t.ack(43)
    t.wait(50 * US)
    t.send(40, 4)
    t.ack(43)
    findings = t.findings()
    assert named(findings) == ["loss"], [str(f) for f in findings]
    (needless,) = (f for f in findings if f.rule == "needless-repeat")
    assert needless.evidence["psns"] == [40]
    assert "NAK" not in needless.evidence["cases"][0]["repeat_cause"].replace("a NAK that is not", "")


@pytest.mark.parametrize("behind", [2, 7])
def test_only_a_packet_just_behind_an_overtaken_one_was_probably_thrown_away(behind: int) -> None:
    """1 came late, as a NAK for a later PSN shows: it had been overtaken. Why was the later one refused?

    Right behind 1 it came before it too. Else it had overtaken all between, which were taken, or was lost.
    """
    t = Talk()
    t.connect()
    for psn in range(3):
        t.send(psn)
        t.ack(psn)
        t.wait(100 * US)
    t.send(3, 16)
    t.wait(200 * US)
    t.nak(4)
    t.wait(20 * US)
    t.nak(4 + behind)
    t.wait(100 * US)
    t.send(3, 16, only=range(4 + behind, 19))
    t.wait(100 * US)
    t.ack(18)
    findings = t.findings()
    if behind == 2:
        assert named(findings) == ["reordering"]
        return
    assert sorted(named(findings)) == ["loss", "reordering"]
    lost = next(f for f in findings if f.rule == "loss")
    assert lost.evidence["psns"] == [11]
    assert "probably" in lost.title


@pytest.mark.parametrize("common", [{}, {"identification": 0}])
def test_responses_sent_again_for_a_read_that_the_capture_lacks_are_not_late(common: dict[str, int]) -> None:
    """PSN 103 was lost. The request that came again is not in the capture, its responses are."""
    t = Talk()
    t.common = common
    for psn in range(60, 100, 4):
        t.read(psn, 4)
        t.responses(psn, 4)
        t.wait(100 * US)
    t.read(100, 8)
    t.responses(100, 8, lost=[103])
    t.wait(10 * MS)
    t.responses(100, 8)
    t.wait(100 * US)
    t.read(108, 4)
    t.responses(108, 4)
    assert "reordering" not in [f.rule for f in t.findings()]
