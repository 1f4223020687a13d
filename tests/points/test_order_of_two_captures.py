"""Two captures that each miss packets: what is out of order one of them has out of order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import US, Talk

import rocekit

#: Packets that a capture misses, besides.
MISSED = 0.15
MESSAGES = 60
#: Responses of a READ.
PACKETS = 16


def captures(folder: Path, seed: int, *, late: int | None = None) -> list[Path]:
    """READs at the requester (a) and at the responder (b), nothing lost between; each misses packets.

    Args:
        late: the number of a frame that both have behind the next one.
    """
    rng = random.Random(seed)
    talk = Talk()
    for message in range(MESSAGES):
        psn = message * PACKETS
        talk.wait(rng.randrange(1, 30) * US)
        talk.read(psn, PACKETS)
        talk.wait(20 * US)
        talk.responses(psn, PACKETS)
    at: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    arrived_ns = {True: 0, False: 0}
    for number, frame in enumerate(talk.frames):
        is_request = number % (PACKETS + 1) == 0
        delay_ns = rng.randrange(2, 12) * US
        # A later packet of a direction never comes before an earlier one.
        arrived_ns[is_request] = max(arrived_ns[is_request] + 100, frame.time_ns + delay_ns)
        first, second = ("a", "b") if is_request else ("b", "a")
        at[first].append((frame.time_ns, number))
        at[second].append((arrived_ns[is_request], number))
    files = []
    for name, packets in at.items():
        times = {number: time_ns for time_ns, number in packets}
        if late is not None:
            times[late] = times[late + 1] + 50
        kept = [
            Frame(talk.frames[n].data, time_ns)
            for n, time_ns in sorted(times.items(), key=lambda item: item[1])
            if (late is not None and n in (late, late + 1)) or rng.random() >= MISSED
        ]
        files.append(folder / f"{name}.pcap")
        files[-1].write_bytes(pcap(kept, unit="ns"))
    return files


@pytest.mark.parametrize("seed", range(12))
def test_packets_of_one_capture_each_are_in_no_order(tmp_path: Path, seed: int) -> None:
    found = rocekit.analyze(*captures(tmp_path, seed))
    assert "reordering" not in [f.rule for f in found.findings], [str(f) for f in found.findings]


@pytest.mark.parametrize("seed", range(6))
def test_what_one_capture_has_out_of_order_is(tmp_path: Path, seed: int) -> None:
    found = rocekit.analyze(*captures(tmp_path, seed, late=105))
    told = [f for f in found.findings if f.rule == "reordering"]
    assert [f.evidence["overtaken_packets"] for f in told] == [1], [str(f) for f in found.findings]
