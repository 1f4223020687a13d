"""The order of two captures by delays, where the ports of a tap have clocks of their own.

Of a drawn experiment all losses between two captures were told as losses beyond the first, since the delays
of both directions together were negative.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import US, Talk, settled
from two_points import analysis_of_two

import rocekit

FLIGHT, APART = 20 * US, 30 * US


def captured(folder: Path, *, lose: int, late_ns: int, again: bool = True) -> rocekit.Analysis:
    """Captures at both hosts. The second lacks some packets; each stamps late what its host sends."""
    t, lost = Talk(), set[int]()
    for psn in range(60):
        if psn % 10 == 5 and len(lost) < lose:
            lost |= set(t.send(psn).values())
            t.wait(60 * US)
            if again:
                t.send(psn + 1)
                t.wait(60 * US)
                t.nak(psn)
                t.wait(60 * US)
                t.send(psn)
                t.wait(60 * US)
            t.ack(psn)
        else:
            settled(t, psn)
        t.wait(100 * US)
    paths = []
    for place, name in enumerate(("va", "vb")):
        frames = []
        for number, f in enumerate(t.frames, 1):
            is_own = (f.data[26:30] == b"\n\t\0\1") == (place == 0)
            if place == 0 or number not in lost:
                frames.append(Frame(f.data, f.time_ns + (late_ns if is_own else FLIGHT), f.wirelen))
        path = folder / f"{name}.pcap"
        path.write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
        paths.append(path)
    return rocekit.analyze(*paths)


def orders(analysis: rocekit.Analysis) -> set[tuple[int, int, str]]:
    assert analysis.capture.paths is not None
    return {(p.first, p.second, p.by) for p in analysis.capture.paths.every if p.src == "10.9.0.1"}


def test_delays_tell_the_order(tmp_path: Path) -> None:
    assert orders(captured(tmp_path, lose=6, late_ns=0)) == {(0, 1, "delays")}


def test_packets_that_the_first_one_lacks_and_that_come_again_contradict_it(tmp_path: Path) -> None:
    analysis = captured(tmp_path, lose=6, late_ns=APART)
    assert orders(analysis) == {(0, 1, "files")}
    assert "beyond" not in str(analysis)


@pytest.mark.parametrize("lose", [0, 6])
def test_those_that_a_capture_merely_missed_do_not(tmp_path: Path, lose: int) -> None:
    assert orders(captured(tmp_path, lose=lose, late_ns=APART, again=False)) == {(1, 0, "delays")}


def test_copies_that_the_network_makes_between_do_not(tmp_path: Path) -> None:
    t = Talk()
    for psn in range(60):
        settled(t, psn)
        t.wait(100 * US)
    copies = [Frame(f.data, f.time_ns + 300) for f in t.frames if f.data[26:30] == b"\n\t\0\1"][20:40]
    analysis = analysis_of_two(tmp_path, t.frames, [*t.frames, *copies])
    assert orders(analysis) == {(0, 1, "delays")}
    assert "0 never reached vb.pcap, 0 were overtaken, 20 came twice" in str(analysis)
