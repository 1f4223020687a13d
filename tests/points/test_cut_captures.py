"""Two captures of which one began late, ended early, or missed packets: it shows no loss by that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from capture_bytes import Frame, pcap
from talk import MS, US, Talk

import rocekit

#: How long a packet is under way from one capture point to the other.
_FLIGHT_NS: Final = 20 * US
_LOSSES: Final = 6


def _both() -> tuple[list[Frame], list[Frame]]:
    """A's capture, and B's, which lacks one packet of each burst: the network lost it in between."""
    t, lost = Talk(), set()
    for k in range(_LOSSES):
        first = 20 * k
        for psn in range(first, first + 10):
            t.send(psn)
            t.ack(psn)
            t.wait(100 * US)
        sent = t.send(first + 10, 10)
        lost.add(sent[first + 13])
        t.wait(100 * US)
        t.nak(first + 13)
        t.wait(100 * US)
        t.send(first + 10, 10, only=range(first + 13, first + 20))
        t.wait(100 * US)
        t.ack(first + 19)
        t.wait(MS)
    sender = t.frames[0].data[26:30]

    def moved(frame: Frame) -> Frame:
        later_ns = _FLIGHT_NS if frame.data[26:30] == sender else -_FLIGHT_NS
        return Frame(frame.data, frame.time_ns + later_ns)

    at_b = [moved(f) for n, f in enumerate(t.frames, 1) if n not in lost]
    return t.frames, sorted(at_b, key=lambda f: f.time_ns)


def _without(frames: Sequence[Frame], at: Callable[[int], bool]) -> list[Frame]:
    return [f for n, f in enumerate(frames) if not at(n)]


def _places(a: Sequence[Frame], b: Sequence[Frame], folder: Path) -> list[str]:
    """Where the losses were."""
    paths = folder / "a.pcap", folder / "b.pcap"
    for path, frames in zip(paths, (a, b), strict=True):
        path.write_bytes(pcap(frames, unit="ns"))
    findings = rocekit.analyze(*paths).findings
    return [p["lost"] for f in findings if f.rule == "loss" for p in f.evidence.get("places", ())]


def test_two_whole_captures_place_each_loss(tmp_path: Path) -> None:
    a, b = _both()
    assert _places(a, b, tmp_path) == ["between"] * _LOSSES


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("part", [slice(60, None), slice(None, -60)])
def test_a_capture_shows_no_loss_of_a_time_in_which_it_did_not_run(
    which: int, part: slice, tmp_path: Path
) -> None:
    both = list(_both())
    both[which] = both[which][part]
    found = _places(both[0], both[1], tmp_path)
    assert set(found) == {"between"}
    assert len(found) < _LOSSES


def test_a_capture_that_misses_packets_shows_no_loss_before_it(tmp_path: Path) -> None:
    """It misses a packet that the other one has, and one of those that were lost."""
    a, b = _both()
    here = {f.data for f in b}
    (lost, *_) = [n for n, f in enumerate(a) if f.data not in here]
    found = _places(_without(a, lambda n: n in (2, lost)), b, tmp_path)
    assert found == ["between"] * (_LOSSES - 1)
