"""The last moments of a file whose times run back prove no loss: that would stand behind its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame
from talk import MS, US, Talk
from two_points import analysis_of_two

#: How long the last of B's packets come behind the last of A's.
LATER_NS = 5 * MS


def ended() -> tuple[list[Frame], list[Frame]]:
    """Both captures: the second one lacks the last ten packets of A, and has those that B sent later."""
    t = Talk()
    for psn in range(100):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
        t.wait(20 * US)
    first = len(t.frames)
    t.send(100, 10)
    lacking = range(first, len(t.frames))
    t.wait(LATER_NS)
    for psn in range(1000, 1004):
        t.send(psn, by="b")
    return t.frames, [frame for n, frame in enumerate(t.frames) if n not in lacking]


@pytest.mark.parametrize(("behind_ns", "missing"), [(0, 10), (LATER_NS // 5, 10), (2 * LATER_NS, 0)])
def test_a_loss_is_told_only_of_what_passed_before(tmp_path: Path, behind_ns: int, missing: int) -> None:
    """One packet in the middle of the first file stands behind those of so much later."""
    at_a, at_b = ended()
    early = [Frame(f.data, f.time_ns - behind_ns * (n < 40)) for n, f in enumerate(at_a)]
    other = [Frame(f.data, f.time_ns - behind_ns * (n < 40)) for n, f in enumerate(at_b)]
    moved = early[30]
    in_file = [*early[:30], *early[31:50], moved, *early[50:]]
    analysis = analysis_of_two(tmp_path, in_file, other, by_time=False)
    paths = analysis.capture.paths
    assert paths is not None
    (path,) = (path for path in paths.every if path.src == "10.9.0.1")
    assert (path.missing, path.outside) == (missing, 10 - missing)
