"""Packets that the first capture point missed: when they passed it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rocekit.packets.merging.passing import passed
from rocekit.packets.slim import SlimColumn

UNSEEN = -1 << 62
SPACING_NS = 1_000


def passing(seen: NDArray[Any], flow: NDArray[Any], is_copy: NDArray[np.bool_]) -> NDArray[np.int64]:
    """``passed`` of times by packet and capture."""
    columns = [SlimColumn.of(times, missing=UNSEEN) for times in seen.T]
    return passed(columns, UNSEEN, SlimColumn.of(flow), is_copy)


@given(
    missed=st.lists(st.booleans(), min_size=8, max_size=60),
    delay_ns=st.integers(10_000, 10_000_000),
    jitter=st.integers(0, SPACING_NS * 4),
    seed=st.integers(0, 1 << 16),
)
def test_a_packet_that_the_first_point_missed_stands_where_it_was_sent(
    missed: list[bool], delay_ns: int, jitter: int, seed: int
) -> None:
    """Though the delay varies by several packets: neighbours bound it."""
    missed = [*missed, *[False] * 8]
    rng = np.random.default_rng(seed)
    sent = np.arange(len(missed), dtype=np.int64) * SPACING_NS
    arrived = np.maximum.accumulate(sent + delay_ns + rng.integers(0, jitter + 1, len(missed)))
    arrived += np.arange(len(missed))  # nobody overtakes
    first = np.where(missed, UNSEEN, sent)
    rows = rng.permutation(len(missed))
    seen = np.stack([first, arrived], axis=1)[rows]
    flow, single = np.zeros(len(missed), np.int64), np.zeros(len(missed), np.bool_)
    found = passing(seen, flow, single)[np.argsort(rows)]
    assert (found[~np.array(missed)] == sent[~np.array(missed)]).all()
    own = np.flatnonzero(missed)
    for i in own[(own > 0)]:
        before = [k for k in range(i) if not missed[k]]
        behind = [k for k in range(i, len(missed)) if not missed[k]]
        if before:
            assert sent[before[-1]] <= found[i] <= sent[behind[0]]


def test_a_copy_made_behind_the_first_point_keeps_its_time() -> None:
    sent = np.arange(20, dtype=np.int64) * SPACING_NS
    seen = np.stack([np.where(sent == 5000, UNSEEN, sent), sent + 50_000], axis=1)
    flow, copies = np.zeros(20, np.int64), sent == 5000
    assert passing(seen, flow, copies)[5] == 55_000
    assert passing(seen, flow, np.zeros(20, np.bool_))[5] == 5_000


def test_what_the_second_point_missed_keeps_its_time_too() -> None:
    sent = np.arange(20, dtype=np.int64) * SPACING_NS
    seen = np.stack([sent, np.where(sent == 5000, UNSEEN, sent + 50_000)], axis=1)
    assert (passing(seen, np.zeros(20, np.int64), np.zeros(20, np.bool_)) == sent).all()


def test_packets_that_overtook_slow_ones_are_not_taken_for_slow_ones() -> None:
    """Most packets that both captures have took 43 ms; those that the first one missed overtook these."""
    sent = np.concatenate([np.arange(6) * SPACING_NS, np.arange(12) * SPACING_NS + 20_000_000])
    arrived = np.where(sent < 20_000_000, sent + 43_000_000, sent + 800_000)
    missed = np.zeros(18, np.bool_)
    missed[8:] = True
    seen = np.stack([np.where(missed, UNSEEN, sent), arrived], axis=1)
    found = passing(seen, np.zeros(18, np.int64), np.zeros(18, np.bool_))
    assert (found == sent).all()
