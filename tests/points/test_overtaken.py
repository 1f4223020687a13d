"""Which packets changed their place between two captures: the fewest."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from rocekit.points.overtaken import overtaken


def moved(arrival: list[int], *, one_time: bool = False) -> list[int]:
    """Of packets sent as 0, 1, 2 …, those that moved, where they arrive in this order.

    ``one_time``: the second capture has one time for all, and only the frame numbers differ.
    """
    count = len(arrival)
    place = np.empty(count, np.int64)
    place[arrival] = np.arange(count)
    times = np.zeros(count, np.int64) if one_time else place * 10
    sent = np.arange(count)
    return [int(each) for each in overtaken(sent, sent, times, place + 1)]


@pytest.mark.parametrize("one_time", [False, True])
def test_of_two_that_changed_places_it_is_the_one_that_was_sent_first(one_time: bool) -> None:
    assert moved([0, 1, 2], one_time=one_time) == []
    assert moved([1, 0, 2], one_time=one_time) == [0]
    assert moved([1, 0, 3, 2, 4], one_time=one_time) == [0, 2]


def test_a_late_packet_moved_and_not_those_that_overtook_it() -> None:
    assert moved([1, 2, 3, 4, 0, 5]) == [0]
    assert moved([5, 0, 1, 2, 3, 4]) == [5]


def test_without_the_moved_the_order_is_that_of_the_sender_and_no_fewer_do() -> None:
    for arrival in permutations(range(6)):
        found = moved(list(arrival))
        rest = [each for each in arrival if each not in found]
        assert rest == sorted(rest)
        for fewer in combinations(range(6), len(found) - 1) if found else ():
            left = [each for each in arrival if each not in fewer]
            assert left != sorted(left)
