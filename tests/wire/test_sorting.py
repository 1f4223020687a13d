"""Distinct rows, as NumPy finds them."""

from __future__ import annotations

import numpy as np
import pytest

from rocekit.wire.sorting import distinct_rows


@pytest.mark.parametrize("rows", [0, 1, 2, 300])
def test_distinct_rows_are_those_of_numpy(rows: int) -> None:
    draw = np.random.default_rng(rows)
    table = draw.integers(-2, 3, (rows, 4))
    found, which = distinct_rows(table)
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert which.tolist() == inverse.reshape(-1).tolist()
