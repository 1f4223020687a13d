"""An ACK that was lost between two captures, and a timer that ran out sooner than the timeout that is known.

rxe's timer is not started anew by each packet, so the wait after the last one is often shorter than the
timeout. Of ibv_rc_pingpong, rdma_cm programs and others with packets lost both ways, the repeat after such a
wait was told as ``needless-repeat`` ("nothing shows a loss") or, after an earlier NAK, as ``reordering``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, US, Talk, named, only, settled
from two_points import analysis_of_two, findings_of_two


def talk(*, after_nak: bool = False, connected: bool = True) -> tuple[Talk, int]:
    """PSN 60 to 62 come again 40 ms after they were acknowledged; the frame of the ACK."""
    t = Talk()
    if connected:
        t.connect()
    for psn in range(60):
        settled(t, psn)
        t.wait(200 * US)
    if after_nak:
        t.send(60, 3, only=[60, 62])
        t.nak(61)
        t.wait(50 * US)
        t.send(60, 3, only=[61, 62])
    else:
        t.send(60, 3)
    ack = t.ack(62)
    t.wait((25 if after_nak else 40) * MS)
    t.send(60, 3, only=[61, 62] if after_nak else None)
    t.wait(300 * US)
    t.ack(62)
    return t, ack


def without(t: Talk, *frames: int) -> list[Frame]:
    return [f for n, f in enumerate(t.frames, 1) if n not in frames]


def test_an_ack_that_only_its_senders_capture_has_was_lost(tmp_path: Path) -> None:
    t, ack = talk()
    found = only(findings_of_two(tmp_path, without(t, ack), t.frames), "ack-loss")
    assert found.title.endswith("lost between vb.pcap and va.pcap")
    assert "probably" not in found.title


def test_it_was_lost_after_an_earlier_nak_too(tmp_path: Path) -> None:
    t, ack = talk(after_nak=True)
    findings = findings_of_two(tmp_path, without(t, ack), t.frames)
    assert sorted(named(findings)) == ["ack-loss", "loss"], [str(f) for f in findings]


def test_of_a_packet_and_its_nak_that_were_both_lost_the_packet_is_named(tmp_path: Path) -> None:
    t, ack = talk()
    t.nak(61)
    t.frames[ack - 1] = Frame(t.frames.pop().data, t.frames[ack - 1].time_ns)
    findings = findings_of_two(tmp_path, without(t, ack), without(t, ack - 2))
    found = only(findings, "loss")  # and no tail-loss of the same packet
    assert found.title.startswith("PSN 61 was lost")
    assert found.title.endswith("lost between va.pcap and vb.pcap")
    assert found.evidence["repeated_packets"] == 3


def test_an_ack_that_both_captures_have_was_not_lost_between_them(tmp_path: Path) -> None:
    t, _ = talk()
    findings = findings_of_two(tmp_path, t.frames, t.frames)
    assert named(findings) == [], [str(f) for f in findings]
    assert [f.rule for f in findings] == ["needless-repeat"]


def test_a_capture_alone_leaves_it_open(tmp_path: Path) -> None:
    t, _ = talk(after_nak=True)
    assert "reordering" not in named(t.findings())


def test_a_nak_that_covers_a_psn_whose_own_nak_came_too_is_no_lost_ack(tmp_path: Path) -> None:
    """63 overtook 62: both were refused, one after the other; the requester heeded its timer only.

    The NAK for 63 says that 62 arrived, but the one before it told the requester to go back to 60.
    """
    t = Talk()
    for psn in range(60):
        settled(t, psn)
        t.wait(200 * US)
    missed = t.send(60, 2)
    t.nak(60)
    t.wait(50 * US)
    t.send(60, 2)
    t.wait(50 * US)
    t.ack(61)
    sent = t.send(62, 8)
    t.wait(300 * US)
    naks = t.nak(62), t.nak(63)
    t.wait(40 * MS)
    t.send(62, 8)
    t.wait(300 * US)
    t.ack(69)
    arrived = list(t.frames)
    first = t.frames[sent[62] - 1].time_ns
    for frame, after_ns in ((sent[63], 0), (naks[0], 5 * US), (sent[62], 10 * US), (naks[1], 20 * US)):
        arrived[frame - 1] = Frame(t.frames[frame - 1].data, first + after_ns)
    for psn in range(64, 70):
        arrived[sent[psn] - 1] = Frame(t.frames[sent[psn] - 1].data, first + 12 * US + psn)
    del arrived[missed[60] - 1]
    findings = findings_of_two(tmp_path, t.frames, arrived)
    repeated = {f.rule: f.evidence["repeated_packets"] for f in findings if f.rule in named([f])}
    assert repeated == {"loss": 2, "reordering": 8}, [str(f) for f in findings]


def test_a_repeat_sooner_than_the_timeout_after_an_ack_leaves_open_that_the_ack_was_lost() -> None:
    """rxe's timer had started before. A capture at the responder has the ACK, lost or not."""
    t, _ = talk()
    found = next(f for f in t.findings() if f.rule == "needless-repeat")
    assert "nothing in the capture shows a loss" in found.title
    assert found.evidence["or_not_in_capture"] == 1
    assert "may then have been lost behind it" in found.advice


def test_a_late_response_beside_one_that_was_lost_leaves_the_cause_open(tmp_path: Path) -> None:
    """A READ was requested twice. The first response was lost, the second came behind a third request."""
    t = Talk()
    for psn in range(0, 32, 4):
        t.read(psn, 4)
        t.responses(psn, 4)
        t.wait(200 * US)
    t.read(32, 4)
    t.wait(20 * US)
    lost = t.responses(32, 4)
    t.wait(2 * MS)
    t.read(32, 4)
    t.wait(40 * US)
    late = t.responses(32, 4)
    t.wait(40 * MS)
    t.read(32, 4)
    t.wait(40 * US)
    t.responses(32, 4)
    at_a = list(t.frames)
    for frame in late.values():  # they passed b long before, and come to a behind the third request
        at_a[frame - 1] = Frame(t.frames[frame - 1].data, t.frames[frame - 1].time_ns + 40 * MS + 20 * US)
    found = findings_of_two(tmp_path, [f for n, f in enumerate(at_a, 1) if n not in lost.values()], t.frames)
    short = next(f for f in found if f.rule == "timeout-too-short")
    assert "probably" in short.title
    assert short.title.endswith("or earlier responses were lost")


def test_an_ack_that_came_just_before_the_repeat_does_not_show_that_the_timer_is_too_short(
    tmp_path: Path,
) -> None:
    """rxe's RNR timer ran on after a NAK was obeyed, and fired 9 ms after the ACK had come."""
    t, ack = talk(connected=False)
    at_a = list(t.frames)
    at_a[ack - 1] = Frame(t.frames[ack - 1].data, t.frames[ack - 1].time_ns + 35 * MS)
    found = findings_of_two(tmp_path, at_a, t.frames)
    assert [f.rule for f in found] == ["needless-repeat"], [str(f) for f in found]
    assert found[0].evidence["or_not_in_capture"] == 1


@pytest.mark.parametrize(("messages", "rule"), [(1, "ack-loss"), (3, "ack-loss"), (4, "needless-repeat")])
def test_many_acks_that_came_to_the_requester_were_not_all_lost_behind_its_capture(
    tmp_path: Path, messages: int, rule: str
) -> None:
    """rxe repeated what twenty ACKs had acknowledged 14 ms before, and nothing was lost: it was behind."""
    t = Talk()
    for psn in range(60):
        settled(t, psn)
        t.wait(200 * US)
    last = 60 + 2 * messages - 1
    for _ in range(2):
        for psn in range(60, last, 2):
            t.send(psn, 2)
        t.wait(300 * US)
        for psn in range(61, last + 1, 2):
            t.ack(psn)
        t.wait(40 * MS)
    findings = findings_of_two(tmp_path, t.frames, t.frames)
    assert [f.rule for f in findings] == [rule], [str(f) for f in findings]
    if rule == "ack-loss":
        assert findings[0].title.endswith("lost beyond va.pcap")
    else:
        assert findings[0].evidence["or_not_in_capture"] == 1


def test_acks_behind_the_repeat_in_the_requester_s_file_need_not_be_lost(tmp_path: Path) -> None:
    """Their times are before the repeat, as a receiver's queue stamps them; it may have taken them later."""
    t, ack = talk(connected=False)
    stamped = t.frames[ack - 1]
    late = [*t.frames[: ack - 1], *t.frames[ack:-1], stamped, t.frames[-1]]
    for at_a, is_lost in ((t.frames, True), (late, False)):
        analysis = analysis_of_two(tmp_path, at_a, t.frames, by_time=False)
        assert ("ack-loss" in [f.rule for f in analysis.findings]) == is_lost


@pytest.mark.parametrize(("late_ms", "likely"), [(0, "was lost"), (20, "was probably lost")])
def test_one_that_passed_the_requesters_capture_late_may_have_come_too_late(
    tmp_path: Path, late_ms: int, likely: str
) -> None:
    """An overloaded host took an ACK that came half a timeout before its repeat only behind it."""
    t = Talk()
    t.connect()
    for psn in range(60):
        settled(t, psn)
        t.wait(200 * US)
    t.send(60)
    t.wait(late_ms * MS)
    t.ack(60)
    t.wait((70 - late_ms) * MS)
    t.send(60)
    t.wait(300 * US)
    t.ack(60)
    found = only(findings_of_two(tmp_path, t.frames, t.frames), "ack-loss")
    assert found.title.startswith(f"The ACK of PSN 60 {likely}")
