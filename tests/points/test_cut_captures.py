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


def _told(a: Sequence[Frame], b: Sequence[Frame], folder: Path) -> list[str]:
    """The titles of what is no mere information."""
    paths = folder / "a.pcap", folder / "b.pcap"
    for path, frames in zip(paths, (a, b), strict=True):
        path.write_bytes(pcap(frames, unit="ns"))
    return [f.title for f in rocekit.analyze(*paths).findings if f.severity != "info"]


def _moved(frames: Sequence[Frame], flight_ns: int) -> list[Frame]:
    """What A's capture has, as B's has it: A's packets later, and B's sooner."""
    sender = frames[0].data[26:30]
    moved = [
        Frame(f.data, f.time_ns + (flight_ns if f.data[26:30] == sender else -flight_ns)) for f in frames
    ]
    return sorted(moved, key=lambda f: f.time_ns)


def test_what_came_again_when_the_other_capture_had_ended_was_not_lost_for_that(tmp_path: Path) -> None:
    """The ACK of PSN 200 is lost; B's capture, which would have it and the request, has ended."""
    t = Talk()
    for psn in range(200):
        t.send(psn)
        t.wait(50 * US)
        t.ack(psn)
        t.wait(100 * US)
    ended = len(t.frames)
    for psn in range(200, 203):
        t.send(psn)
        t.wait(70 * MS)
        t.send(psn)
        t.wait(50 * US)
        t.ack(psn)
        t.wait(100 * US)
    alone = _told(t.frames, [], tmp_path)
    both = _told(t.frames, _moved(t.frames[:ended], _FLIGHT_NS), tmp_path)
    assert both == alone
    assert all("or its response" in title or "of the request or its response" in title for title in both)


def test_a_nak_of_before_the_second_capture_stays_behind_what_drew_it(tmp_path: Path) -> None:
    """Packets take 3 ms; what only A's capture has, because B's began later, has A's times."""
    t = Talk()
    for psn in range(0, 40, 4):
        t.send(psn, 4, lost=())
        t.wait(7 * MS)
        t.nak(psn + 2)
        t.wait(50 * US)
        t.send(psn, 4, only=(psn + 2, psn + 3))
        t.wait(7 * MS)
        t.ack(psn + 3)
        t.wait(MS)
    begun = len(t.frames)
    for psn in range(40, 80):
        t.send(psn)
        t.wait(7 * MS)
        t.ack(psn)
        t.wait(MS)
    titles = _told(t.frames, _moved(t.frames[begun:], 3 * MS), tmp_path)
    assert titles == _told(t.frames, [], tmp_path)
    assert len(titles) == 1
    assert titles[0].startswith("At least 10 packets lost")
