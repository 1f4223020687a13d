"""Distinct rows, and medians of groups, as NumPy finds them."""

from __future__ import annotations

import numpy as np
import pytest

from rocekit.wire.sorting import distinct_rows, medians_of_each


@pytest.mark.parametrize("rows", [0, 1, 2, 300])
def test_distinct_rows_are_those_of_numpy(rows: int) -> None:
    draw = np.random.default_rng(rows)
    table = draw.integers(-2, 3, (rows, 4))
    found, which = distinct_rows(table)
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert which.tolist() == inverse.reshape(-1).tolist()


@pytest.mark.parametrize("most", [1, 3, 1 << 62])
@pytest.mark.parametrize("groups", [1, 7, 400])
def test_medians_of_groups_are_those_of_numpy(groups: int, most: int) -> None:
    draw = np.random.default_rng(groups)
    of, values = draw.integers(0, groups, 1_000), draw.integers(-most, most, 1_000)
    expected = [(int(n), float(np.median(values[of == n]))) for n in np.unique(of)]
    assert medians_of_each(values, of) == expected
    assert medians_of_each(values[:0], of[:0]) == []
