"""Silences of hosts by class, held to a count that keeps every packet."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rocekit.flows.silences import LEAST_NS, Silences

PACKET = st.tuples(st.integers(0, 5), st.integers(0, 255), st.integers(0, 3 * LEAST_NS), st.booleans())


def fed(silences: Silences, batch: list[tuple[int, int, int, bool]]) -> None:
    """A batch of (source, traffic class, time, whether it is chosen)."""
    src, tclass, time_ns, keep = zip(*batch, strict=True)
    packets: Any = SimpleNamespace(
        addresses=[f"10.0.0.{n}" for n in range(max(src) + 1)],
        src=np.array(src, np.int64),
        tclass=np.array(tclass, np.uint8),
        time_ns=np.array(time_ns, np.int64),
    )
    silences.feed(packets, np.array(keep))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(PACKET, min_size=1, max_size=40), min_size=1, max_size=4))
def test_silences_are_those_of_a_plain_count(batches: list[list[tuple[int, int, int, bool]]]) -> None:
    silences, now, times = Silences(), 0, dict[tuple[str, int], list[int]]()
    for batch in batches:
        steps = []
        for src, tclass, step, keep in batch:
            now += step
            steps.append((src, tclass, now, keep))
            if keep:
                times.setdefault((f"10.0.0.{src}", tclass >> 2), []).append(now)
        fed(silences, steps)
        silences._addresses = [f"10.0.0.{n}" for n in range(6)]
    assert silences.seen == {key: (seen[0], seen[-1]) for key, seen in times.items()}
    gaps = {key: [(a, b) for a, b in pairwise(seen) if b - a >= LEAST_NS] for key, seen in times.items()}
    assert silences.spells == {key: spells for key, spells in gaps.items() if spells}


def test_a_host_takes_little_memory() -> None:
    silences = Silences()
    fed(silences, [(n, 0, n, True) for n in range(10_000)])
    assert len(silences._heads) + len(silences._rows) < 20 * 10_000
