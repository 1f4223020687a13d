"""Which packet that only the second capture has is one of the first with a bit flipped on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from rocekit.packets import ICRC_INVALID, ICRC_UNCHECKED, ICRC_VALID
from rocekit.points.corrupted import corrupted
from rocekit.points.sightings import Sightings

MS = 1_000_000


def pairs(
    sent: list[tuple[int, int]],
    arrived: list[tuple[int, int]],
    *,
    icrc: int = ICRC_INVALID,
    ip_id: int = 7,
    late_ms: int = 0,
) -> list[tuple[int, int]]:
    """What ``corrupted`` says of packets (time in ms, PSN) that take 5 ms."""
    psns = np.array([psn for _, psn in (*sent, *arrived)], np.int64)
    there = np.ones(len(psns), np.int64)
    sightings = SimpleNamespace(
        qpn=there * 17, psn=psns, opcode=there * 4, ip_id=there * ip_id, icrc_state=there * icrc
    )
    sent_ns, arrived_ns = (np.array([ms * MS for ms, _ in times], np.int64) for times in (sent, arrived))
    old = np.arange(len(sent))
    new = np.arange(len(sent), len(psns))
    return corrupted(cast(Sightings, sightings), old, sent_ns, new, arrived_ns, 5 * MS, late_ms * MS)


def test_one_bit_in_the_headers_or_none_is_a_corrupted_copy() -> None:
    assert pairs([(0, 0b1000)], [(5, 0b1001)]) == [(0, 0)]
    assert pairs([(0, 0b1000)], [(5, 0b1000)]) == [(0, 0)]
    assert pairs([(0, 0b1000)], [(5, 0b1011)]) == []


@pytest.mark.parametrize(("at_ms", "found"), [(25, True), (26, False), (-14, True), (-16, False)])
def test_a_copy_comes_within_20_ms_of_the_usual_time(at_ms: int, found: bool) -> None:
    assert bool(pairs([(0, 8)], [(at_ms, 9)])) == found


def test_where_others_come_late_a_corrupted_copy_may_too() -> None:
    """Of 19 packets that netem corrupted, 2 were "only there": one in a hundred was held for 22 ms."""
    assert pairs([(0, 8)], [(40, 9)], late_ms=22) == [(0, 0)]
    assert pairs([(0, 8)], [(60, 9)], late_ms=22) == []


def test_without_a_known_icrc_it_is_just_one_bit_of_a_packet_with_an_identification() -> None:
    assert pairs([(0, 8)], [(5, 9)], icrc=ICRC_UNCHECKED) == [(0, 0)]
    assert pairs([(0, 8)], [(5, 8)], icrc=ICRC_UNCHECKED) == []
    assert pairs([(0, 8)], [(5, 9)], icrc=ICRC_UNCHECKED, ip_id=0) == []


def test_a_packet_with_a_right_icrc_is_another_one() -> None:
    """The next packet may differ by one bit from one that was lost, and be missing in the first capture."""
    assert pairs([(0, 8)], [(5, 9)], icrc=ICRC_VALID) == []


def test_a_packet_has_one_copy() -> None:
    assert pairs([(0, 8)], [(5, 9), (6, 10)]) == [(0, 0)]


def test_of_several_the_nearest_in_time_is_meant() -> None:
    assert pairs([(0, 8), (2, 8), (9, 8)], [(8, 9)]) == [(1, 0)]
