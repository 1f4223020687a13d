"""What a capture that misses packets does not know: it lacks some that were acknowledged, so it lacks others.

Found with captures of rxe's traffic of which 3 % of the packets were taken away.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, TIMEOUT, US, Talk, named, of_rule, only, settled
from two_points import findings_of_two

from rocekit.findings.finding import Finding


def gap(talk: Talk, first: int, packets: int, missed: int) -> None:
    """A message whose ACK covers a PSN that the capture does not have."""
    talk.write(first, packets, lost={missed})
    talk.ack(first + packets - 1)


def lose_twice(talk: Talk) -> None:
    """A message of which 501 is lost, and of what is sent again 502 and 504."""
    talk.write(500, 8, lost={501})
    talk.nak(501)
    talk.wait(100 * US)
    talk.write(500, 8, only=(501, 503, 505, 506, 507))
    talk.wait(100 * US)
    talk.nak(502)
    talk.wait(100 * US)
    talk.write(500, 8, only=range(502, 508))
    talk.wait(100 * US)
    talk.ack(507)


def test_behind_a_lost_packet_a_gap_may_be_the_capture_s() -> None:
    talk = settled(Talk(), 99)
    gap(talk, 100, 400, 300)
    lose_twice(talk)
    (found,) = of_rule(talk.findings(), "loss")
    assert found.evidence["lost_packets"] == 2


def test_a_gap_is_counted_where_the_capture_misses_nothing() -> None:
    talk = settled(Talk(), 499)
    lose_twice(talk)
    assert only(talk.findings(), "loss").evidence["lost_packets"] == 3


def timed_out(missed: bool) -> Talk:
    """A message with a gap, sent again after the timeout; the capture misses one packet in three hundred."""
    talk = settled(Talk(), 99)
    for i in range(4):
        if i == 2 and missed:
            gap(talk, 100 + 80 * i, 80, 300)
        else:
            talk.write(100 + 80 * i, 80)
            talk.ack(179 + 80 * i)
    talk.write(420, 8, lost={422})
    talk.wait(TIMEOUT)
    talk.write(420, 8)
    talk.ack(427)
    return talk


def test_a_gap_without_a_nak_may_be_the_capture_s_where_it_misses_as_many() -> None:
    sure = only(timed_out(missed=False).findings(), "loss")
    assert "probably" not in sure.title
    (found,) = of_rule(timed_out(missed=True).findings(), "loss")
    assert "probably lost" in found.title
    assert "The capture lacks packets that were acknowledged" in found.advice


def test_a_nak_of_a_later_psn_proves_nothing_where_the_go_back_may_be_missed() -> None:
    """101 was lost and sent again, and the capture has none of it: 103 was lost of the packets sent again."""
    talk = settled(Talk(), 99)
    talk.write(100, 6, lost={101})
    talk.nak(101)
    talk.wait(100 * US)
    talk.nak(103)
    talk.wait(100 * US)
    talk.write(100, 6, only=range(103, 106))
    talk.ack(105)
    for found in of_rule(talk.findings(), "reordering"):
        assert "probably" in found.title


def refused(answered_twice: int, answered: int = 40) -> Talk:
    """An atomic gets a NAK, is sent again, and is answered twice; so were some before that were sent once."""
    talk = settled(Talk(), 99)
    for psn in range(100, 100 + answered):
        talk.atomic(psn)
        talk.wait(50 * US)
        talk.atomic_answer(psn)
        if psn < 100 + answered_twice:
            talk.atomic_answer(psn)
    p = 100 + answered
    for psn in (p, p + 1, p + 2):
        talk.atomic(psn)
    talk.wait(50 * US)
    talk.atomic_answer(p)
    talk.nak(p + 1)
    for psn in (p + 1, p + 2):
        talk.atomic(psn)
    talk.wait(50 * US)
    for psn in (p + 1, p + 2):
        talk.atomic_answer(psn)
    talk.wait(2 * MS)
    talk.atomic_answer(p + 1)
    return talk


def test_one_repeat_that_the_capture_missed_does_not_make_losses_of_overtaken_atomics() -> None:
    found = refused(0).findings()
    assert "probably" not in only(found, "reordering").title
    found = refused(1).findings()
    assert named(found) == ["reordering"]
    assert "probably" in found[0].title
    assert "loss" in named(refused(8).findings())  # the network doubles many: so it may have doubled this one


def test_where_packets_are_overtaken_one_that_the_second_capture_missed_need_not_be_lost(
    tmp_path: Path,
) -> None:
    talk = settled(Talk(), 99)
    frames: dict[int, int] = {}
    for first in range(100, 180, 8):
        frames |= talk.write(first, 8)
        talk.wait(20 * US)
        talk.ack(first + 7)
    sent = talk.write(180, 8)
    talk.wait(20 * US)
    talk.nak(182)
    talk.wait(100 * US)
    again = talk.write(180, 8, only=range(182, 188))
    talk.wait(20 * US)
    talk.ack(187)
    assert again
    missed = {frames[103], frames[110], frames[118], sent[182]}
    at_b = [frame for n, frame in enumerate(talk.frames, 1) if n not in missed]
    place = at_b.index(talk.frames[frames[151] - 1])
    late = at_b[place]
    at_b[place] = Frame(late.data, late.time_ns + 2 * US + 500)  # it arrives behind the next two
    (found,) = of_rule(findings_of_two(tmp_path, talk.frames, at_b), "loss")
    assert "probably" in found.title


def post(talk: Talk, psn: int, *, immediate: bool, again: bool = False) -> None:
    """A message of two packets, whose first takes a receive, or whose last does: ``again`` from there on."""
    if not immediate:
        talk.send(psn, 2)
        return
    if not again:
        talk.write(psn, 2, only=[psn])
    talk.packet("RC_RDMA_WRITE_LAST_WITH_IMMEDIATE", psn + 1, bytes(talk.mtu), ackreq=1, immediate=7)


def without_receive(seen: bool, missed: bool, *, immediate: bool, waits_ns: int = 2 * MS) -> Talk:
    """Messages without a receive: rdma_rxe sends a NAK for the same PSN behind its RNR NAK (``seen``)."""
    talk = settled(Talk(), 99)
    talk.write(100, 400, lost={300} if missed else ())
    talk.ack(499)
    for first in (500, 510):
        for psn in range(first, first + 10, 2):
            post(talk, psn, immediate=immediate)
        talk.wait(50 * US)
        if first == 500 or seen:
            talk.rnr(first + immediate)
        talk.nak(first + immediate)
        talk.wait(2 * MS if first == 500 else waits_ns)
        for psn in range(first, first + 10, 2):
            post(talk, psn, immediate=immediate, again=psn == first)
        talk.wait(50 * US)
        talk.ack(first + 9)
    return talk


@pytest.mark.parametrize("immediate", [False, True], ids=["SEND", "WRITE with immediate"])
def test_a_nak_for_a_packet_that_takes_a_receive_may_follow_an_rnr_nak_that_is_not_in_the_capture(
    immediate: bool,
) -> None:
    def losses(*, seen: bool, missed: bool, waits_ns: int = 2 * MS) -> list[Finding]:
        talk = without_receive(seen, missed, immediate=immediate, waits_ns=waits_ns)
        return of_rule(talk.findings(), "loss")

    assert losses(seen=True, missed=True) == []
    # No requester waits so shortly after an RNR NAK, whose timer is 640 µs here.
    (sure,) = losses(seen=False, missed=False, waits_ns=100 * US)
    assert "probably" not in sure.title
    assert sure.evidence["probably_lost_packets"] == 0
    # What a capture misses of the responses, it does not show.
    (waited,) = losses(seen=False, missed=False)
    assert waited.evidence["probably_lost_packets"] == 1
    (found,) = losses(seen=False, missed=True)
    assert f"PSN {510 + immediate} was probably lost" in found.title
    assert "an RNR NAK for a packet that takes a receive" in found.advice
    places = [found.evidence[f"lost_{way}_capture_point"] for way in ("before", "behind")]
    assert (found.evidence["lost_packets"], places) == (1, [0, 0])  # if it was lost, and who knows where
    assert found.evidence["probably_lost_packets"] == 1
    assert "the capture has no NAK" not in found.advice


@pytest.mark.parametrize(("psn", "before"), [(104, 1), (107, 0)])
def test_a_capture_that_misses_what_a_nak_acknowledges_does_not_show_where_the_next_was_lost(
    psn: int, before: int
) -> None:
    """The file lacks 104 to 109 of a go-back: the responder got those below the PSN that its NAK names."""
    t = settled(Talk(), 99)
    t.send(100, 60)
    t.wait(50 * MS)
    t.send(100, 60, lost=range(104, 110))
    t.wait(20 * US)
    t.nak(psn)
    t.wait(100 * US)
    t.send(100, 60, only=range(psn, 160))
    t.wait(20 * US)
    t.ack(159)
    (found,) = (f for f in of_rule(t.findings(), "loss") if psn in f.evidence["psns"])
    assert found.evidence["lost_before_capture_point"] == before
    assert found.evidence["lost_behind_capture_point"] == 0


def sampled(each: int) -> Talk:
    """A capture that lacks one packet of ``each``; one that it has is lost, draws a NAK, and comes again."""
    talk = settled(Talk(), 99)
    for first in range(100, 500, 20):
        talk.write(first, 20, lost={psn for psn in range(first, first + 19) if psn % each == each - 1})
        talk.wait(50 * US)
        if first == 300:
            talk.nak(305)
            talk.wait(100 * US)
            talk.write(first, 20, only=range(305, 320))
            talk.wait(50 * US)
        talk.ack(first + 19)
    return talk


@pytest.mark.parametrize(("each", "likely"), [(100, 0), (4, 1)])
def test_a_capture_that_lacks_many_tells_of_no_packet_why_it_came_again(each: int, likely: int) -> None:
    (found,) = of_rule(sampled(each).findings(), "loss")
    assert found.evidence["probably_lost_packets"] == likely


@pytest.mark.parametrize("waited_ns", [100 * US, 20 * MS])
def test_a_nak_that_was_obeyed_is_not_that_of_a_later_repeat(waited_ns: int) -> None:
    """744 is lost before the capture, which misses what drew the NAK; 747 comes behind the repeat, twice."""
    talk = settled(Talk(), 743)
    talk.nak(744)
    talk.wait(500 * US)
    for psn in range(744, 747):
        talk.send(psn)
        talk.ack(psn)
    talk.wait(waited_ns)
    talk.send(747)
    talk.ack(747)
    talk.wait(300 * US)
    talk.send(747)
    talk.ack(747)
    loss, again = talk.findings()
    assert (loss.rule, loss.evidence["lost_packets"]) == ("loss", 1)
    assert loss.evidence["repeated_packets"] == 0
    assert again.rule == "needless-repeat"
    assert "after 302 µs" in again.title


@pytest.mark.parametrize("missing", [True, False])
def test_what_the_capture_may_have_missed_may_be_late_where_another_one_was(missing: bool) -> None:
    """An ACK that names just a packet that had been sent again: the original came behind its repeat."""
    talk = settled(Talk(), 99)
    for begin in range(100, 180, 4):
        if begin in (120, 160):
            lost = {121} if begin == 120 else set()
            talk.write(begin, 4, lost=lost)
            talk.nak(begin + 1)
            talk.wait(100 * US)
            talk.write(begin, 4, only=range(begin + 1, begin + 4))
            talk.wait(20 * US)
            if begin == 160:
                talk.ack(161)
        else:
            talk.write(begin, 4, lost={begin + 2} if missing and begin == 140 else set())
        talk.wait(20 * US)
        talk.ack(begin + 3)
    found = of_rule(talk.findings(), "loss")[0]
    assert found.evidence["lost_packets"] == 2
    assert found.evidence["probably_lost_packets"] == (2 if missing else 1)


@pytest.mark.parametrize(("missed", "overtaken"), [(0, True), (2, False), (2, True)])
def test_a_hole_in_a_capture_that_misses_packets_proves_no_loss_where_others_are_overtaken(
    missed: int, overtaken: bool
) -> None:
    """The packet that the NAK names may have come late, or first, where the capture missed it (``drawn-648``
    and ``drawn-1014`` of the truth bench, with packets missed).
    """
    t = Talk()
    for psn in range(400):
        t.send(psn, lost={psn} if 50 <= psn < 50 + missed else ())
        t.wait(20 * US)
        t.ack(psn)
    if overtaken:
        t.send(400, 4, lost={401})
        t.nak(401)
        t.wait(20 * US)
        t.send(400, 4, only=[401])
        t.wait(100 * US)
        t.send(400, 4, only=range(401, 404))
        t.wait(20 * US)
        t.ack(403)
    else:
        t.send(400, 4)
        t.wait(20 * US)
        t.ack(403)
    t.send(404, 4, lost={405})
    t.wait(20 * US)
    t.nak(405)
    t.wait(100 * US)
    t.send(404, 4, only=range(405, 408))
    t.wait(20 * US)
    t.ack(407)
    (found,) = of_rule(t.findings(), "loss")
    assert found.evidence["psns"] == [405]
    assert ("probably" in found.title) == bool(missed and overtaken)
    assert ("what it does not have need not be lost" in found.advice) == bool(missed and overtaken)


def test_where_the_last_capture_misses_packets_what_it_lacks_does_not_make_a_loss_certain(
    tmp_path: Path,
) -> None:
    """The capture at b misses half: of 101, which arrived, and of what was sent again for the NAK of 100."""
    t = Talk()
    sent = {99: t.atomic(99), 101: t.atomic(101)}
    t.wait(300 * US)
    first_nak = t.nak(100)
    t.wait(800 * US)
    second_nak = t.nak(101)
    t.wait(900 * US)
    answer = t.atomic_answer(101)
    at_a = [t.frames[number - 1] for number in (sent[99], sent[101], first_nak, answer)]
    at_b = [t.frames[number - 1] for number in (sent[99], second_nak, answer)]
    found = [f for f in of_rule(findings_of_two(tmp_path, at_a, at_b), "loss") if 101 in f.evidence["psns"]]
    assert found
    assert all("probably" in f.title or "overtaken" in f.title for f in found)
