"""What a response does not show: it is cut, or what it is to is not in the capture."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, US, Talk, of_rule
from two_points import findings_of_two

import rocekit


def going() -> Talk:
    t = Talk()
    for psn in range(100, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    return t


@pytest.mark.parametrize("missed", [False, True])
def test_acks_of_what_the_capture_has_only_behind_the_repeat_prove_no_lateness(missed: bool) -> None:
    """Eight packets are sent, and all again: eight ACKs. The capture has but four of the first eight."""
    t = going()
    t.send(140, 8, only=range(140, 144) if missed else None)
    t.wait(270 * MS)
    t.send(140, 8)
    t.wait(20 * US)
    for _ in range(8 if missed else 9):
        t.ack(147)
    late = [f for f in t.findings() if f.rule == "timeout-too-short"]
    assert any("nothing was lost" in f.title for f in late) is not missed


def test_a_response_without_its_aeth_may_be_a_nak(tmp_path: Path) -> None:
    """Cut behind the BTH: that 143 and not 141 was acknowledged, nobody knows, nor that an ACK was lost."""
    t = going()
    t.send(140, 8, lost={143})
    t.wait(20 * US)
    t.nak(143)
    t.wait(40 * MS)
    t.send(143, 8, only=range(143, 148))
    t.wait(20 * US)
    t.ack(147)
    cut = [Frame(f.data[:54], f.time_ns, len(f.data)) for f in t.frames]
    for found in findings_of_two(tmp_path, cut, cut):
        if found.rule == "ack-loss":
            assert "probably" in found.title, found.title
            assert not found.evidence.get("places")


@pytest.mark.parametrize("late", [False, True])
def test_a_nak_that_the_file_has_before_the_go_back_need_not_be_of_it(tmp_path: Path, late: bool) -> None:
    """Its time is that of a slow queue. 143 was lost, and the go-back loses 146: two NAKs, of two passes."""
    t = going()
    t.send(140, 20, lost={143})
    t.wait(20 * US)
    nak = t.nak(143) - 1
    t.wait(100 * US)
    t.send(140, 20, only=range(143, 160), lost={146})
    t.wait(200 * US)
    t.nak(146)
    t.wait(100 * US)
    t.send(140, 20, only=range(146, 160))
    t.wait(20 * US)
    t.ack(159)
    if late:
        t.frames[nak] = Frame(t.frames[nak].data, t.frames[nak].time_ns + 250 * US)
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(t.frames, unit="ns"))
    findings = rocekit.analyze(path, journals=[]).findings
    assert not of_rule(findings, "reordering")
    (loss,) = of_rule(findings, "loss")
    assert loss.evidence["psns"] == [143, 146]
    assert ("by its time the NAK came behind" in loss.advice) is late
