"""Losses of packets that have no identification, among packets that were overtaken.

Of two rxe devices with packets overtaken, 35 losses of packets with identification 0 were stated that were
none.
"""

from __future__ import annotations

import pytest
from talk import MS, US, Talk, of_rule, settled


def talk(*, identified: bool, overtaken: int) -> Talk:
    """Packets that are overtaken between the sender and the capture, each with its NAK, and a lost one."""
    t = Talk()
    if not identified:
        t.common = {"identification": 0}
    for psn in range(20):
        settled(t, psn)
        t.wait(100 * US)
    for first in range(20, 20 + 4 * overtaken, 4):
        t.send(first, 4, only=[first, first + 2])
        t.wait(5 * US)
        t.send(first, 4, only=[first + 1, first + 3])
        t.wait(50 * US)
        t.ack(first + 3)
        t.wait(MS)
    first = 20 + 4 * overtaken
    t.send(first, 4, only=[first, first + 2, first + 3])
    t.wait(20 * US)
    t.nak(first + 1)
    t.wait(100 * US)
    t.send(first, 4, only=[first + 1, first + 2, first + 3])
    t.wait(20 * US)
    t.ack(first + 3)
    return t


@pytest.mark.parametrize(("identified", "overtaken"), [(True, 5), (False, 0), (False, 5)])
def test_a_loss_is_only_probable_where_others_are_overtaken_without_identifications(
    identified: bool, overtaken: int
) -> None:
    (found,) = of_rule(talk(identified=identified, overtaken=overtaken).findings(), "loss")
    is_doubted = not identified and overtaken > 0
    assert ("was probably lost" in found.title) == is_doubted, found.title
    assert ("identifications do not tell" in found.advice) == is_doubted
