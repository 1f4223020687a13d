"""What is open where the order in a file, or what a capture lacks, contradicts what seems so.

Found with NFS and iSER of the kernel over rxe (``storage-1``, ``-5``, ``-9`` and ``-13`` of the truth bench),
as captures whose times run back, that miss packets, that stopped for a while, or that began later.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, TIMEOUT, US, Talk, of_rule, only
from two_points import findings_of_two

import rocekit


def quiet(t: Talk) -> None:
    for psn in range(10, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
        t.wait(20 * US)


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
@pytest.mark.parametrize("missed", [False, True])
def test_of_two_alike_each_capture_has_another(tmp_path: Path, operation: str, missed: bool) -> None:
    """The requester's capture lacks the repeat, so the responder's may lack the request itself."""
    t = Talk()
    quiet(t)
    sent = []
    for _ in range(2):
        sent.append(t.read(140, 3) if operation == "READ" else t.send(140)[140])
        t.wait(TIMEOUT if len(sent) == 1 else 20 * US)
    if operation == "READ":
        t.responses(140, 3)
    else:
        t.ack(140)
    t.wait(MS)
    for psn in range(143, 160):
        t.send(psn if operation == "READ" else psn - 2)
        t.wait(20 * US)
        t.ack(psn if operation == "READ" else psn - 2)
    frames = dict(enumerate(t.frames, 1))
    at_a = [frame for n, frame in frames.items() if not (missed and n == sent[1])]
    at_b = [frame for n, frame in frames.items() if n != sent[0]]
    found = only(findings_of_two(tmp_path, at_a, at_b), "tail-loss")
    assert bool(found.evidence.get("places")) != missed
    assert ("probably" in found.title) == missed, found.title


@pytest.mark.parametrize("in_file", [False, True])
def test_packets_that_only_their_times_put_out_of_order(tmp_path: Path, in_file: bool) -> None:
    t = Talk()
    for psn in range(100, 140, 2):
        t.write(psn, 2)
        t.wait(20 * US)
        t.ack(psn + 1)
        t.wait(20 * US)
    first = [t.write(psn, 4) for psn in (140, 144, 148)][1]
    t.wait(20 * US)
    for psn in range(143, 152, 4):
        t.ack(psn)
    frames = list(t.frames)
    # Where each second packet of a message is written before the first, times tell the order.
    for n in range(0, 60, 6):
        frames[n], frames[n + 1] = frames[n + 1], frames[n]
    late, over = first[145] - 1, first[147] - 1
    moved = Frame(frames[late].data, frames[over].time_ns + 3 * US)
    if in_file:  # where its time says that it belongs
        frames[over + 1 : over + 1] = [moved]
        del frames[late]
    else:
        frames[late] = moved
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(frames, unit="ns"))
    (found,) = of_rule(rocekit.analyze(path).findings, "reordering")
    assert ("probably" in found.title) != in_file, found.title
    assert ("only their times say" in found.advice) != in_file


def test_an_ack_behind_a_read_that_came_again_is_not_of_the_read() -> None:
    """The capture stopped behind the repeat, and went on with an ACK of what was sent meanwhile."""
    t = Talk()
    t.request()
    t.reply(starting_psn=10)
    t.cm("RTU", local_comm_id=1, remote_comm_id=2)
    quiet(t)
    t.read(140, 6)
    t.send(146)
    t.wait(TIMEOUT)
    t.read(140, 6)
    t.wait(9 * TIMEOUT)
    t.send(190)
    t.wait(20 * US)
    t.ack(190)
    found = {f.rule: f.title for f in t.findings()}
    assert "ack-loss" not in found
    assert "probably" in found["tail-loss"] or "or its response" in found["tail-loss"]


@pytest.mark.parametrize("quiet_ns", [0, 20 * MS])
def test_responses_on_their_way_when_the_capture_began(quiet_ns: int) -> None:
    """It begins with a READ that is asked for again; those for the first one may be out of order."""
    t = Talk()
    t.send(1000, by="b")
    t.ack(1000, by="a")
    if quiet_ns:  # what was sent before the capture has arrived by then
        t.send(99)
        t.ack(99)
        t.wait(quiet_ns)
    t.read(100, 8)
    t.wait(7 * MS)
    t.read(100, 8, skip=3)
    t.wait(300 * US)
    t.responses(100, 8)
    t.responses(100, 8, skip=3)
    (found,) = of_rule(t.findings(), "implied-nak")
    assert ("lost or overtaken" in found.title) == (not quiet_ns), found.title


@pytest.mark.parametrize("whole", [False, True])
def test_the_first_packet_of_a_go_back_whose_second_one_the_capture_lacks(whole: bool) -> None:
    t = Talk()
    t.common = {"identification": 0}
    for psn in range(100, 140):
        if whole or psn != 120:
            t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    t.write(140, 5, lost={142})
    t.write(145, 5)
    t.wait(8 * MS)  # the capture lacks the NAK
    t.write(140, 5, only=(142,))
    if not whole:
        t.wait(200 * US)
        t.write(140, 5, only=(144,))
        t.write(145, 5)
    t.wait(MS)
    t.ack(144)
    t.ack(149)
    (found,) = of_rule(t.findings(), "reordering")
    assert ("probably" in found.title) != whole, found.title
    assert ("may be the first of a go-back" in found.advice) != whole


def test_a_nak_that_nobody_obeys_names_a_packet_that_may_have_come() -> None:
    """146 of the pass before comes within the repeat, and draws a NAK for 143, which comes behind it."""
    t = Talk()
    t.common = {"identification": 0}
    quiet(t)
    t.write(140, 4, lost={142})
    t.write(144, 4)
    t.wait(MS)
    t.nak(142)
    t.wait(9 * MS)
    t.write(140, 4, only=(142,))
    t.write(144, 4, only=(146,))
    t.write(140, 4, only=(143,))
    t.write(144, 4)
    t.wait(300 * US)
    nak = t.nak(143)
    t.wait(30 * US)
    t.ack(143)
    t.ack(147)
    (found,) = of_rule(t.findings(), "loss")
    assert nak in found.frames
    assert found.evidence["psns"] == [142, 146, 143]
    assert found.evidence["probably_lost_packets"] == 2  # 146, and 143
    assert "no repeat in the capture obeys the NAK" in found.advice
    assert "took other packets out of order" not in found.advice


@pytest.mark.parametrize("misses", [False, True])
def test_a_nak_behind_which_a_timer_runs_out(misses: bool) -> None:
    """Where the capture misses packets, it may lack the ACK that made the NAK an old one."""
    t = Talk()
    for psn in range(10, 140):
        if not misses or psn != 100:
            t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    t.write(140, 6)
    t.wait(500 * US)
    t.nak(143)
    t.wait(TIMEOUT)
    t.write(140, 6, only=(143, 144, 145))
    t.wait(20 * US)
    t.ack(145)
    found = [f for f in t.findings() if f.rule == "loss"]
    assert [("probably" in f.title) for f in found] == [misses], [f.title for f in found]
    assert ("no repeat in the capture obeys the NAK" in found[0].advice) == misses
