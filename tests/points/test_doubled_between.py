"""Two captures with a switch between them that doubles packets: each has one direction once, and one twice.

Between two rxe devices, with each packet doubled and a few copies lost, the captures were "not the same
traffic", and their packets were counted together: READs with a loss and five of six responses sent again.
"""

from __future__ import annotations

from pathlib import Path

from capture_bytes import Frame, pcap
from talk import US, A, B, Talk, settled
from two_points import source

import rocekit

FLIGHT, COPY = 5 * US, 2 * US


def doubled(t: Talk, *, lost_copies: frozenset[int]) -> tuple[list[Frame], list[Frame]]:
    """What captures at A and at B have, in order; of some frames (by number) no copy is made."""
    ends: tuple[list[Frame], list[Frame]] = ([], [])
    for number, f in enumerate(t.frames, 1):
        for host, end in zip((A, B), ends, strict=True):
            if source(f.data) == host:
                end.append(f)
                continue
            end.append(Frame(f.data, f.time_ns + FLIGHT))
            if number not in lost_copies:
                end.append(Frame(f.data, f.time_ns + FLIGHT + COPY))
    return sorted(ends[0], key=lambda f: f.time_ns), sorted(ends[1], key=lambda f: f.time_ns)


def test_they_are_of_the_same_traffic_and_nothing_was_lost(tmp_path: Path) -> None:
    t = settled(Talk(), 99)
    for psn in range(100, 160):
        t.wait(50 * US)
        t.read(psn, 1)
        t.wait(20 * US)
        t.responses(psn, 1)
    paths = []
    for name, frames in zip(("va", "vb"), doubled(t, lost_copies=frozenset({20, 31, 44})), strict=True):
        paths.append(tmp_path / f"{name}.pcap")
        paths[-1].write_bytes(pcap(frames, unit="ns"))
    document = rocekit.analyze(*paths).to_dict()
    assert document["capture"]["relation"] == "same"
    assert [f["rule"] for f in document["findings"] if f["severity"] != "info"] == []
    assert sum(transfer["retransmitted_packets"] for transfer in document["transfers"]) == 0
