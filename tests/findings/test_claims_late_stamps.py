"""Two captures, the second of which stamps what a repeat brings sooner than its host takes it.

Its times put the repeat before the NAK that only the pass before can have drawn; its file does not. Seen in
runs of rxe (``recorded-702`` and ``drawn-645`` of the truth bench).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from talk import MS, US, Talk, settled
from two_points import analysis_of_two

from rocekit.findings import Finding

MISSED = 25


def passes(folder: Path, *, sent: bool, late: bool = False) -> list[Finding]:
    """A pass whose packet 25 does not arrive, its repeat, the NAK, and what the NAK makes come again.

    Args:
        sent: the requester's capture has the packet of the first pass.
        late: it arrives behind the NAK, overtaken by all behind it.
    """
    t = Talk()
    for psn in range(20):
        settled(t, psn)
        t.wait(200 * US)
    t.wait(1 * MS)
    first = [n for psn in range(20, 60) for n in t.send(psn).values()]
    t.wait(16 * MS)
    again = [n for psn in range(20, 60) for n in t.send(psn).values()]
    t.wait(3 * MS)
    nak = t.nak(MISSED)
    t.wait(100 * US)
    answers = [t.ack(MISSED - 1), t.ack(59)]
    t.wait(100 * US)
    third = [n for psn in range(MISSED, 60) for n in t.send(psn).values()]
    t.wait(300 * US)
    answers.append(t.ack(59))
    frames = dict(enumerate(t.frames, 1))
    missed = first.pop(MISSED - 20)
    arrived = [
        *range(1, first[0]),
        *first,
        nak,
        *([missed] if late else ()),
        *again,
        *answers[:2],
        *third,
        answers[2],
    ]
    at_a = [f for n, f in frames.items() if sent or n != missed]
    return analysis_of_two(folder, at_a, [frames[n] for n in arrived], by_time=False).findings


@pytest.mark.parametrize("sent", [False, True])
def test_a_repeat_stamped_before_the_nak_and_taken_behind_it_does_not_tell_that_a_packet_came_late(
    sent: bool, tmp_path: Path
) -> None:
    found = passes(tmp_path, sent=sent)
    assert "reordering" not in {f.rule for f in found}
    (loss,) = (f for f in found if f.rule == "loss")
    assert loss.evidence["psns"] == [MISSED]


def test_a_packet_that_its_capture_has_behind_the_nak_came_late(tmp_path: Path) -> None:
    found = passes(tmp_path, sent=True, late=True)
    assert "loss" not in {f.rule for f in found}
    (late,) = (f for f in found if f.rule == "reordering")
    assert late.evidence["psns"] == [MISSED]
