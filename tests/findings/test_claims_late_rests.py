"""The rest of a go-back that comes behind packets sent after it, as of a host with several queues: nothing of
it was lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from talk import MS, TIMEOUT, US, Talk, of_rule
from two_points import findings_of_two

from rocekit.findings import Finding


def told(findings: list[Finding]) -> list[str]:
    return [f.rule for f in findings if f.rule not in ("capture-truncated", "multipath")]


def behind_new_packets(talk: Talk | None = None, *, nak: bool = False, waits_ns: int = 200 * US) -> Talk:
    """PSN 102 is lost, the go-back comes in two parts, and new packets between them; then 125 is lost."""
    t = talk or Talk()
    t.send(-1)
    t.ack(-1)
    t.send(0, 20, lost=(2,), ackreq=0)
    t.nak(2)
    t.wait(100 * US)
    t.send(2, 10)
    t.send(20, 5)
    if nak:
        t.nak(12)
    t.wait(waits_ns)
    t.send(12, 8)
    t.ack(11)
    t.send(26, 4)
    t.nak(25)
    t.wait(100 * US)
    t.send(25, 5)
    t.ack(29)
    return t


@pytest.mark.parametrize("waits_ns", [200 * US, 2 * MS])
def test_it_is_no_loss_and_no_repeat(waits_ns: int) -> None:
    findings = behind_new_packets(waits_ns=waits_ns).findings()
    (loss,) = of_rule(findings, "loss")
    assert (loss.evidence["psns"], loss.evidence["lost_packets"]) == ([2, 25], 2)
    assert told(findings) == ["loss", "reordering"]


def test_a_nak_that_names_it_tells_of_a_loss() -> None:
    losses = of_rule(behind_new_packets(nak=True).findings(), "loss")
    assert 12 in [psn for f in losses for psn in f.evidence["psns"]]


def test_what_comes_after_a_timeout_is_a_repeat() -> None:
    findings = behind_new_packets(waits_ns=TIMEOUT).findings()
    assert any(12 in f.evidence.get("psns", ()) for f in findings if f.rule != "reordering")


def test_acks_of_copies_do_not_answer_what_comes_behind_them() -> None:
    """A requester repeats what had arrived, then goes back to what was lost: the ACKs are to the former."""
    t = Talk()
    for psn in range(0, 40, 4):
        t.send(psn, 4)
        t.wait(50 * US)
        t.ack(psn + 3)
    t.send(40, 2)
    t.wait(5 * MS)
    t.send(36, 6)
    t.wait(2 * MS)
    t.send(40, 2)
    for _ in range(4):
        t.ack(39)
    t.wait(50 * US)
    t.ack(41)
    (late,) = of_rule(t.findings(), "timeout-too-short")
    assert "probably came too late" in late.title
    assert "nothing was lost" not in late.title


@pytest.mark.parametrize("identified", [False, True])
def test_the_estimated_order_of_two_captures_tells_of_no_rest(tmp_path: Path, identified: bool) -> None:
    """Where identifications do not tell, two go-backs may be mixed in it."""
    t = behind_new_packets()
    if not identified:
        again = Talk()
        again.common["identification"] = 0
        t = behind_new_packets(again)
    rules = [f.rule for f in findings_of_two(tmp_path, t.frames, t.frames)]
    assert ("reordering" in rules) is identified
