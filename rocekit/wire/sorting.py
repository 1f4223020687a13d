"""Runs, distinct values and stable order of arrays. (np.unique does more, but loads numpy.ma.)"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_DIGITS: Final = 0xFFFF


def starts(ordered: NDArray[Any]) -> NDArray[np.int64]:
    """Where runs of equal values start."""
    begins = np.empty(len(ordered), np.bool_)
    begins[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=begins[1:])
    return np.flatnonzero(begins)


def stable_order(values: NDArray[Any]) -> NDArray[np.int64]:
    """``np.argsort(values, kind="stable")``, much faster for values of 16 bits (NumPy's radix sort)."""
    if len(values) and values.min() >= 0 and values.max() <= _DIGITS:
        values = values.astype(np.uint16)
    return np.argsort(values, kind="stable")


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The different values, sorted."""
    if len(values) and (values == values[0]).all():
        return values[:1].copy()
    ordered = np.sort(values)
    return ordered[starts(ordered)]


def first_of_each(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different values, sorted, and the first index of each."""
    order = stable_order(values)
    ordered = values[order]
    begins = starts(ordered)
    return ordered[begins], order[begins]


def is_among(values: NDArray[Any], ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value is one of some that are sorted."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    at = np.searchsorted(ordered, values)
    found: NDArray[np.bool_] = ordered[np.minimum(at, len(ordered) - 1)] == values
    return found


def distinct_rows(table: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different rows of a table with two axes, sorted, and which of them each row is.

    As ``np.unique`` does it, which compares rows as records: that takes many times as long.
    """
    order = np.lexsort(table.T[::-1])
    ordered = table[order]
    begins = np.empty(len(ordered), np.bool_)
    begins[:1] = True
    np.any(ordered[1:] != ordered[:-1], axis=1, out=begins[1:])
    which = np.empty(len(ordered), np.int64)
    which[order] = np.cumsum(begins) - 1
    return ordered[begins], which
