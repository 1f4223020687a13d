"""Copies, RNR NAKs, the order of a file: what looks like a loss, or a late packet, and need not be one."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, US, A, Talk, named, only
from two_points import analysis_of_two, findings_of_two

import rocekit


def lossy(*, copied: bool) -> Talk:
    """PSN 20 is lost before the capture; the network makes a copy of the one that is sent again."""
    t = Talk()
    t.connect()
    for psn in range(20):
        t.send(psn)
        t.ack(psn)
    t.ident += 1  # of PSN 20
    t.send(21)
    t.nak(20)
    t.wait(100 * US)
    frame = t.send(20)[20]
    if copied:
        t.again(frame)
    t.wait(20 * US)
    t.ack(20)
    t.wait(20 * US)
    t.send(21)
    t.wait(20 * US)
    t.ack(21)
    return t


def test_a_copy_of_what_was_sent_again_is_no_late_original() -> None:
    found = lossy(copied=True).findings()
    assert "reordering" not in [f.rule for f in found]
    assert only(found, "loss").title.startswith("PSN 20 was lost")
    assert "duplicate" in [f.rule for f in found]
    assert named(lossy(copied=False).findings()) == ["loss"]


@pytest.mark.parametrize("at", [-1, 1])
def test_a_silence_behind_an_rnr_nak_of_the_same_message_need_not_be_a_loss(at: int, tmp_path: Path) -> None:
    """rdma_rxe goes back to the message's first packet after an RNR NAK for its last one."""
    t = Talk()
    t.connect(rnr_retry_count=7)
    for psn in range(0, 30, 3):
        t.write(psn, 3)
        t.ack(psn + 2)
        t.wait(30 * US)
    t.write(30, 3)
    t.wait(20 * US)
    t.rnr(32)
    t.wait(MS)
    t.write(30, 3)
    t.wait(20 * US)
    t.rnr(32)
    lost = t.write(33, 3)
    t.wait(12 * MS)
    t.write(30, 3)
    t.write(33, 3)
    t.wait(20 * US)
    t.ack(32)
    t.ack(35)
    gone = set(lost.values()) if at > 0 else set()
    at_b = [f for n, f in enumerate(t.frames, 1) if n not in gone]
    for found in findings_of_two(tmp_path, t.frames, at_b):
        if found.rule == "tail-loss":
            assert "or its response" in found.title or "probably" in found.title, found.title


def test_a_packet_that_the_file_has_first_is_not_lost_behind_it_for_sure(tmp_path: Path) -> None:
    """Two queues: B's file has PSN 23 before 20 to 22, though its time is later; a NAK for 23 follows."""
    t = Talk()
    for psn in range(20):
        t.send(psn)
        t.ack(psn)
        t.wait(20 * US)
    sent = [t.send(psn)[psn] for psn in range(20, 26)]
    t.wait(30 * US)
    t.nak(23)
    t.wait(100 * US)
    for psn in range(23, 26):
        t.send(psn)
    t.wait(30 * US)
    t.ack(25)
    for psn in range(26, 40):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    flight = 4 * US
    moved = [Frame(f.data, f.time_ns + (flight if source(f) == A else -flight)) for f in t.frames]
    early = sent[3] - 1
    at_b = [*moved[: sent[0] - 1], moved[early], *moved[sent[0] - 1 : early], *moved[early + 1 :]]
    places = []
    for name, frames in (("va", t.frames), ("vb", at_b)):
        path = tmp_path / f"{name}.pcap"
        path.write_bytes(pcap(frames, unit="ns"))
        places.append(path)
    for found in rocekit.analyze(*places, journals=()).findings:
        if found.rule == "loss":
            assert "probably" in found.title, found.title
            assert not found.evidence.get("places")


def source(frame: Frame) -> str:
    return ".".join(str(b) for b in frame.data[26:30])


def test_a_response_to_an_earlier_request_that_came_was_not_lost_before_its_capture(tmp_path: Path) -> None:
    """A asks again from PSN 5 on though it had it, and once more before B answered that."""
    t = Talk()
    t.connect()
    for psn in range(0, 4, 4):
        t.read(psn, 4)
        t.wait(20 * US)
        t.responses(psn, 4)
    t.read(4, 4)
    t.wait(20 * US)
    t.responses(4, 4)
    t.wait(50 * US)
    t.read(4, 4, skip=1)
    t.wait(60 * US)
    t.read(4, 4, skip=1)
    t.wait(20 * US)
    t.responses(4, 4, skip=1)
    for psn in range(8, 24, 4):
        t.read(psn, 4)
        t.wait(20 * US)
        last = t.responses(psn, 4)
    one, other = last[21] - 1, last[22] - 1  # one response overtakes another on its way to A
    at_a = list(t.frames)
    at_a[one], at_a[other] = (
        Frame(t.frames[other].data, t.frames[one].time_ns),
        Frame(t.frames[one].data, t.frames[other].time_ns),
    )
    for found in findings_of_two(tmp_path, at_a, t.frames):
        if found.rule == "implied-nak":
            assert not any(p["lost"] == "before" for p in found.evidence.get("places", ())), found.title


@pytest.mark.parametrize(("lacks", "after_us"), [(True, 200), (False, 200), (False, 5)])
def test_what_came_twice_may_be_asked_for_again_where_the_capture_lacks_packets(
    lacks: bool, after_us: int
) -> None:
    """Of NICs: no identifications. The request that asked for PSN 11 again may be what is missing.

    A network makes its copies within microseconds.
    """
    t = Talk()
    t.common["identification"] = 0
    t.connect()
    for psn in range(0, 24, 4):
        t.read(psn, 4)
        t.wait(20 * US)
        t.responses(psn, 4, lost=(13,) if lacks and psn == 12 else ())
        if psn == 8:
            t.wait(after_us * US)
            t.responses(psn, 4, skip=3)
        t.wait(50 * US)
    (found,) = (f for f in t.findings() if f.rule == "duplicate")
    assert ("or_sent_again" in found.evidence) == (after_us > 50)
    assert ("lacks packets" in found.advice) == lacks


@pytest.mark.parametrize("identified", [True, False])
def test_a_packet_was_not_overtaken_by_what_was_sent_before_it(tmp_path: Path, identified: bool) -> None:
    """Both captures miss 102 at first; 103 to 107 came before the one that is sent again."""
    talk = Talk(mtu=1024)
    talk.connect()
    if not identified:
        talk.common = {"identification": 0}
    for psn in range(60, 100):
        talk.send(psn)
        talk.ack(psn)
    talk.send(100, 8, lost=(102,))
    talk.wait(100 * MS)
    talk.send(100, 8)
    talk.ack(107)
    seen = analysis_of_two(tmp_path, talk.frames, talk.frames).capture.sightings
    assert seen is not None
    (row,) = (n for n in range(len(seen)) if seen.psn[n] == 102)
    assert not seen.is_overtaken(row, 128)


@pytest.mark.parametrize("identified", [True, False])
def test_a_packet_that_came_behind_what_was_sent_behind_it_was_overtaken(
    tmp_path: Path, identified: bool
) -> None:
    talk = Talk(mtu=1024)
    talk.connect()
    if not identified:
        talk.common = {"identification": 0}
    for psn in range(60, 100):
        talk.send(psn)
        talk.ack(psn)
    sent = talk.send(100, 8)
    talk.ack(107)
    late = Frame(talk.frames[sent[102] - 1].data, talk.frames[sent[105] - 1].time_ns + 200)
    at_b = [late if n == sent[102] else frame for n, frame in enumerate(talk.frames, 1)]
    seen = analysis_of_two(tmp_path, talk.frames, at_b).capture.sightings
    assert seen is not None
    (row,) = (n for n in range(len(seen)) if seen.psn[n] == 102)
    assert seen.is_overtaken(row, 128)
