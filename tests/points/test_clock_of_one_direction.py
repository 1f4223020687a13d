"""Two captures of one direction only, whose clocks nothing bounds: a lost packet is not out of order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, US, Talk

import rocekit

LOST_ON_THE_WAY = range(7, 200, 9)


def captures(folder: Path, *, ahead_ns: int, drift: float, seed: int, missed: float = 0) -> list[Path]:
    """At a and at b: requests that are held up for 1 µs to 1 ms; of those that are lost b has none.

    Args:
        missed: the share of packets that each capture misses besides.
    """
    rng = random.Random(seed)
    talk, lost = Talk(), set()
    for psn in range(200):
        talk.wait(rng.randrange(30) * US)
        first = talk.atomic(psn)
        if psn in LOST_ON_THE_WAY:
            lost.add(first)
            talk.atomic(psn + 1)
            talk.wait(300 * US)
            talk.atomic(psn)
    start, arrived_ns, there = talk.frames[0].time_ns, 0, []
    for number, frame in enumerate(talk.frames, 1):
        arrived_ns = max(arrived_ns + 1, frame.time_ns + round(US * 1000 ** rng.random()))
        if number not in lost:
            own_ns = arrived_ns + ahead_ns + round((arrived_ns - start) * drift)
            there.append(Frame(frame.data, own_ns))
    files = [folder / "a.pcap", folder / "b.pcap"]
    for file, frames in zip(files, (talk.frames, there), strict=True):
        file.write_bytes(pcap([f for f in frames if rng.random() >= missed], unit="ns"))
    return files


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drift", [0.0, 50e-6, -50e-6])
@pytest.mark.parametrize("ahead_ns", [0, 3 * MS, -3 * MS])
@pytest.mark.parametrize("turned", [False, True])
def test_nothing_is_out_of_order(
    tmp_path: Path, seed: int, drift: float, ahead_ns: int, *, turned: bool
) -> None:
    files = captures(tmp_path, ahead_ns=ahead_ns, drift=drift, seed=seed)
    found = rocekit.analyze(*(files[::-1] if turned else files))
    assert "reordering" not in [f.rule for f in found.findings], [str(f) for f in found.findings]


@pytest.mark.parametrize("seed", range(8))
def test_not_even_where_both_captures_miss_packets(tmp_path: Path, seed: int) -> None:
    """What only the second capture has stands behind what only the first one has, as late as it came."""
    found = rocekit.analyze(*captures(tmp_path, ahead_ns=3 * MS, drift=0.0, seed=seed, missed=0.02))
    assert "reordering" not in [f.rule for f in found.findings], [str(f) for f in found.findings]


def test_each_packet_passes_the_first_capture_first(tmp_path: Path) -> None:
    """The least difference is the clocks' own: all others are packets that were held up."""
    files = captures(tmp_path, ahead_ns=3 * MS, drift=0.0, seed=1)
    clock = rocekit.analyze(*files).to_dict()["capture"]["clocks"][-1]
    assert 3 * MS < clock["offset_ns"] < 3 * MS + 3 * US
    assert clock["bound_ns"] is None


@pytest.mark.parametrize("ahead_ns", [0, 5 * MS, -5 * MS])
@pytest.mark.parametrize("turned", [False, True])
def test_one_datagram_that_is_late_is_no_other_one(tmp_path: Path, ahead_ns: int, *, turned: bool) -> None:
    """Without identifications. The capture in front misses one, and so seems to be the one behind."""
    rng = random.Random(1)
    talk = Talk(transport="UD")
    for psn in range(100):
        talk.wait(600 * US)
        talk.send(psn, identification=0)
    took = [470 * US, 10 * MS, *(rng.randrange(20, 40) * US for _ in range(98))]
    there = [Frame(f.data, f.time_ns + late + ahead_ns) for f, late in zip(talk.frames, took, strict=True)]
    here = [*talk.frames[:50], *talk.frames[51:]]
    files = [tmp_path / "a.pcap", tmp_path / "b.pcap"]
    for file, frames in zip(files, (here, there), strict=True):
        file.write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
    analysis = rocekit.analyze(*(files[::-1] if turned else files))
    assert analysis.capture.copies == 99
    assert "duplicate" not in [finding.rule for finding in analysis.findings]


@pytest.mark.parametrize("held_up", [0, 99])
@pytest.mark.parametrize("turned", [False, True])
def test_of_packets_that_both_have_one_that_was_held_up_is_none_of_one_capture_alone(
    tmp_path: Path, held_up: int, *, turned: bool
) -> None:
    """One at the edge of the time that both cover is in it at one of the two only."""
    talk = Talk(transport="UC")
    for psn in range(100):
        talk.wait(600 * US)
        talk.send(psn, identification=1000 + psn)
    took = [(30 + psn % 7) * US for psn in range(100)]
    took[held_up], took[50] = 470 * US, 9 * MS
    there = [Frame(f.data, f.time_ns + late) for f, late in zip(talk.frames, took, strict=True)]
    files = [tmp_path / "a.pcap", tmp_path / "b.pcap"]
    for file, frames in zip(files, (talk.frames, there), strict=True):
        file.write_bytes(pcap(sorted(frames, key=lambda f: f.time_ns), unit="ns"))
    clock = rocekit.analyze(*(files[::-1] if turned else files)).to_dict()["capture"]["clocks"][-1]
    assert abs(clock["offset_ns"]) == 30 * US


def halves_of_uc(folder: Path, *, seed: int = 5, late: int = -1) -> list[Path]:
    """A message of UC at two points, each of which misses half of it; now and then packets are held up.

    Args:
        late: a PSN that three later ones overtake before the first point.
    """
    rng, talk = random.Random(seed), Talk(transport="UC")
    psns = list(range(300))
    if late >= 0:
        psns.insert(late + 3, psns.pop(late))
    for psn in psns:
        talk.wait(200 * US)
        talk.send(0, 300, only=[psn], identification=1000 + psn)
    arrived_ns, there = 0, []
    for frame in talk.frames:
        held_up_ns = 2 * MS if rng.random() < 0.02 else 0
        arrived_ns = max(arrived_ns + 1, frame.time_ns + rng.randrange(30, 40) * US + held_up_ns)
        there.append(Frame(frame.data, arrived_ns))
    files = [folder / "a.pcap", folder / "b.pcap"]
    for file, frames in zip(files, (talk.frames, there), strict=True):
        kept = [f for n, f in enumerate(frames) if rng.random() < 0.5 or 0 <= late - 5 < n < late + 5]
        file.write_bytes(pcap(kept, unit="ns"))
    return files


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("turned", [False, True])
def test_packets_that_were_held_up_tell_the_order_where_both_miss_half(
    tmp_path: Path, seed: int, *, turned: bool
) -> None:
    """Which of two captures has more says nothing where each misses about as many by chance."""
    files = halves_of_uc(tmp_path, seed=seed)
    found = rocekit.analyze(*(files[::-1] if turned else files))
    clock = found.to_dict()["capture"]["clocks"][-1]
    assert abs(clock["offset_ns"]) < 40 * US
    assert clock["bound_ns"] is None
    assert "taken as" in str(found)


@pytest.mark.parametrize("seed", range(6))
def test_no_order_is_told_of_uc_packets_of_which_each_point_has_another(tmp_path: Path, seed: int) -> None:
    found = rocekit.analyze(*halves_of_uc(tmp_path, seed=seed))
    assert "reordering" not in [f.rule for f in found.findings], [str(f) for f in found.findings]
    assert "are not at b.pcap, lost or missed" in str(found)
    assert "never reached" not in str(found)


def test_a_uc_packet_that_one_point_has_behind_a_later_one_is_told(tmp_path: Path) -> None:
    found = rocekit.analyze(*halves_of_uc(tmp_path, late=100))
    (finding,) = [f for f in found.findings if f.rule == "reordering"]
    assert "1 UC packet arrived out of order" in finding.title
