"""What two captures say of the packets of one direction, before anything is decided from it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from talk import MS, US, Talk, settled
from two_points import analysis_of_two

from rocekit.findings.stories.capture_view import CaptureView


def view_of(folder: Path, talk: Talk) -> CaptureView:
    """The view of the only connection's requests, all of which both captures have."""
    evidence = analysis_of_two(folder, talk.frames, talk.frames).evidence
    assert evidence is not None
    story = evidence.stories[0]
    assert story.side == 0
    return CaptureView(evidence, story, frozenset())


@pytest.mark.parametrize(
    ("late", "taken"),
    [
        pytest.param((), True, id="behind all of its message"),
        pytest.param((61,), False, id="before the last packet came again"),
        pytest.param((60, 61), False, id="before both came again"),
    ],
)
def test_an_ack_is_not_taken_while_its_message_is_sent_again(
    tmp_path: Path, late: Collection[int], taken: bool
) -> None:
    """60 and 61 are sent, and again: what is sent again behind the ACK is ``late``."""
    t = settled(Talk(), 59)
    t.send(60, 2)
    t.wait(9 * MS)
    t.send(60, 2, only=[psn for psn in (60, 61) if psn not in late])
    t.wait(20 * US)
    ack = t.ack(61)
    t.wait(20 * US)
    t.send(60, 2, only=late)
    t.wait(40 * MS)
    t.send(60, 2)
    t.wait(20 * US)
    t.ack(61)
    view = view_of(tmp_path, t)
    answer = view.sent(61, request=False)[0]
    assert answer.time_ns == t.frames[ack - 1].time_ns
    assert view.is_taken(61, answer, answer.time_ns + 39 * MS) == taken


@pytest.mark.parametrize(
    ("second", "skipped", "nor_later"),
    [
        pytest.param((60, 62, 63), True, True, id="lost"),
        pytest.param((60, 62, 63, 61), True, False, id="overtaken"),
        pytest.param((60, 61, 62, 63), False, False, id="in order"),
    ],
)
def test_a_packet_that_the_last_pass_lacks_is_skipped_though_an_earlier_copy_came(
    tmp_path: Path, second: tuple[int, ...], skipped: bool, nor_later: bool
) -> None:
    t = settled(Talk(), 59)
    t.send(60, 4)
    t.wait(200 * US)
    t.rnr(60)
    t.wait(2 * MS)
    for psn in second:
        t.send(60, 4, only=[psn])
    t.wait(200 * US)
    nak = t.nak(61)
    t.wait(200 * US)
    t.send(60, 4, only=[61, 62, 63])
    t.wait(20 * US)
    t.ack(63)
    view = view_of(tmp_path, t)
    until_ns = t.frames[nak - 1].time_ns
    assert view.is_skipped(61, until_ns) == skipped
    assert view.is_skipped(61, until_ns, or_later=True) == nor_later


@pytest.mark.parametrize("answered", [False, True])
def test_a_nak_is_no_answer_to_the_packet_that_it_names(tmp_path: Path, answered: bool) -> None:
    """Nor where it is not the story's own, as of two go-backs of which the captures lack what is between."""
    t = settled(Talk(), 59)
    t.send(60, 4, lost=(61,))
    t.wait(20 * US)
    t.nak(61)
    if answered:
        t.ack(61)
    t.wait(200 * US)
    t.send(60, 4, only=[61, 62, 63])
    t.wait(20 * US)
    t.ack(63)
    evidence = analysis_of_two(tmp_path, t.frames, t.frames).evidence
    assert evidence is not None
    story = next(s for s in evidence.stories if s.psn == 61)
    story.naks = []
    assert CaptureView(evidence, story, frozenset()).is_answered_between(story) == answered
