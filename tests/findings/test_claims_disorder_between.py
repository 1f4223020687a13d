"""Packets that come twice, or late, between two captures: what only their estimated order says is left open.

Of a run of rxe a copy came 38 ms behind its original. It was taken for one sent again, and all that this pass
seemed to lack for lost before the first capture, or for the loss that a timeout noticed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, US, A, Talk, settled
from two_points import findings_of_two


@pytest.mark.parametrize("late_ms", [0, 38])
def test_a_copy_that_comes_late_begins_no_pass_that_lost_packets(late_ms: int, tmp_path: Path) -> None:
    t = Talk()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    sent = t.send(20, 32)
    t.wait(40 * MS)
    sent |= t.send(52, 96)
    t.wait(300 * US)
    t.nak(70)
    t.wait(50 * US)
    t.send(52, 96, only=range(70, 148))
    t.wait(300 * US)
    t.ack(147)
    at_b = [f for n, f in enumerate(t.frames, 1) if n != sent[70]]
    for psn, after_ns in ((22, 20 * US), (26, 20 * US), (30, 20 * US), (45, late_ms * MS)):
        original = t.frames[sent[psn] - 1]
        at_b.append(Frame(original.data, original.time_ns + after_ns + 40 * (late_ms and US)))
    if late_ms:
        at_b[-1] = Frame(at_b[-1].data, t.frames[sent[130] - 1].time_ns)
    findings = findings_of_two(tmp_path, t.frames, sorted(at_b, key=lambda f: f.time_ns))
    found = next(f for f in findings if f.rule == "loss")
    assert found.evidence["lost_packets"] == 1, found.title
    assert f"between {A} and" not in found.title
    assert ("probably" in found.title) == bool(late_ms)
