"""Atomics of which requests and responses are lost, again and again: nothing was overtaken, nothing late.

Real rxe devices and ``tc`` showed each of these: the shortest turnaround before the first loss was far from
the shortest possible, and requesters threw away answers that they had.
"""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, TIMEOUT, US, Talk, named, of_rule, only, settled

import rocekit
from rocekit.track.passes import BEHIND, Passes
from rocekit.track.progress import Progress

#: So many answers show how soon a responder can answer.
ENOUGH = 16


def slow_at_first(turnaround_ns: int, answers: int = 1) -> Talk:
    """Each of the first answers takes so long."""
    talk = Talk()
    for psn in range(100 - answers, 100):
        talk.send(psn)
        talk.wait(turnaround_ns)
        talk.ack(psn)
    return talk


def refused_twice(talk: Talk, second_after_ns: int) -> Talk:
    """102 is lost behind the capture, then 105 in the pass that begins with it, whose NAK comes so soon."""
    for psn in range(100, 108):
        talk.atomic(psn)
    talk.wait(3 * MS)
    for psn in (100, 101):
        talk.atomic_answer(psn)
    talk.nak(102)
    for psn in range(102, 108):
        talk.atomic(psn)
    talk.wait(second_after_ns)
    for psn in (102, 103, 104):
        talk.atomic_answer(psn)
    talk.nak(105)
    for psn in range(105, 108):
        talk.atomic(psn)
    talk.wait(1 * MS)
    for psn in range(105, 108):
        talk.atomic_answer(psn)
    return talk


@pytest.mark.parametrize("after_us", [1200, 1500, 1900])
def test_answers_a_little_sooner_than_the_first_are_to_what_was_just_sent(after_us: int) -> None:
    """rxe in a machine that had slept: 2.1 ms for the first answer, 1.8 ms for those behind it."""
    t = refused_twice(slow_at_first(2 * MS), after_us * US)
    found = only(t.findings(), "loss")
    assert found.evidence["psns"] == [102, 105]
    assert found.evidence["lost_behind_capture_point"] == 2
    assert found.evidence["or_overtaken"] == 1
    assert "an earlier copy that came late may have drawn it" in found.advice


def test_naks_in_new_packets_shorten_the_turnaround() -> None:
    """Each NAK that a packet sent once drew says how soon the responder answers."""
    t = slow_at_first(2 * MS)
    for psn, after_ns in ((100, 2 * MS), (102, 40 * US)):  # the one behind each draws a NAK so soon
        t.atomic(psn)
        t.atomic(psn + 1)
        t.wait(after_ns)
        t.nak(psn)
        t.atomic(psn)
        t.atomic(psn + 1)
        t.wait(60 * US)
        t.atomic_answer(psn)
        t.atomic_answer(psn + 1)
    for psn in range(104, 110):
        t.atomic(psn)
    t.wait(60 * US)
    t.nak(104)
    for psn in range(104, 110):
        t.atomic(psn)
    t.wait(60 * US)
    t.atomic_answer(104)
    t.atomic_answer(105)
    t.nak(106)  # of 2 ms this would be too soon for what was just sent
    for psn in range(106, 110):
        t.atomic(psn)
    t.wait(60 * US)
    for psn in range(106, 110):
        t.atomic_answer(psn)
    found = only(t.findings(), "loss")
    assert found.evidence["psns"] == [100, 102, 104, 106]
    assert found.evidence["or_overtaken"] == 0


def test_a_nak_much_too_soon_was_drawn_by_a_late_packet() -> None:
    t = settled(Talk(), 99)
    assert named(refused_twice(slow_at_first(2 * MS, ENOUGH), 100 * US).findings()) == ["reordering"]
    assert named(refused_twice(t, 100 * US).findings()) == ["loss"]


@pytest.mark.parametrize("answers", [1, ENOUGH - 2])  # the first NAK is one more
def test_few_answers_do_not_show_that_a_nak_came_too_soon(answers: int) -> None:
    """A capture that begins in the middle of losses has few, and slow ones: no loss is an order for that."""
    found = only(refused_twice(slow_at_first(2 * MS, answers), 100 * US).findings(), "loss")
    assert found.evidence["psns"] == [102, 105]
    assert found.evidence["or_overtaken"] == 1


def at_both_ends(folder: Path, talk: Talk, lost: set[int], *, flight_ns: int = US // 2) -> list[Path]:
    """Captures at a and at b, of which each lacks the frames that are lost on their way to it."""
    there = [Frame(f.data, f.time_ns + (flight_ns if f.data[29] == 1 else -flight_ns)) for f in talk.frames]
    files = [folder / "a.pcap", folder / "b.pcap"]
    lost_at_a = {n for n in lost if talk.frames[n - 1].data[29] == 2}
    files[0].write_bytes(pcap([f for n, f in enumerate(talk.frames, 1) if n not in lost_at_a], unit="ns"))
    at_b = [f for n, f in enumerate(there, 1) if n not in lost - lost_at_a]
    files[1].write_bytes(pcap(sorted(at_b, key=attrgetter("time_ns")), unit="ns"))
    return files


def test_a_request_whose_answer_the_requester_threw_away_is_missed_without_silence(tmp_path: Path) -> None:
    """First the answer to 100 is lost, then the request 101: answers behind each make a ask again."""
    t, lost = settled(Talk(), 99), set()
    for psn in (100, 101, 102):
        t.atomic(psn)
    t.wait(50 * US)
    lost.add(t.atomic_answer(100))
    for psn in (101, 102):
        t.atomic_answer(psn)
    requests = [t.atomic(psn) for psn in (100, 101, 102)]
    lost.add(requests[1])
    t.wait(50 * US)
    t.atomic_answer(100)
    t.atomic_answer(102)
    for psn in (101, 102):
        t.atomic(psn)
    t.wait(50 * US)
    for psn in (101, 102):
        t.atomic_answer(psn)
    findings = rocekit.analyze(*at_both_ends(tmp_path, t, lost)).findings
    assert named(findings) == ["implied-nak", "loss"]
    loss, implied = (next(f for f in findings if f.rule == rule) for rule in ("loss", "implied-nak"))
    assert loss.evidence["psns"] == [101]
    assert implied.evidence["psns"] == [100]
    assert [p["lost"] for f in (loss, implied) for p in f.evidence["places"]] == ["between"] * 2


def test_a_later_request_that_was_lost_too_is_not_the_cause(tmp_path: Path) -> None:
    """Of the answers to 100 to 102 the first is lost, and so is the request 102 of the same burst."""
    t, lost = settled(Talk(), 99), set()
    requests = [t.atomic(psn) for psn in range(100, 105)]
    lost.add(requests[4])
    t.wait(50 * US)
    lost.add(t.atomic_answer(100))
    for psn in (101, 102, 103):
        t.atomic_answer(psn)
    for psn in range(100, 105):
        t.atomic(psn)
    t.wait(50 * US)
    for psn in range(100, 105):
        t.atomic_answer(psn)
    findings = rocekit.analyze(*at_both_ends(tmp_path, t, lost)).findings
    implied = next(f for f in findings if f.rule == "implied-nak")
    assert implied.evidence["psns"] == [100]
    assert "tail-loss" not in named(findings)


def test_an_answer_in_time_that_the_requester_did_not_take_was_not_too_late(tmp_path: Path) -> None:
    """The answer to 101 is in both captures, before the repeat: behind them it was lost, or overtaken."""
    t = settled(Talk(), 99)
    for psn in (100, 101, 102):
        t.atomic(psn)
    t.wait(50 * US)
    for psn in (100, 101):
        t.atomic_answer(psn)
    t.wait(2 * MS)
    for psn in (101, 102):
        t.atomic(psn)
    t.wait(50 * US)
    for psn in (101, 102):
        t.atomic_answer(psn)
    assert "timeout-too-short" not in named(rocekit.analyze(*at_both_ends(tmp_path, t, set())).findings)


def test_an_answer_that_came_while_an_earlier_one_was_missing_was_thrown_away(tmp_path: Path) -> None:
    """The answer to 101 came, and then one more to 100: the requester missed the first one of these."""
    t, lost = settled(Talk(), 99), set()
    for psn in (100, 101, 102):
        t.atomic(psn)
    t.wait(50 * US)
    lost.add(t.atomic_answer(100))
    t.atomic_answer(101)
    t.atomic_answer(100)
    t.wait(2 * TIMEOUT)
    for psn in (101, 102):
        t.atomic(psn)
    t.wait(50 * US)
    for psn in (101, 102):
        t.atomic_answer(psn)
    found = only(rocekit.analyze(*at_both_ends(tmp_path, t, lost)).findings, "implied-nak")
    assert found.evidence["psns"] == [101]
    assert "lost or overtaken" in found.title
    assert "places" not in found.evidence


def test_an_answer_sent_behind_the_repeat_is_not_what_was_missed(tmp_path: Path) -> None:
    """The responder is slow: it answers 100 when the repeat is on its way, and that answer is lost."""
    t = settled(Talk(), 99)
    t.atomic(100)
    t.wait(TIMEOUT)
    t.atomic(100)
    t.wait(400 * US)
    lost = {t.atomic_answer(100)}
    t.wait(500 * US)
    t.atomic_answer(100)
    found = only(
        rocekit.analyze(*at_both_ends(tmp_path, t, lost, flight_ns=300 * US)).findings, "implied-nak"
    )
    assert "was lost or overtaken" in found.title
    assert "places" not in found.evidence


def test_a_nak_that_came_before_a_pass_began_is_not_that_pass_s() -> None:
    """Where times run back, a NAK may stand behind what was sent later: its time tells its pass."""
    passes = Passes(Progress(reliable=True))
    passes.begin(102, 1 * MS, 107, MS // 2, -1)
    passes.begin(103, 9 * MS, 107, 2 * MS, -1)
    copy, of_pass = passes.judge(104, 8 * MS, 107, 9 * MS, 10 * US, ENOUGH)
    assert (copy, of_pass) == (BEHIND, passes.before)


def test_an_atomic_answered_twice_may_be_late_where_the_network_makes_copies() -> None:
    """Its repeat may have been doubled, as others were, or its original came after all."""
    t = Talk()
    t.connect()
    for psn in range(90, 100):
        t.atomic(psn)
        t.wait(60 * US)
        t.atomic_answer(psn)
        if psn % 3 == 0:
            t.atomic_answer(psn)
    t.atomic(100)
    t.atomic(101)
    t.wait(60 * US)
    t.nak(100)
    t.atomic(100)
    t.atomic(101)
    t.wait(60 * US)
    t.atomic_answer(100)
    t.atomic_answer(100)
    t.atomic_answer(101)
    found = only(t.findings(), "loss")
    assert found.title.startswith("PSN 100 was probably lost on ")


@pytest.mark.parametrize("moved", ["nothing", "behind the next answer", "behind the repeat"])
def test_an_answer_that_its_file_has_too_late_need_not_be_lost(tmp_path: Path, moved: str) -> None:
    """rxe's host stamps a packet when it queues it; another processor's packets may be taken before it."""
    t = Talk()
    t.connect()
    for psn in range(90, 100):
        t.atomic(psn)
        t.wait(60 * US)
        t.atomic_answer(psn)
    t.atomic(100)
    t.atomic(101)
    t.wait(60 * US)
    answer = t.atomic_answer(100)
    place = {"behind the next answer": t.atomic_answer(101)}
    t.wait(60 * US)
    place["behind the repeat"] = t.atomic(100)
    t.atomic(101)
    t.wait(60 * US)
    for psn in (100, 101):
        t.atomic_answer(psn)
    files = at_both_ends(tmp_path, t, set())
    if moved in place:
        frames = list(t.frames)
        frames.insert(place[moved] - 1, frames.pop(answer - 1))
        files[0].write_bytes(pcap(frames, unit="ns"))
    found = only(rocekit.analyze(*files).findings, "implied-nak")
    assert "places" not in found.evidence or moved == "nothing"
    assert ("lost or overtaken" in found.title) == (moved != "nothing")


@pytest.mark.parametrize("missing", [False, True])
def test_a_timer_is_not_called_too_short_where_an_earlier_answer_was_lost(
    tmp_path: Path, missing: bool
) -> None:
    """The way takes 60 ms, the timer 100. Where the first answer to 100 is lost, that to 101 shows it."""
    t, lost = Talk(), set()

    def answered() -> int:
        first = t.atomic_answer(100)
        t.atomic_answer(101)
        return first

    def asked() -> None:
        for psn in (100, 101):
            t.atomic(psn)

    t.send(99)
    t.wait(121 * MS)
    t.ack(99)
    asked()
    t.wait(100 * MS)
    asked()
    t.wait(21 * MS)
    first = answered()
    t.wait(60 * MS)
    if missing:
        lost.add(first)
        asked()
    t.wait(40 * MS)
    answered()
    t.wait(81 * MS)
    if missing:
        answered()
    files = at_both_ends(tmp_path, t, lost, flight_ns=60 * MS)
    (found,) = of_rule(rocekit.analyze(*files).findings, "timeout-too-short")
    assert ("probably" in found.title) == missing
