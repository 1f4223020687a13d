"""A file made of files that overlap has a part twice; what a network copies here and there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import US, Talk

import rocekit


def talk() -> Talk:
    t = Talk()
    t.connect()
    for psn in range(200):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
        t.wait(20 * US)
    return t


def written(folder: Path, frames: list[Frame], name: str = "a.pcap") -> Path:
    path = folder / name
    path.write_bytes(pcap(frames, unit="ns"))
    return path


def overlapping(frames: list[Frame], first: int, end: int, *, shuffled: bool = False) -> list[Frame]:
    """With a copy of each of a part: right behind it, or, of equal stamps, behind the next one too."""
    part = frames[first:end]
    if shuffled:
        part = [Frame(f.data, part[n // 2 * 2].time_ns) for n, f in enumerate(part)]
        pairs = [part[n : n + 2] * 2 for n in range(0, 4, 2)] + [[f, f] for f in part[4:]]
        return [*frames[:first], *[f for pair in pairs for f in pair], *frames[end:]]
    return [*frames[:first], *[f for frame in part for f in (frame, frame)], *frames[end:]]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("first", "end"), [(100, 200), (100, 130)])
def test_the_copies_are_left_out(tmp_path: Path, first: int, end: int, shuffled: bool) -> None:
    frames = talk().frames
    found = rocekit.analyze(
        written(tmp_path, overlapping(frames, first, end, shuffled=shuffled)), journals=[]
    )
    assert found.capture.doubled is not None
    assert found.capture.doubled.twice == end - first
    assert "as where files overlap that were put together. The copies are left out." in str(found)
    assert not found.findings
    assert sum(c.packets for c in found.connections) == 400


def test_so_they_are_beside_another_capture(tmp_path: Path) -> None:
    frames = talk().frames
    other = written(tmp_path, [Frame(f.data, f.time_ns + 5 * US) for f in frames], "b.pcap")
    found = rocekit.analyze(written(tmp_path, overlapping(frames, 100, 130)), other, journals=[])
    (twice,) = found.to_dict()["capture"]["twice"]
    assert (twice["file"], twice["left_out"]) == (0, 30)
    assert not [f for f in found.findings if f.rule == "duplicate"], json.dumps(found.to_dict()["findings"])


def test_copies_that_a_network_makes_stay(tmp_path: Path) -> None:
    """One packet in five, each with the stamp of its original."""
    frames = [f for n, frame in enumerate(talk().frames) for f in ([frame] if n % 10 else [frame, frame])]
    found = rocekit.analyze(written(tmp_path, frames), journals=[])
    assert found.capture.doubled is None
    assert [f.rule for f in found.findings] == ["duplicate"]


def test_what_a_network_copied_outside_of_the_part_stays(tmp_path: Path) -> None:
    """One packet in nine is there twice, with one stamp; one part is there once more."""
    frames = [f for n, frame in enumerate(talk().frames) for f in ([frame] if n % 9 else [frame, frame])]
    found = rocekit.analyze(written(tmp_path, overlapping(frames, 220, 260)), journals=[])
    assert found.capture.doubled is not None
    assert "as where files overlap that were put together. The copies are left out." in str(found)
    again = [f.evidence["count"] for f in found.findings if f.rule == "duplicate"]
    assert len(again) == 2  # requests, and their ACKs
    assert 36 <= sum(again) <= 44
