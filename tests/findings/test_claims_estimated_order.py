"""What only one of two captures has stands among the others where it probably passed: that proves no order.

A host may stamp what comes to it when it serves its queue, and what it sends at once, so that an answer
stands before what it answers. Then the estimated times are far from the true ones.
"""

from __future__ import annotations

import random
from operator import attrgetter
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, TIMEOUT, US, Talk

import rocekit


def losses(rng: random.Random) -> tuple[Talk, set[int]]:
    """SENDs of four packets; of each third a packet is lost, and sent again after a NAK, then a timeout."""
    t, lost = Talk(), set()
    for first in range(0, 48, 4):
        sent = t.send(first, 4)
        t.wait(200 * US)
        if first % 12 < 8:
            t.ack(first + 3)
        else:
            psn = rng.randrange(first, first + 4)
            lost.add(sent[psn])
            if psn < first + 3:
                t.nak(psn)
                t.wait(300 * US)
                t.send(first, 4, only=range(psn, rng.randrange(psn + 1, first + 5)))
            t.wait(TIMEOUT)
            t.send(first, 4, only=range(psn, first + 4))
            t.wait(200 * US)
            for acked in range(psn, first + 4):
                t.ack(acked)
        t.wait(MS)
    return t, lost


def captures(folder: Path, seed: int) -> list[Path]:
    """At a half of the packets, and all of them at b, each in the order in which it was sent."""
    rng = random.Random(seed)
    talk, lost = losses(rng)
    at_a, at_b, came_ns = [], [], {1: 0, 2: 0}
    for number, frame in enumerate(talk.frames, 1):
        sender = frame.data[29]
        late_ns = rng.choice([20, 30, 40, 60]) * US if rng.random() < 0.7 else rng.randrange(1, 15) * MS
        came_ns[sender] = max(came_ns[sender] + 1, frame.time_ns + late_ns)
        here, there = frame.time_ns, came_ns[sender]
        if rng.random() < 0.5:
            at_a.append(Frame(frame.data, here if sender == 1 else there))
        if number not in lost:
            at_b.append(Frame(frame.data, there if sender == 1 else here))
    files = [folder / "a.pcap", folder / "b.pcap"]
    for file, frames in zip(files, (at_a, at_b), strict=True):
        file.write_bytes(pcap(sorted(frames, key=attrgetter("time_ns")), unit="ns"))
    return files


@pytest.mark.parametrize("seed", range(12))
def test_no_packet_is_out_of_order_by_estimated_times(tmp_path: Path, seed: int) -> None:
    found = rocekit.analyze(*captures(tmp_path, seed)).findings
    assert "reordering" not in [finding.rule for finding in found], [str(finding) for finding in found]
