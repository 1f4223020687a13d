"""Which packets of several captures are alike, beside a count of them one by one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rocekit.packets import BLOCK_WORDS, KEPT, Column, Packets
from rocekit.packets.merging.alike import Alike
from rocekit.packets.merging.group_numbers import GroupNumbers
from rocekit.packets.merging.outline import Outlines


@given(st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 9), max_size=300), st.integers(0, 400))
def test_equal_values_have_one_number_in_the_order_in_which_they_come(
    values: list[int], expected: int
) -> None:
    found = GroupNumbers(expected)
    half = len(values) // 2
    of = [found.number(np.array(part, np.uint64)).tolist() for part in (values[:half], values[half:])]
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    assert found.count == len(numbers)
    assert of[0] + of[1] == [numbers[value] for value in values]


def test_a_table_that_is_too_small_grows() -> None:
    values = np.arange(20_000, dtype=np.uint64)
    found = GroupNumbers(1)
    assert (found.number(np.concatenate([values, values])) == np.concatenate([values, values])).all()
    assert found.count == len(values)


def captured(capture: list[tuple[int, int]]) -> Packets:
    """Packets of which nothing counts but their identification and when they were captured."""
    count = len(capture)
    columns: dict[str, Column] = {name: np.zeros(count, kind) for name, kind in KEPT.items()}
    columns |= {"limit": np.zeros(count), "ip_id": np.array([value for value, _ in capture], np.uint16)}
    words = np.zeros((count, BLOCK_WORDS), np.uint32)
    packets = Packets(columns, words, [], None, np.zeros(count, np.int64))
    return packets.at(np.array([time for _, time in capture], np.int64))


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=30), min_size=1, max_size=3)
)
def test_packets_that_are_alike_stand_in_the_order_of_time(captures: list[list[tuple[int, int]]]) -> None:
    alike = Alike(Outlines.of([captured(capture) for capture in captures]))
    begin = 0
    for file, capture in enumerate(captures):
        rows = defaultdict(list)
        for i in sorted(range(len(capture)), key=lambda i: capture[i][1]):
            rows[capture[i][0]].append(begin + i)
        for value, of_value in rows.items():
            group = int(alike.group_of(np.array(of_value[:1]), file)[0])
            assert alike.packets_of(group, file).tolist() == of_value, value
            assert alike.count[file][group] == len(of_value)
            assert alike.first[file][group] == of_value[0]
        found, place = alike.place_in_group(file)
        several = {
            row: k for of_value in rows.values() if len(of_value) > 1 for k, row in enumerate(of_value)
        }
        assert dict(zip(found.tolist(), place.tolist(), strict=True)) == several
        begin += len(capture)
