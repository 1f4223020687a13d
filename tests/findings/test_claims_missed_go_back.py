"""A go-back that no capture has: two NAKs of two passes look like those of one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from talk import US, Talk, of_rule
from two_points import findings_of_two


def two_naks() -> tuple[Talk, set[int], int]:
    """143 is lost, and 150 of the go-back; the frames of that, and of the first copy of 143."""
    t = Talk()
    for psn in range(100, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    lost = t.send(140, 20)[143]
    t.wait(20 * US)
    t.nak(143)
    t.wait(100 * US)
    missed = set(t.send(140, 20, only=range(143, 160)).values())
    t.wait(20 * US)
    t.nak(150)
    t.wait(100 * US)
    t.send(140, 20, only=range(150, 160))
    t.wait(20 * US)
    t.ack(159)
    return t, missed, lost


def without(talk: Talk, missed: set[int]) -> Talk:
    talk.frames = [frame for n, frame in enumerate(talk.frames, 1) if n not in missed]
    return talk


def test_a_packet_that_one_capture_has_and_the_other_not_was_lost_between(tmp_path: Path) -> None:
    t, missed, lost = two_naks()
    at_a, at_b = (
        [f for n, f in enumerate(t.frames, 1) if n not in gone] for gone in (missed, missed | {lost})
    )
    findings = findings_of_two(tmp_path, at_a, at_b)
    assert not of_rule(findings, "reordering")
    (loss,) = of_rule(findings, "loss")
    assert loss.evidence["psns"] == [143, 150]


@pytest.mark.parametrize("lacks", [False, True])
def test_a_capture_may_lack_a_whole_go_back_though_it_lacks_no_psn(lacks: bool) -> None:
    t, missed, _ = two_naks()
    (found,) = of_rule(without(t, missed | ({3, 5, 9} if lacks else set())).findings(), "reordering")
    assert "probably" in found.title
    assert "may lack a whole go-back" in found.advice


@pytest.mark.parametrize("seed", [1, 29])
def test_two_captures_that_miss_every_second_packet_tell_of_none_why_it_came_again(
    tmp_path: Path, seed: int
) -> None:
    """What they miss together is one in four, which the packets that came again need not show."""
    t = Talk()
    for psn in range(100, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    t.send(140, 20, lost={143})
    t.wait(20 * US)
    t.nak(143)
    t.wait(100 * US)
    t.send(140, 20, only=range(143, 160))
    t.wait(20 * US)
    t.ack(159)
    chance = random.Random(seed)
    at_a, at_b = ([f for f in t.frames if chance.random() < 0.5] for _ in "ab")
    found = [f for f in findings_of_two(tmp_path, at_a, at_b) if f.rule in ("loss", "reordering")]
    assert found
    assert all("probably" in f.title for f in found)


@pytest.mark.parametrize("identified", [True, False])
def test_a_repeat_that_the_first_capture_misses_is_not_its_original_come_late(
    tmp_path: Path, identified: bool
) -> None:
    """Without identifications the second capture's copy may be either (``recorded-725`` as from hardware)."""
    t = Talk()
    if not identified:
        t.common = {"identification": 0}
    for psn in range(100, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    sent = t.send(140, 20)
    t.wait(20 * US)
    t.nak(143)
    t.wait(100 * US)
    repeat = t.send(140, 20, only=range(143, 160))[143]
    t.wait(20 * US)
    t.ack(159)
    at_a, at_b = (
        [f for n, f in enumerate(t.frames, 1) if n not in gone] for gone in ({repeat, 21}, {sent[143]})
    )
    findings = findings_of_two(tmp_path, at_a, at_b)
    assert not of_rule(findings, "reordering")
    (loss,) = of_rule(findings, "loss")
    assert loss.evidence["psns"] == [143]
    assert ("probably" in loss.title) is not identified
