"""Where a corrupted packet was lost, as two captures show it.

netem corrupted packets of `ib_send_bw` between two captures: a copy whose ICRC is wrong at the second capture
did not reach it as it was sent.
"""

from __future__ import annotations

from pathlib import Path

from capture_bytes import Frame, pcap
from talk import US, Talk, only, settled

import rocekit
from rocekit import Finding

FLIGHT = 20 * US


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


def seen_twice(folder: Path, at_a: list[Frame], at_b: list[Frame]) -> list[Finding]:
    """The findings of captures at a and at b; each packet takes ``FLIGHT`` between them."""
    paths = []
    for name, frames, sender in (("va", at_a, "10.9.0.1"), ("vb", at_b, "10.9.0.2")):
        own = bytes(int(n) for n in sender.split("."))
        times = [f.time_ns + (0 if f.data[26:30] == own else FLIGHT) for f in frames]
        moved = [Frame(f.data, ns) for ns, f in sorted(zip(times, frames, strict=True), key=lambda p: p[0])]
        paths.append(folder / f"{name}.pcap")
        paths[-1].write_bytes(pcap(moved, unit="ns"))
    return rocekit.analyze(*paths).findings


def test_a_copy_that_arrived_corrupted_was_lost_between_the_captures(tmp_path: Path) -> None:
    t, copy = talk()
    sent = list(t.frames)
    t.corrupted(copy)
    found = only(seen_twice(tmp_path, sent, t.frames), "icrc-bad")
    assert found.title.endswith("corrupted between va.pcap and vb.pcap")


def test_a_copy_that_is_corrupted_in_both_captures_was_lost_before_the_first(tmp_path: Path) -> None:
    t, copy = talk()
    t.corrupted(copy)
    found = only(seen_twice(tmp_path, t.frames, t.frames), "icrc-bad")
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
    findings = seen_twice(tmp_path, sent, t.frames)
    (corrupted,) = (f for f in findings if f.rule == "icrc-bad")
    assert corrupted.title.endswith("corrupted between va.pcap and vb.pcap")
    (loss,) = (f for f in findings if f.rule == "loss")
    assert loss.title.endswith("lost beyond vb.pcap")
