"""Packets without identifications that came twice between two captures: a copy looks like one sent again.

What it is taken for begins a pass of its own, which lacks all between it and the packet that follows. Of a
run of rxe with 43 packets lost between the captures, and 42 doubled there, 518 were told as lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, US, Talk, settled
from two_points import findings_of_two


@pytest.mark.parametrize("doubles", [True, False])
def test_what_a_copy_leaves_out_was_not_lost(doubles: bool, tmp_path: Path) -> None:
    t = Talk()
    t.common = {"identification": 0}
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    lost, copies = [], []
    for first in range(20, 180, 32):
        sent = t.send(first, 32)
        t.wait(300 * US)
        t.nak(first + 20)
        lost.append(sent[first + 20])
        copies.append(sent[first + 5])
        t.wait(50 * US)
        t.send(first, 32, only=range(first + 20, first + 32))
        t.wait(300 * US)
        t.ack(first + 31)
        t.wait(MS)
    at_b = [f for n, f in enumerate(t.frames, 1) if n not in lost]
    if doubles:
        at_b += [Frame(t.frames[n - 1].data, t.frames[n - 1].time_ns + 100 * US) for n in copies]
        at_b.sort(key=lambda f: f.time_ns)
    found = [f for f in findings_of_two(tmp_path, t.frames, at_b) if "loss" in f.rule]
    if doubles:
        assert found
        assert all("probably" in f.title and "beyond" not in f.title for f in found)
        return
    assert [f.evidence["lost_packets"] for f in found] == [len(lost)]
    assert not any("probably" in f.title for f in found)
