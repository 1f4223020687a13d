"""Copies that the network made, of packets that were sent again before the copy came, and of NAKs.

Each has the IPv4 identification of the packet that it is a copy of, which came before.
"""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, named, of_rule, only, settled

from rocekit.track.events import Event


def events(t: Talk, psn: int) -> list[Event]:
    return [e for transfer in t.evidence().transfers for e in transfer.events if e.psn == psn]


def sent_again(*, copy_of: int, at: int = 1) -> Talk:
    """PSN 101 to 103 come again after a NAK; behind the repeat of 103 comes a copy of a PSN's original."""
    t = Talk()
    for psn in range(90, 100):
        settled(t, psn)
    originals = t.write(100, 4)
    t.wait(20 * US)
    t.nak(101)
    t.wait(20 * US)
    for _ in range(at):
        t.write(100, 4, only=[101, 102, 103])
        t.wait(20 * US)
    t.again(originals[copy_of])
    t.wait(20 * US)
    t.ack(103)
    t.write(104, 4)
    t.wait(20 * US)
    t.ack(107)
    return t


def test_a_copy_of_a_packet_that_was_sent_again_is_no_late_packet() -> None:
    t = sent_again(copy_of=102)
    assert [e.kind for e in events(t, 102)] == ["duplicate"]
    assert named(t.findings()) == ["loss"]
    (found,) = of_rule(t.findings(), "duplicate")
    assert found.title == "PSN 102 came again between 10.9.0.1 and 10.9.0.2: its sender sent it once"


def test_the_original_that_comes_behind_its_repeat_is_late() -> None:
    t = sent_again(copy_of=102)
    original = next(n for n, f in enumerate(t.frames) if f.data == t.frames[-7].data)
    assert t.frames[original] is not t.frames[-7]
    del t.frames[original]
    assert "late" in [e.kind for e in events(t, 102)]
    assert "duplicate" not in [f.rule for f in t.findings()]


def test_a_copy_of_an_rnr_nak_is_a_copy() -> None:
    t = settled(Talk(), 99)
    for psn in range(100, 104):
        t.send(psn)
        t.wait(20 * US)
        nak = t.rnr(psn)
        if psn > 101:
            t.wait(10 * US)
            t.again(nak)
        t.wait(3 * MS)
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
    (connection,) = t.evidence().connections
    assert (connection.rnr_naks, connection.copied_ack_count) == (4, 2)
    found = only(t.findings(), "rnr")
    assert ": 4 RNR NAKs" in found.title
    (copies,) = of_rule(t.findings(), "duplicate")
    assert copies.title.startswith("2 acknowledgements came again")


@pytest.mark.parametrize("identification", [None, 0, 7])
def test_rnr_naks_that_are_sent_again_are_others(identification: int | None) -> None:
    """Their identifications differ; those that are all alike tell nothing."""
    t = Talk()
    if identification is not None:
        t.common = {"identification": identification}
    settled(t, 99)
    t.send(100)
    for _ in range(3):
        t.wait(20 * US)
        t.rnr(100)
        t.wait(3 * MS)
        t.send(100)
    t.wait(20 * US)
    t.ack(100)
    (connection,) = t.evidence().connections
    assert (connection.rnr_naks, connection.copied_ack_count) == (3, 0)
