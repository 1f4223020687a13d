"""Packets that came long after their own repeat, as from a queue that stood still: these were not lost."""

from __future__ import annotations

from talk import MS, US, Talk, of_rule


def numbered(t: Talk, ident: int, begin: int, psn: int) -> None:
    """A packet with an identification that its sender gave out before."""
    t.common["identification"] = ident
    t.write(begin, 4, only=[psn])
    del t.common["identification"]


def missing(*, ident_of_original: bool) -> Talk:
    """Of messages of four packets, PSNs 41 and 61 do not come, and are sent again. Much later 41 comes again.

    Its identification is that of the original, or says that it was sent once more.
    """
    t = Talk()
    originals = {}
    for begin in range(0, 200, 4):
        for psn in range(begin, begin + 4):
            if psn in (41, 61, 81):
                t.ident += 1
                originals[psn] = t.ident
            else:
                t.write(begin, 4, only=[psn])
        if begin in (40, 60):
            t.nak(begin + 1)
            t.wait(60 * US)
            t.write(begin, 4, only=range(begin + 1, begin + 4))
        if begin == 80:  # it was overtaken, so identifications are counted
            numbered(t, originals[81], begin, 81)
        t.wait(50 * US)
        t.ack(begin + 3)
    numbered(t, originals[41] if ident_of_original else t.ident + 1, 40, 41)
    t.wait(MS)
    return t


def test_the_original_shows_that_it_was_not_lost() -> None:
    (loss,) = of_rule(missing(ident_of_original=True).findings(), "loss")
    assert loss.evidence["psns"] == [61]


def test_one_that_was_sent_once_more_does_not() -> None:
    (loss,) = of_rule(missing(ident_of_original=False).findings(), "loss")
    assert loss.evidence["psns"] == [41, 61]


def refused_before_it_came(*, ident_of_original: bool) -> Talk:
    """PSN 41 is sent again after a NAK, and refused for want of a receive; so its original is of use, too."""
    t = Talk()
    for begin in range(0, 120, 4):
        if begin in (20, 24, 28):  # two that change places: identifications are counted
            t.ident += 1
            t.write(begin, 4, only=[begin + 1])
            t.ident -= 2
            t.write(begin, 4, only=[begin])
            t.ident += 1
            t.write(begin, 4, only=[begin + 2, begin + 3])
        elif begin == 40:
            t.write(begin, 4, only=[40])
            t.ident += 1
            original = t.ident
            t.write(begin, 4, only=[42, 43])
            t.nak(41)
            t.wait(100 * US)
            t.write(begin, 4, only=[41])
            t.wait(20 * US)
            t.rnr(41)
            t.wait(20 * US)
            t.write(begin, 4, only=[42, 43])
            t.wait(20 * US)
            t.nak(41)
            t.wait(500 * US)
            if ident_of_original:
                numbered(t, original, begin, 41)
            t.wait(20 * US)
            t.rnr(41)
            t.wait(5 * MS)
            t.write(begin, 4, only=[41, 42, 43])
        else:
            t.write(begin, 4)
        t.wait(50 * US)
        t.ack(begin + 3)
    return t


def test_an_original_that_comes_while_the_repeat_is_refused_was_not_lost() -> None:
    assert not of_rule(refused_before_it_came(ident_of_original=True).findings(), "loss")
    (loss,) = of_rule(refused_before_it_came(ident_of_original=False).findings(), "loss")
    assert loss.evidence["psns"] == [41]


def refused_in_a_repeat(*, goes_on: bool) -> Talk:
    """While a requester repeats from 36 on, a NAK for 41 comes, which it obeys after 47 is acknowledged.

    The repeat had come to 40 and goes on with 41, or had come to 47.
    """
    t = Talk()
    for begin in range(0, 36, 4):
        t.write(begin, 4)
        t.wait(50 * US)
        t.ack(begin + 3)
    for begin in (36, 40, 44):
        t.write(begin, 4)
    t.wait(5 * MS)
    t.write(36, 4)
    t.write(40, 4, only=[40])
    if goes_on:
        t.nak(41)
        t.wait(60 * US)
    t.write(40, 4, only=[41, 42, 43])
    t.write(44, 4)
    if not goes_on:
        t.nak(41)
    t.wait(60 * US)
    t.ack(47)
    t.wait(60 * US)
    t.write(40, 4, only=[41, 42, 43])
    t.write(44, 4)
    t.ack(47)
    return t


def test_a_packet_acknowledged_before_it_came_again_was_late() -> None:
    findings = refused_in_a_repeat(goes_on=False).findings()
    assert [f.evidence["psns"] for f in of_rule(findings, "reordering")] == [[41]]


def test_one_that_came_again_after_the_nak_may_have_been_lost() -> None:
    findings = refused_in_a_repeat(goes_on=True).findings()
    assert not of_rule(findings, "reordering")
    for loss in of_rule(findings, "loss"):
        assert "probably" in loss.title
