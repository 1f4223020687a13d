"""A capture that misses what drew a NAK, and has the packet that it names for the first time behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from talk import US, Talk, of_rule
from two_points import findings_of_two


def first_behind(*, identified: bool = True, back: bool = False, drew: bool = False) -> tuple[Talk, set[int]]:
    """103 comes behind its NAK: late, or sent again (``back``); ``drew``: 104 is there, which drew the NAK.

    With it, the frames that only the receiver's capture has.
    """
    t = Talk()
    if not identified:
        t.common = {"identification": 0}
    for psn in range(90, 100):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    t.send(100, 10, only=range(100, 103))
    held = t.ident = t.ident + 1
    frames = set(t.send(100, 10, only=[104]).values())
    if not drew:
        t.frames.pop()
    t.wait(20 * US)
    t.nak(103)
    t.wait(100 * US if back else 5 * US)
    late: dict[str, Any] = {"identification": held} if identified and not back else {}
    t.send(100, 10, only=[103], **late)
    t.send(100, 10, only=range(104 if back else 105, 110))
    t.wait(20 * US)
    t.ack(109)
    return t, frames


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("identified", [False, True])
def test_what_first_comes_behind_its_nak_was_lost_or_is_late(identified: bool, back: bool) -> None:
    """The capture cannot tell the two cases: it has neither 103 nor 104 before the NAK."""
    t, _ = first_behind(identified=identified, back=back)
    (found,) = of_rule(t.findings(), "loss")
    assert found.title.startswith("PSN 103 was probably lost")
    assert found.title.endswith("not in the capture before its NAK")
    assert "or it is the first copy, late" in found.advice
    assert found.evidence["or_overtaken"] == 1


def test_the_packet_that_drew_the_nak_shows_that_it_was_lost() -> None:
    t, _ = first_behind(back=True, drew=True)
    (found,) = of_rule(t.findings(), "loss")
    assert found.title.startswith("PSN 103 was lost")
    assert "first copy" not in found.advice


@pytest.mark.parametrize("identified", [False, True])
def test_of_two_captures_that_miss_what_drew_the_nak_neither_tells(tmp_path: Path, identified: bool) -> None:
    t, _ = first_behind(identified=identified)
    found = [f for f in findings_of_two(tmp_path, t.frames, t.frames) if f.rule in ("loss", "reordering")]
    assert found
    assert all("probably" in f.title for f in found), [f.title for f in found]
