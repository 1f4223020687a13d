"""Copies of several passes under way at once: of which one a NAK tells, and what a pass lacks.

All of it was said wrongly of rxe devices, with RNR NAKs, late packets and two processors' queues between.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, US, Talk, named, of_rule, only, settled
from two_points import findings_of_two

from rocekit.findings.stories.copies import is_mixed
from rocekit.track.passes import Pass


def moved(frames: list[Frame], number: int, ns: int) -> None:
    """A frame comes at another time."""
    frame = frames[number - 1]
    frames[number - 1] = Frame(frame.data, frame.time_ns + ns)


def two(folder: Path, at_a: list[Frame], at_b: list[Frame]) -> list[str]:
    findings = findings_of_two(folder, sorted(at_a, key=_time), sorted(at_b, key=_time))
    return [f.rule for f in findings]


def _time(frame: Frame) -> int:
    return frame.time_ns


@pytest.mark.parametrize("first", ["nak", "ack"])
def test_a_nak_behind_an_ack_of_its_packet_proves_no_loss(first: str) -> None:
    """The responses overtook each other. What the NAK missed has come since: perhaps it was only late."""
    t = settled(Talk(), 99)
    for psn in range(100, 105):
        t.send(psn)
    t.wait(50 * US)
    if first == "ack":
        t.ack(104)
    t.nak(102)
    if first == "nak":
        t.wait(50 * US)
        for psn in range(102, 105):
            t.send(psn)
        t.wait(50 * US)
        t.ack(104)
    found = only(t.findings(), "loss")
    assert ("probably" in found.title) == (first == "ack")
    assert ("behind an ACK" in found.advice) == (first == "ack")


@pytest.mark.parametrize("late", [False, True])
def test_an_atomic_s_response_that_was_overtaken_before_the_requester_s_capture_was_not_lost(
    late: bool, tmp_path: Path
) -> None:
    t = Talk()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    for psn in (20, 21, 22):
        t.atomic(psn)
    t.wait(50 * US)
    answers = [t.atomic_answer(psn) for psn in (20, 21, 22)]
    t.wait(300 * US)
    for psn in (20, 21, 22):
        t.atomic(psn)
    t.wait(50 * US)
    for psn in (20, 21, 22):
        t.atomic_answer(psn)
    t.wait(100 * US)
    settled(t, 23)
    at_a = list(t.frames)
    if late:
        moved(at_a, answers[0], 100 * US)
    else:
        at_a[answers[0] - 1 : answers[0]] = []
    rules = two(tmp_path, at_a, t.frames)
    assert ("implied-nak" in rules, "reordering" in rules) == (not late, late)


def test_a_nak_sent_before_a_copy_came_is_for_an_earlier_one(tmp_path: Path) -> None:
    """That one came behind a gap, which a late packet filled; the NAK is for what was thrown away there."""
    t = Talk()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    sent = {psn: t.send(psn)[psn] for psn in range(20, 26)}
    t.wait(300 * US)
    t.send(20)  # an RNR NAK that is in no capture made it go back
    t.wait(300 * US)
    nak = t.nak(22)
    t.wait(20 * US)
    for psn in range(21, 26):
        t.send(psn)
    t.wait(400 * US)
    for psn in range(22, 26):
        t.send(psn)
    t.wait(100 * US)
    t.ack(25)
    at_a, at_b = list(t.frames), list(t.frames)
    moved(at_b, sent[21], 400 * US)
    moved(at_a, nak, 100 * US)
    findings = findings_of_two(tmp_path, sorted(at_a, key=_time), sorted(at_b, key=_time))
    assert [f.title for f in of_rule(findings, "loss") if "beyond" in f.title] == []
    assert of_rule(findings, "loss") == [] or "probably" in of_rule(findings, "loss")[0].title


def test_a_pass_that_ends_before_it_begins_lacks_nothing() -> None:
    """Packets of two passes stand in turns, as two queues' times do: what one lacks, the other has."""
    of_pass = Pass(3, 100, 2 * MS)
    assert not is_mixed(of_pass)
    of_pass.ended_ns = 3 * MS
    assert not is_mixed(of_pass)
    of_pass.ended_ns = MS
    assert is_mixed(of_pass)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_messages_whose_beginning_never_comes_are_the_capture_s_gap_only_if_acknowledged(
    acknowledged: bool,
) -> None:
    """A link that is too small for the first packets of messages drops each of them, again and again."""
    t = settled(Talk(), 99)
    for _ in range(3):
        for first in (100, 102, 104):
            t.write(first, 2, lost={first})
        t.wait(50 * US)
        if not acknowledged:
            t.nak(100)
        t.wait(70 * MS)
    if acknowledged:
        t.ack(105)
    rules = [f.rule for f in t.findings()]
    assert ("capture-gap" in rules) == acknowledged
    assert named(t.findings())


@pytest.mark.parametrize("identified", [False, True])
def test_a_go_back_of_which_a_packet_is_lost_again_is_only_probably_late(identified: bool) -> None:
    """What filled the gap may have been sent again: too few packets came to know what identifications say."""
    t = Talk()
    if not identified:
        t.common = {"identification": 0}
    t.write(99, 8, only=(99, 102))
    t.wait(80 * US)
    t.nak(100)
    t.wait(180 * US)
    t.write(99, 8, only=(100, 101))
    t.ident += 1  # 102 was sent again too, and lost
    t.write(99, 8, only=(103,))
    t.wait(50 * US)
    t.nak(102)
    t.wait(120 * US)
    t.write(99, 8, only=(104, 105, 106))
    assert "2 packets probably arrived out of order" in only(t.findings(), "reordering").title


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_sent_again_without_need_may_be_so_for_another_packet_lost_between(
    lost: bool, tmp_path: Path
) -> None:
    t = Talk()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    for again in (False, True):
        for psn in (20, 21, 22):
            t.send(psn)
        t.wait(100 * US)
        if not again:
            t.ack(20)
        t.ack(22)
        t.wait(300 * US)
    sent = {psn: t.send(psn)[psn] for psn in (23, 24, 25)}
    t.wait(100 * US)
    if lost:
        t.nak(24)
        t.wait(100 * US)
        for psn in (24, 25):
            t.send(psn)
        t.wait(100 * US)
    t.ack(25)
    at_b = [frame for n, frame in enumerate(t.frames, 1) if not (lost and n == sent[24])]
    (found,) = of_rule(findings_of_two(tmp_path, t.frames, at_b), "needless-repeat")
    assert ("shows that these were lost" in found.title) == lost
    assert ("a later capture lacks packets of this direction" in found.advice) == lost


@pytest.mark.parametrize("others_late", [False, True])
def test_a_connection_s_first_packet_that_came_behind_its_nak_may_only_be_late(others_late: bool) -> None:
    """Its identification is below that of what came first, but too few came to know that they are counted."""
    t = settled(Talk(), 99)
    t.ident = 203
    t.send(103)  # sent last, came first
    t.wait(50 * US)
    t.ident = 300
    t.nak(100)
    t.wait(300 * US)
    t.ident = 200
    for psn in (100, 101, 102):
        t.send(psn)
    t.wait(100 * US)
    t.ident = 204
    for psn in (103, 104):
        t.send(psn)
        t.wait(50 * US)
        t.ack(psn)
        t.wait(100 * US)
    for first in range(105, 125, 2):
        sent = t.send(first)[first], t.send(first + 1)[first + 1]
        if others_late:
            moved(t.frames, sent[0], 10 * US)
        t.wait(50 * US)
        t.ack(first + 1)
        t.wait(100 * US)
    t.frames.sort(key=_time)
    found = only(t.findings(), "loss")
    assert ("probably" in found.title) == others_late
    assert ("overtaken; it may only have come late" in found.advice) == others_late
