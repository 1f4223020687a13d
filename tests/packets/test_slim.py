"""Columns in few bytes give back what was added to them, and do take few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocekit.packets import slim
from rocekit.packets.slim import BLOCK, PIECE, SlimColumn, SlimTimes, looked_up

LEAST, MOST = -(1 << 63), (1 << 63) - 1
MISSING = -1 << 62

numbers = st.one_of(st.integers(LEAST, MOST), st.integers(0, 3), st.just(MISSING))
runs_of_numbers = st.one_of(
    st.lists(numbers, max_size=40),
    st.tuples(numbers, st.integers(0, 40)).map(lambda one: [one[0]] * one[1]),
    st.tuples(st.integers(-5, 1 << 40), st.integers(0, 40)).map(lambda one: list(range(one[0], sum(one)))),
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slim, "_BITS", 4)
    monkeypatch.setattr(slim, "BLOCK", 16)
    monkeypatch.setattr(slim, "_WITHIN", 15)
    monkeypatch.setattr(slim, "PIECE", 64)


@given(st.lists(runs_of_numbers, max_size=8), st.booleans(), st.data())
def test_a_column_has_the_numbers_that_were_added(
    parts: list[list[int]], has_missing: bool, data: st.DataObject
) -> None:
    column = SlimColumn(missing=MISSING if has_missing else None)
    for part in parts:
        column.add(np.array(part, np.int64))
    every = np.array([number for part in parts for number in part], np.int64)
    assert len(column) == len(every)
    assert (column.whole() == every).all()
    assert [(at, len(piece)) for at, piece in column.pieces()] == [
        (at, min(64, len(every) - at)) for at in range(0, len(every), 64)
    ]
    assert column.bounds() == ((int(every.min()), int(every.max())) if len(every) else None)
    if not len(every):
        return
    rows = np.array(data.draw(st.lists(st.integers(-len(every), len(every) - 1), max_size=100)), np.int64)
    assert (column[rows] == every[rows]).all()
    begin, end = sorted(data.draw(st.tuples(st.integers(0, len(every)), st.integers(0, len(every)))))
    assert (column[begin:end] == every[begin:end]).all()
    assert (column[every == every[0]] == every[0]).all()
    assert column[len(every) - 1] == every[-1]
    column.add(every[:1])  # what is looked up may grow further
    assert column[len(every)] == every[0]


@given(st.lists(st.lists(st.integers(0, 1 << 33), max_size=50), min_size=1, max_size=3), st.data())
def test_columns_behind_one_another_are_looked_up_as_one(parts: list[list[int]], data: st.DataObject) -> None:
    columns = [SlimColumn.of(np.array(part, np.int64)) for part in parts]
    every = np.array([number for part in parts for number in part], np.int64)
    if len(every):
        rows = np.array(data.draw(st.lists(st.integers(0, len(every) - 1), max_size=100)), np.int64)
        assert (looked_up(columns, rows) == every[rows]).all()


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(-50, 50) | st.none()), max_size=60))
def test_times_are_what_they_are_behind_others(pairs: list[tuple[int, int | None]]) -> None:
    base = np.array([time for time, _ in pairs], np.int64)
    times = np.array([MISSING if by is None else time + by for time, by in pairs], np.int64)
    column = SlimTimes(SlimColumn.of(base), SlimColumn.of(times, missing=MISSING), MISSING)
    assert (column.whole() == times).all()
    assert (column[np.arange(len(times))[::-1]] == times[::-1]).all()


def stored(column: SlimColumn) -> int:
    """The bytes of its blocks' numbers."""
    return sum(block.rest.nbytes for block in column._blocks if block.rest is not None)


@pytest.mark.parametrize(
    ("values", "bytes_each"),
    [
        (np.full(160, 7), 0),
        (np.arange(160) + (1 << 50), 0),
        (np.arange(160) + np.arange(160) // 3, 1),
        (np.arange(160) * 1_000, 2),
        ((1 << 50) + np.arange(160) % 16 * 100_000, 4),
    ],
)
def test_what_a_number_takes(values: Any, bytes_each: int) -> None:
    assert stored(SlimColumn.of(values)) == 160 * bytes_each


def test_of_many_numbers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    values = np.cumsum(np.random.default_rng(3).integers(0, 1 << 20, 3 * PIECE + 7))
    column = SlimColumn.of(values)
    rows = np.random.default_rng(4).permutation(len(values))
    assert (column[rows] == values[rows]).all()
    assert len(column._blocks) == len(values) // BLOCK
