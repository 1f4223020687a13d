"""Responses that a capture has not, and what looks like one where packets are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import US, Talk, of_rule
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
