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


def order_of_hashes(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """``np.argsort(values, kind="stable")`` of numbers that are different in their upper bits, if at all.

    The rows take the place of the lower bits and are sorted with the rest: half the time. Where two different
    values have the same upper bits, as a few of millions do, these are put right afterwards.
    """
    bits = np.uint64(len(values).bit_length())
    ordered = values >> bits << bits
    ordered |= np.arange(len(values), dtype=np.uint64)
    ordered.sort()
    rows = (ordered & ((np.uint64(1) << bits) - np.uint64(1))).astype(np.int64)
    ordered >>= bits
    found = values[rows]
    mixed = (ordered[1:] == ordered[:-1]) & (found[1:] != found[:-1])
    if mixed.any():
        places = np.flatnonzero(np.isin(ordered, ordered[1:][mixed]))
        rows[places] = rows[places][np.lexsort((rows[places], found[places]))]
    return rows


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
