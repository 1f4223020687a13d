"""What was sent before the second of two captures began is not in it, and was not lost for that."""

from __future__ import annotations

from pathlib import Path

import pytest
from talk import MS, US, Talk, of_rule
from two_points import findings_of_two


def going() -> Talk:
    t = Talk()
    for psn in range(100, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    return t


@pytest.mark.parametrize("has_first", [False, True])
def test_a_request_before_a_silence_in_which_it_begins(tmp_path: Path, has_first: bool) -> None:
    """140 is sent, its ACK is lost before both, and it comes again as the first packet of B's capture."""
    t = going()
    sent = t.send(140)[140]
    t.wait(270 * MS)
    t.send(140)
    t.wait(20 * US)
    t.ack(140)
    for psn in range(141, 180):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    at_b = t.frames if has_first else t.frames[sent:]
    for found in findings_of_two(tmp_path, t.frames, at_b):
        if found.rule in ("tail-loss", "loss"):
            assert "or its response" in found.title or "probably" in found.title, found.title
            assert not found.evidence.get("places")


def test_a_nak_for_what_was_sent_before_both_began(tmp_path: Path) -> None:
    """Both begin with PSN 140, and then comes a NAK for 100: the 40 packets between were not all lost."""
    t = going()
    t.send(140, 17)
    t.wait(2 * MS)
    t.nak(100)
    t.wait(270 * MS)
    t.send(100, 57)
    t.wait(20 * US)
    t.ack(156)
    begun = [f for n, f in enumerate(t.frames) if n >= 80]
    (loss,) = of_rule(findings_of_two(tmp_path, begun, begun), "loss")
    assert loss.title.startswith("PSN 100 was probably lost")
    assert loss.evidence["lost_packets"] == loss.evidence["probably_lost_packets"] == 1
    assert not loss.evidence.get("places")
