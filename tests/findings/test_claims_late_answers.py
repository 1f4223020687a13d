"""Answers that come late, and what a repeat was for: as captures of rxe at both ends showed it."""

from __future__ import annotations

from pathlib import Path

from capture_bytes import Frame
from talk import MS, TIMEOUT, US, Talk, of_rule, settled
from two_points import findings_of_two


def test_what_the_answer_to_a_repeat_covers_had_arrived() -> None:
    """The rest of the message was lost, and not the packet from which on it was sent again."""
    talk = settled(Talk(), 99)
    talk.write(100, 12, lost=range(102, 108))
    talk.wait(20 * US)
    talk.nak(102)
    talk.wait(20 * US)
    talk.write(100, 12, only=range(102, 104))
    talk.wait(20 * US)
    talk.ack(103)
    talk.write(100, 12, only=range(104, 107))
    talk.wait(TIMEOUT)
    talk.write(100, 12, only=[104])
    talk.wait(20 * US)
    talk.ack(106)
    talk.write(100, 12, only=range(105, 112))
    talk.wait(20 * US)
    for _ in range(2):
        talk.ack(106)
    talk.ack(111)
    (found,) = of_rule(talk.findings(), "tail-loss")
    assert found.evidence["psns"] == [107]


def test_of_two_naks_under_way_the_one_for_its_psn_has_the_go_back() -> None:
    talk = settled(Talk(), 99)
    talk.write(100, 10)
    talk.wait(50 * US)
    talk.nak(101)
    talk.nak(104)
    talk.wait(50 * US)
    talk.write(100, 10, only=range(101, 110))
    talk.wait(50 * US)
    talk.ack(109)
    stories = talk.evidence().stories
    assert sorted((s.psn, [run.first_psn for run in s.go_backs]) for s in stories) == [
        (101, [101]),
        (104, []),
    ]


def test_a_late_response_is_not_surely_the_cause_where_another_one_came_in_time(tmp_path: Path) -> None:
    """Two requests are answered at once; of the first answers one is overtaken, and the second are all there.

    The requester misses the overtaken one, and throws the second answers away, or waits for its timer only.
    """
    talk = settled(Talk(), 99)
    for psn in range(100, 110):
        talk.read(psn, 1)
        talk.wait(20 * US)
        talk.responses(psn, 1)
        talk.wait(20 * US)
    first = talk.read(110, 4)
    talk.wait(20 * MS)
    second = talk.read(110, 4)
    talk.wait(11 * MS)
    answers = talk.responses(110, 4)
    talk.wait(MS)
    talk.responses(110, 4)
    talk.wait(18 * MS)
    third = talk.read(110, 4, skip=1)
    talk.wait(10 * MS)
    late_ns = talk.now
    talk.responses(110, 4, skip=1)
    at_a = [Frame(f.data, late_ns) if n == answers[111] else f for n, f in enumerate(talk.frames, 1)]
    delay = {first: 30 * MS, second: 10 * MS, third: 9 * MS}
    at_b = [Frame(f.data, f.time_ns + delay.get(n, 0)) for n, f in enumerate(talk.frames, 1)]
    found = findings_of_two(tmp_path, at_a, at_b)
    for finding in of_rule(found, "timeout-too-short"):
        assert "probably" in finding.title


def test_a_repeat_that_crosses_the_answer_to_an_earlier_copy_is_probably_for_its_own_late_answer(
    tmp_path: Path,
) -> None:
    """Requests take 60 ms and answers 39.5 ms; the timer is 40 ms: an answer comes 0.5 ms early."""
    talk = settled(Talk(), 99)
    for first in range(100, 140, 4):
        talk.write(first, 4)
        talk.wait(20 * US)
        talk.ack(first + 3)
    start_ns, sent = talk.now, len(talk.frames)
    for after_ms in (0, 40, 100):
        talk.now = start_ns + after_ms * MS
        talk.write(140, 4)
    for after_ms in (60, 100, 160):
        talk.now = start_ns + after_ms * MS + 20 * US
        talk.ack(143)

    def moved(requests_ns: int, answers_ns: int) -> list[Frame]:
        return [
            Frame(f.data, f.time_ns + (n >= sent) * (requests_ns if n < sent + 12 else answers_ns))
            for n, f in enumerate(talk.frames)
        ]

    found = findings_of_two(tmp_path, moved(0, 39 * MS + 500 * US), moved(60 * MS, 0))
    (late,) = of_rule(found, "timeout-too-short")
    assert late.evidence["count"] == 2
    assert "1 of them probably" in late.title
    assert late.title.endswith("or earlier responses were lost")  # the requests are in both captures
    assert "the requests arrived" in late.advice
    assert "the requests were lost" not in late.advice


def test_answers_in_the_order_in_which_repeats_came_leave_a_lost_one_open(tmp_path: Path) -> None:
    """101 overtook 100 when both came again: it is answered first, and 100's answer may come too late.

    Nothing shows that it was lost behind the requester's capture, which has it.
    """
    t = Talk()
    t.connect()
    for psn in range(60, 100):
        t.atomic(psn)
        t.wait(20 * US)
        t.atomic_answer(psn)
        t.wait(200 * US)
    t.atomic(100)
    t.atomic(101)
    t.wait(20 * US)
    lost = [t.atomic_answer(100), t.atomic_answer(101)]
    t.wait(67 * MS)
    first, second = t.atomic(100), t.atomic(101)
    t.wait(20 * US)
    t.atomic_answer(101)
    t.atomic_answer(100)
    t.wait(20 * US)
    t.atomic(100)
    t.atomic(101)
    t.wait(20 * US)
    t.atomic_answer(100)
    t.atomic_answer(101)
    at_a = [f for n, f in enumerate(t.frames, 1) if n not in lost]
    at_b = list(at_a)
    at = at_b.index(t.frames[first - 1])
    assert at_b[at + 1] is t.frames[second - 1]
    at_b[at], at_b[at + 1] = (Frame(at_b[k].data, at_b[n].time_ns) for k, n in ((at + 1, at), (at, at + 1)))
    (found,) = of_rule(findings_of_two(tmp_path, at_a, at_b), "implied-nak")
    assert "beyond va.pcap" not in found.title


def lost_and_doubled(*, copied: bool) -> Talk:
    """PSN 120 gets no answer, and its repeat gets two: that came twice, or only one of them is to it."""
    t = Talk()
    t.connect()
    for psn in range(80, 120):
        settled(t, psn)
        t.wait(200 * US)
    t.send(120)
    t.wait(TIMEOUT)
    again = t.send(120)[120]
    if copied:
        t.again(again)
    t.wait(20 * US)
    t.ack(120)
    t.ack(120)
    return t


def test_each_copy_of_a_repeat_draws_an_answer() -> None:
    assert "timeout-too-short" in [f.rule for f in lost_and_doubled(copied=False).findings()]
    assert "timeout-too-short" not in [f.rule for f in lost_and_doubled(copied=True).findings()]
