"""Numbers of addresses, and their text."""

from __future__ import annotations

import random
import socket
import struct

import numpy as np
import pytest

from rocekit.packets.flow_numbers import Addresses, PairNumbers, ipv6_of

WORDS = [0, 0, 0, 1, 0xFFFF]


@pytest.mark.parametrize("seed", range(4))
def test_ipv6_addresses_are_written_as_the_c_library_does(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4_000):
        words = [rng.choice([*WORDS, rng.getrandbits(16), rng.getrandbits(4)]) for _ in range(8)]
        packed = struct.pack(">8H", *words)
        high, low = struct.unpack(">QQ", packed)
        if high:
            assert ipv6_of(high, low) == socket.inet_ntop(socket.AF_INET6, packed)


def test_addresses_of_both_kinds_are_written_in_their_order() -> None:
    high = np.array([0x2001 << 48, 0, 0x2001 << 48, 0xFE80 << 48, 0], np.uint64)
    low = np.array([1, 0xFFFF0A000001, 1, 0, 1], np.uint64)
    addresses = Addresses()
    assert addresses.of(high, low).tolist() == [0, 1, 0, 2, 3]
    assert addresses.texts == ["2001::1", "10.0.0.1", "fe80::", "::1"]


@pytest.mark.parametrize("seed", range(4))
def test_pairs_keep_their_numbers_as_the_table_grows(seed: int) -> None:
    rng = random.Random(seed)
    expected: dict[tuple[int, int], int] = {}
    pairs = PairNumbers()
    known = pairs.known
    for _ in range(20):
        rows = [(rng.getrandbits(64), rng.choice([0, 7, rng.getrandbits(64)])) for _ in range(300)]
        rows += rng.choices(list(expected) or rows, k=200)
        high, low = (np.array([row[n] for row in rows], np.uint64) for n in (0, 1))
        numbers = [expected.setdefault(row, len(expected)) for row in rows]
        assert pairs.of(high, low).tolist() == numbers
    assert pairs.count == len(known) == len(expected) > 4_000
    assert known[:] == list(expected)
    assert known[5] == list(expected)[5]
