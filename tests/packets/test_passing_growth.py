"""When packets passed a point is asked of captures that share packets, not of each two captures."""

from __future__ import annotations

import numpy as np
import pytest

from rocekit.packets.merging import passing
from rocekit.packets.slim import SlimColumn


def test_looks_at_no_two_captures_without_common_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(passing, "_estimate", lambda *_: looked.append(1))
    captures, unseen = 40, -1
    seen = []
    for file in range(captures):
        column = SlimColumn(np.int64)
        times = np.full(10 * captures, unseen)
        times[10 * file : 10 * file + 10] = np.arange(10)
        column.add(times)
        seen.append(column)
    flow = SlimColumn(np.int64)
    flow.add(np.repeat(np.arange(captures), 10))
    passing.passed(seen, unseen, flow, np.zeros(10 * captures, np.bool_))
    assert not looked
