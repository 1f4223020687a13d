"""Stable order, also of hashes that are sorted with their rows in the lower bits."""

from __future__ import annotations

import numpy as np
import pytest

from rocekit.wire.sorting import order_of_hashes


@pytest.mark.parametrize(
    ("count", "values"), [(0, 1), (1, 9), (1000, 20), (5000, 2**40), (20_000, 2**64 - 1)], ids=str
)
def test_the_order_of_hashes_is_stable_whatever_bits_they_share(count: int, values: int) -> None:
    drawn = np.random.default_rng(count).integers(0, values, count, np.uint64)
    hashes = np.concatenate([drawn, drawn[::2]])
    assert order_of_hashes(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_hashes_that_differ_in_their_lower_bits_only_are_put_right() -> None:
    hashes = np.array([3, 1, 2, 3, 1], np.uint64) | np.uint64(7 << 60)
    assert order_of_hashes(hashes).tolist() == [1, 4, 2, 0, 3]
