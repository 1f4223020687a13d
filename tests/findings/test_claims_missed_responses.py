"""Responses that a capture has not, and what looks like one where packets are cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import TIMEOUT, US, Talk, of_rule
from two_points import findings_of_two


@pytest.mark.parametrize("missed", [0, 3])
def test_a_capture_that_misses_responses_shows_no_loss_by_another_one_that_it_lacks(missed: int) -> None:
    """The response 203 is asked for again; it may have come late (``drawn-1231`` of the truth bench)."""
    t = Talk()
    for k in range(20):
        t.read(120 + 4 * k, 4)
        t.wait(50 * US)
        t.responses(120 + 4 * k, 4, lost=(121 + 4 * k,) if k < missed else ())
        t.wait(50 * US)
    t.read(200, 8)
    t.wait(50 * US)
    t.responses(200, 8, lost=(203,))
    t.wait(100 * US)
    t.read(200, 8, skip=3)
    t.wait(50 * US)
    t.responses(200, 8, skip=3)
    (found,) = of_rule(t.findings(), "implied-nak")
    assert ("probably" in found.title) == bool(missed)
    assert ("what it does not have need not be lost" in found.advice) == bool(missed)
    assert found.evidence["lost_before_capture_point"] == int(not missed)


def test_an_acknowledge_of_an_atomic_is_a_nak_though_it_is_cut(tmp_path: Path) -> None:
    """Its answer would be an ATOMIC ACKNOWLEDGE (``drawn-1204`` of the truth bench, cut behind the BTH)."""
    t = Talk()
    for psn in range(100, 110):
        t.atomic(psn)
        t.wait(50 * US)
        t.atomic_answer(psn)
    t.atomic(110)
    t.atomic(111)
    t.wait(50 * US)
    t.nak(110)
    t.wait(300 * US)
    for psn in (110, 111):
        t.atomic(psn)
        t.wait(50 * US)
        t.atomic_answer(psn)
    cut = [Frame(f.data[:54], f.time_ns, len(f.data)) for f in t.frames]
    findings = findings_of_two(tmp_path, cut, cut)
    assert not of_rule(findings, "implied-nak")
    (loss,) = of_rule(findings, "loss")
    assert "probably" in loss.title
    assert loss.evidence["psns"] == [110]


@pytest.mark.parametrize("missed", [0, 3])
def test_a_late_response_may_be_to_a_request_that_a_capture_lacks_where_it_lacks_others(missed: int) -> None:
    """The requester asks again from 203 on, which came behind 207 (``drawn-613`` of the truth bench)."""
    t = Talk()
    for psn in range(100, 140):
        t.send(psn, lost={psn} if 110 <= psn < 110 + missed else ())
        t.wait(20 * US)
        t.ack(psn)
    t.read(140, 64)
    t.wait(50 * US)
    sent = t.responses(140, 64)
    late = t.frames.pop(sent[150] - 1)
    t.frames.append(replace(late, time_ns=t.now + 2 * US))
    t.wait(100 * US)
    t.read(140, 64, skip=10)
    t.wait(50 * US)
    t.responses(140, 64, skip=10)
    (found,) = of_rule(t.findings(), "reordering")
    assert found.evidence["of_responses"]
    assert ("probably" in found.title) == bool(missed)
    assert ("may be to a request that it lacks" in found.advice) == bool(missed)


@pytest.mark.parametrize("missed", [0, 2])
def test_more_acks_than_packets_that_were_sent_again_prove_nothing_of_a_repeat_in_mid_message(
    missed: int,
) -> None:
    """Each packet of a repeat draws an ACK, of those that the capture lacks, too (``drawn-1021`` of the truth
    bench, with a part of the captures gone).
    """
    t = Talk()
    for psn in range(60, 100):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    t.send(100, 4)
    t.wait(TIMEOUT)
    t.send(100, 4, only=range(100 + missed, 103))
    t.wait(50 * US)
    for _ in range(4):
        t.ack(103)
    (found,) = of_rule(t.findings(), "timeout-too-short")
    assert ("probably" in found.title) == bool(missed)
    assert ("the repeat begins in mid message" in found.advice) == bool(missed)
    assert found.title.endswith("or the requests were lost") == bool(missed)


def test_an_atomic_acknowledge_is_no_nak_though_it_is_cut(tmp_path: Path) -> None:
    """The first answer to 110 was lost between the captures."""
    t = Talk()
    t.send(99)
    t.wait(50 * US)
    t.ack(99)
    for psn in range(100, 110):
        t.atomic(psn)
        t.wait(50 * US)
        t.atomic_answer(psn)
    t.atomic(110)
    t.wait(50 * US)
    lost = t.atomic_answer(110)
    t.wait(TIMEOUT)
    t.atomic(110)
    t.wait(50 * US)
    t.atomic_answer(110)
    cut = [Frame(f.data[:54], f.time_ns, len(f.data)) for f in t.frames]
    at_a = [f for n, f in enumerate(cut, 1) if n != lost]
    (found,) = of_rule(findings_of_two(tmp_path, at_a, cut), "implied-nak")
    assert "probably" not in found.title
    assert found.evidence["lost_between_capture_points"] == 1
