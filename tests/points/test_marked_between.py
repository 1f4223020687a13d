"""A packet that a switch marked between two captures is marked, though the first has it without the mark."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import US, Talk

import rocekit
from rocekit.wire.build import build_frame

CE, ECT = 3, 2


def _captures(marked: int, folder: Path) -> list[Path]:
    """SENDs, the first of which are marked on their way to B; no CNP answers."""
    at_a, at_b = Talk(), Talk()
    for t in (at_a, at_b):
        t.connect()
        for psn in range(40):
            src, dst, qpn = t.hosts["a"]
            ecn = CE if t is at_b and psn < marked else ECT
            t.raw(
                build_frame(
                    "RC_SEND_ONLY",
                    src=src,
                    dst=dst,
                    dest_qpn=qpn,
                    psn=psn,
                    payload=bytes(1024),
                    ackreq=1,
                    ecn=ecn,
                    identification=psn + 1,
                )
            )
            t.wait(5 * US)
            t.ack(psn)
            t.wait(20 * US)
    paths = [folder / "va.pcap", folder / "vb.pcap"]
    for path, t, late in zip(paths, (at_a, at_b), (0, 2 * US), strict=True):
        sender = t.frames[0].data[26:30]
        moved = [Frame(f.data, f.time_ns + (late if f.data[26:30] == sender else -late)) for f in t.frames]
        path.write_bytes(pcap(moved, unit="ns"))
    return paths


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("marked", [0, 7])
def test_marks_of_the_second_capture_count(marked: int, turned: bool, tmp_path: Path) -> None:
    paths = _captures(marked, tmp_path)
    analysis = rocekit.analyze(*(paths[::-1] if turned else paths), journals=())
    said = analysis.to_dict()
    assert [c["ce_marked"] for c in said["connections"] if c["transport"] == "RC"] == [marked]
    found = [f for f in analysis.findings if f.rule == "ecn-unanswered"]
    assert [f.evidence["marked_packets"] for f in found] == ([marked] if marked else [])
    path = next(p for p in said["paths"] if p["src"] == "10.9.0.1")
    assert (path["missing"], path["packets"]) == (0, 42)
