"""Where a corrupted packet was lost, as two captures show it.

netem corrupted packets of `ib_send_bw` between two captures: a copy whose ICRC is wrong at the second capture
did not reach it as it was sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import US, Talk, only, settled
from two_points import findings_of_two


def talk() -> tuple[Talk, int]:
    """PSN 103 is refused with a NAK and comes again; the frame of its first copy."""
    t = Talk()
    for psn in range(20, 40):
        settled(t, psn)
        t.wait(200 * US)
    frames = t.send(100, 8)
    t.wait(100 * US)
    t.nak(103)
    t.wait(100 * US)
    t.send(100, 8, only=range(103, 108))
    t.wait(100 * US)
    t.ack(107)
    return t, frames[103]


def test_a_copy_that_arrived_corrupted_was_lost_between_the_captures(tmp_path: Path) -> None:
    t, copy = talk()
    sent = list(t.frames)
    t.corrupted(copy)
    found = only(findings_of_two(tmp_path, sent, t.frames), "icrc-bad")
    assert found.title.endswith("corrupted between va.pcap and vb.pcap")


def test_a_copy_that_is_corrupted_in_both_captures_was_lost_before_the_first(tmp_path: Path) -> None:
    t, copy = talk()
    t.corrupted(copy)
    found = only(findings_of_two(tmp_path, t.frames, t.frames), "icrc-bad")
    assert found.title.endswith("corrupted between 10.9.0.1 and va.pcap")


def test_a_sound_copy_beside_one_of_another_pass_was_lost_behind(tmp_path: Path) -> None:
    """A copy was corrupted between the captures, and the next loss is of a sound one."""
    t, copy = talk()
    t.wait(1000 * US)
    t.send(108, 8)
    t.wait(100 * US)
    t.nak(111)
    t.wait(100 * US)
    t.send(108, 8, only=range(111, 116))
    t.ack(115)
    sent = list(t.frames)
    t.corrupted(copy)
    findings = findings_of_two(tmp_path, sent, t.frames)
    (corrupted,) = (f for f in findings if f.rule == "icrc-bad")
    assert corrupted.title.endswith("corrupted between va.pcap and vb.pcap")
    (loss,) = (f for f in findings if f.rule == "loss")
    assert loss.title.endswith("lost beyond vb.pcap")


@pytest.mark.parametrize("snaplen", [0, 128])
def test_where_packets_are_cut_a_lost_one_may_have_come_corrupted(tmp_path: Path, snaplen: int) -> None:
    """The same fault, of which captures that are cut at 128 bytes do not show the wrong ICRC."""
    t, copy = talk()
    sent = list(t.frames)
    if snaplen:
        t.corrupted(copy)
    ends = [[Frame(f.data[: snaplen or None], f.time_ns, f.on_wire) for f in end] for end in (sent, t.frames)]
    found = only([f for f in findings_of_two(tmp_path, *ends) if f.rule == "loss"], "loss")
    assert found.title.endswith("lost beyond vb.pcap")
    assert found.evidence["or_corrupted"] == bool(snaplen)
    assert ("Or packets were corrupted before the capture" in found.advice) == bool(snaplen)
