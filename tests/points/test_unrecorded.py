"""Two captures of what each host sends, of which both have the CM messages of both."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, US, Talk

import rocekit
from rocekit.analysis import Analysis

FLIGHT = 30 * US
#: Where a frame without VLAN tag has its sender's last byte, and its destination QP.
SENDER, QPN = 29, slice(47, 50)
A, B = 1, 2


def has(frame: Frame, only_of: int | None) -> bool:
    return only_of in (None, frame.data[SENDER]) or frame.data[QPN] == b"\0\0\1"


def captures(folder: Path, talk: Talk, at_a: int | None, at_b: int | None, lost: set[int]) -> Analysis:
    """Both ends' captures, of what one of the hosts sends only, or (None) of both."""
    sent = [(n, f) for n, f in enumerate(talk.frames, 1)]
    files = folder / "a.pcap", folder / "b.pcap"
    for file, host, only_of in ((files[0], A, at_a), (files[1], B, at_b)):
        frames = [
            Frame(f.data, f.time_ns + (0 if f.data[SENDER] == host else FLIGHT))
            for n, f in sent
            if has(f, only_of) and (f.data[SENDER] == host or n not in lost)
        ]
        file.write_bytes(pcap(sorted(frames, key=attrgetter("time_ns")), unit="ns"))
    return rocekit.analyze(*files)


def close(talk: Talk) -> None:
    talk.wait(MS)
    talk.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12)
    talk.wait(MS)
    talk.cm("DREP", by="b", local_comm_id=2, remote_comm_id=1)


def one_overtaken() -> Talk:
    """101 draws a NAK though it arrives behind 102, with its repeat on the way."""
    t = Talk()
    t.connect()
    for psn in (100, 101, 102, 103):
        t.send(psn)
    t.wait(200 * US)
    t.ack(100)
    t.nak(101)
    t.wait(200 * US)
    for psn in (101, 102, 103):
        t.send(psn)
    t.wait(200 * US)
    t.ack(103)
    t.wait(MS)
    t.send(104)
    t.wait(200 * US)
    t.ack(104)
    close(t)
    return t


def test_nothing_is_lost_for_captures_of_what_each_host_sends(tmp_path: Path) -> None:
    found = captures(tmp_path, one_overtaken(), A, B, set())
    there, back = sorted(found.document()["paths"], key=lambda path: path["src"])
    for path, unrecorded in ((there, 8), (back, 4)):
        assert path["missing"] == path["missing_requests"] == path["missing_responses"] == 0
        assert path["unrecorded"] + path["missed_second"] == unrecorded
    text = str(found)
    assert "which has only CM messages of this direction" in text
    assert "0 never reached" in text
    (loss,) = (f for f in found.findings if f.rule == "loss")
    assert "places" not in loss.evidence


@pytest.mark.parametrize(("at_a", "at_b"), [(A, None), (None, B), (None, None)])
def test_what_a_capture_of_both_directions_lacks_is_lost(
    tmp_path: Path, at_a: int | None, at_b: int | None
) -> None:
    """101 is lost, and its response's way is open where the requester's capture has none."""
    t = one_overtaken()
    lost = {n for n, f in enumerate(t.frames, 1) if f.data[SENDER] == A and f.data[QPN] != b"\0\0\1"}
    lost = {sorted(lost)[1]}
    paths = {p["src"]: p for p in captures(tmp_path, t, at_a, at_b, lost).document()["paths"]}
    there, back = (paths[src] for src in sorted(paths))
    assert there["missing"] == (1 if at_b is None else 0)
    assert back["missing"] == 0
    assert bool(there["unrecorded"]) == (at_b is not None)
    assert bool(back["unrecorded"]) == (at_a is not None)


def test_a_capture_with_cm_messages_alone_lacks_what_was_lost(tmp_path: Path) -> None:
    """Nothing of the connection reached b: a filter on the way lets CM messages through."""
    t = Talk()
    t.connect()
    for _ in range(3):
        t.send(100)
        t.wait(10 * MS)
    close(t)
    lost = {n for n, f in enumerate(t.frames, 1) if f.data[QPN] != b"\0\0\1"}
    path = next(p for p in captures(tmp_path, t, None, None, lost).document()["paths"] if p["missing"])
    assert (path["missing"], path["unrecorded"]) == (3, 0)


def both_ways(folder: Path, *, refused: bool) -> Analysis:
    """B's capture has no request of a, as of a filter for ACKs, though it has the ACKs of a.

    Args:
        refused: whether b acknowledges nothing: then all requests may have been lost, as by a small MTU.
    """
    t = Talk()
    for psn in range(100, 120):
        for _ in range(2 if psn % 5 == 0 else 1):
            t.send(psn)
            t.wait(100 * US)
        if not refused:
            t.ack(psn)
        t.send(psn, by="b")
        t.wait(100 * US)
        t.ack(psn, by="a")
        t.wait(MS)
    files, requests = (folder / "a.pcap", folder / "b.pcap"), len(t.frames[0].data)
    at_b = [
        Frame(f.data, f.time_ns + (FLIGHT if f.data[SENDER] == A else -FLIGHT))
        for f in t.frames
        if f.data[SENDER] == B or len(f.data) < requests
    ]
    files[0].write_bytes(pcap(t.frames, unit="ns"))
    files[1].write_bytes(pcap(sorted(at_b, key=attrgetter("time_ns")), unit="ns"))
    return rocekit.analyze(*files)


@pytest.mark.parametrize("refused", [False, True])
def test_a_capture_without_requests_that_came_records_none(tmp_path: Path, *, refused: bool) -> None:
    found = both_ways(tmp_path, refused=refused)
    there, back = sorted(found.document()["paths"], key=lambda path: path["src"])
    assert back["missing"] == back["unrecorded"] == 0
    if refused:
        assert (there["missing"], there["unrecorded"]) == (22, 0)  # the first two are outside
    else:
        assert (there["missing"], there["missed_second"], there["unrecorded"]) == (0, 19, 3)
        assert "3 more are not at b.pcap, which has no requests of this direction" in str(found)
        assert not [f for f in found.findings if "places" in f.evidence]
