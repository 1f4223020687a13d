"""READs whose second request, or whose first one, is not in the capture: what comes late then is not late."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, TIMEOUT, US, Talk, of_rule
from two_points import findings_of_two


def test_a_response_that_was_sent_last_is_not_late_however_many_came_since() -> None:
    """The capture lacks the request for 103 that came between; its identification is above all before."""
    talk = Talk(mtu=1024)
    talk.connect()
    talk.read(100, 100)
    talk.wait(50 * US)
    talk.responses(100, 100, lost=(103,))
    talk.wait(100 * MS)
    talk.responses(100, 100, skip=3)
    assert not of_rule(talk.findings(), "reordering")


def test_a_response_that_was_sent_before_many_others_is_late() -> None:
    talk = Talk(mtu=1024)
    talk.connect()
    talk.read(100, 100)
    talk.wait(50 * US)
    sent = talk.responses(100, 100)
    talk.frames.append(talk.frames.pop(sent[103] - 1))
    found = of_rule(talk.findings(), "reordering")
    assert [f.evidence["psns"] for f in found] == [[103]]


def test_the_first_request_of_a_capture_was_overtaken_by_none() -> None:
    """It was begun among the responses to 100 and 116, which the requester asks for again."""
    talk = Talk(mtu=1024)
    talk.connect()
    talk.ident = 20_000  # far from those of a sender that begins at 0
    for psn in (100, 116, 132):
        talk.read(psn, 16)
    talk.wait(50 * US)
    before = talk.responses(100, 16, lost=(104,))[111]
    talk.responses(116, 16, lost=range(117, 132))
    talk.read(100, 16, skip=4)
    for psn in (116, 132):
        talk.read(psn, 16)
    talk.responses(116, 16, lost=(116,))
    talk.responses(132, 16)
    talk.wait(50 * US)
    talk.responses(100, 16, skip=4)
    for psn in (116, 132):
        talk.responses(psn, 16)
    del talk.frames[:before]
    assert not of_rule(talk.findings(), "reordering")


def late_answers(*, hole: bool) -> Talk:
    """Nothing answers a READ before its timeout; what comes then has a response late (``hole``), or none."""
    talk = Talk(mtu=1024)
    talk.connect()
    talk.read(92, 8)
    talk.wait(50 * US)
    talk.responses(92, 8)
    talk.read(100, 8)
    talk.wait(2 * TIMEOUT)
    talk.read(100, 8)
    talk.wait(20 * MS)
    first = talk.responses(100, 8)
    if hole:
        talk.frames.insert(first[105], talk.frames.pop(first[104] - 1))
    talk.wait(20 * MS)
    talk.responses(100, 8)
    talk.read(108, 8)
    talk.wait(50 * US)
    talk.responses(108, 8)
    return talk


@pytest.mark.parametrize("hole", [False, True])
def test_a_response_that_is_missing_behind_the_repeat_did_not_draw_it(hole: bool) -> None:
    """The responder was slow: its first responses came behind the repeat (drawn experiment 704, recorded)."""
    findings = late_answers(hole=hole).findings()
    assert not of_rule(findings, "implied-nak")


@pytest.mark.parametrize("late", [103, 104])
def test_a_response_thrown_away_behind_a_late_one_is_probably_why_it_is_asked_for(
    late: int, tmp_path: Path
) -> None:
    """103 came behind 104, so 104 was thrown away; where 104 came late itself, that is sure."""
    talk = Talk(mtu=1024)
    for psn in range(60, 100, 4):
        talk.read(psn, 4)
        talk.wait(50 * US)
        talk.responses(psn, 4)
    talk.read(100, 8)
    talk.wait(50 * US)
    first = talk.responses(100, 8)
    talk.wait(200 * US)
    talk.read(100, 8, skip=4)
    talk.wait(50 * US)
    talk.responses(100, 8, skip=4)
    at_a = list(talk.frames)
    original = at_a[first[late] - 1]
    at_a[first[late] - 1] = Frame(original.data, original.time_ns + 20 * US)
    (found,) = of_rule(findings_of_two(tmp_path, at_a, talk.frames), "reordering")
    assert ("probably" in found.title) == (late == 103), found.title
    assert 104 in found.evidence["psns"]
