"""Pairs of hosts in the order of their names, and ways without packets, as one by one finds them."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from capture_bytes import Frame, pcap

import rocekit
from rocekit.packets.wrapping import Wrapping
from rocekit.points.host_pairs import PairsByName
from rocekit.points.twice import may_be_doubled
from rocekit.track.connections import Connection
from rocekit.wire.build import build_frame


@pytest.mark.parametrize("hosts", [12, 60])  # those of more than 16 are looked up at once
@pytest.mark.parametrize("seed", range(5))
def test_pairs_come_in_the_order_of_both_names(seed: int, hosts: int) -> None:
    rng = random.Random(seed)
    names = [f"10.0.{rng.randrange(300)}.{n}" for n in range(hosts)]
    a, b = (np.array([rng.randrange(hosts) for _ in range(5 * hosts)], np.int64) for _ in range(2))
    table: Any = SimpleNamespace(names=names, numbers={name: n for n, name in enumerate(names)})
    pairs = PairsByName(a, b, table)
    expected: dict[tuple[str, ...], list[int]] = {}
    for row, ends in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        expected.setdefault(tuple(sorted(names[end] for end in ends)), []).append(row)
    found = {}
    for place, first in pairs.in_order():
        both = [names[pairs.low[place]], names[pairs.high[place]]]
        assert min(both) == names[first]
        found[tuple(sorted(both))] = pairs.rows(place)
    assert list(found.items()) == sorted(expected.items())


@pytest.mark.parametrize("seed", range(5))
def test_silent_ways_are_the_opposite_of_those_heard_alone(tmp_path: Path, seed: int) -> None:
    """Also where the only packets the other way are MADs, which are in no flow."""
    rng = random.Random(seed)
    frames: list[bytes] = []
    heard: set[tuple[str, str]] = set()
    asking: dict[tuple[str, str], None] = {}
    for n in range(40):
        src, dst = (f"10.0.0.{m}" for m in rng.sample(range(1, 9), 2))
        is_mad = rng.random() < 0.3
        opcode, qpn = ("UD_SEND_ONLY", 1) if is_mad else ("RC_SEND_ONLY", 20 + n)
        fields: dict[str, Any] = {"payload": bytes(24 if is_mad else 8), "dest_qpn": qpn, "psn": n}
        frames.append(build_frame(opcode, src=src, dst=dst, **fields))
        heard.add((src, dst))
        if not is_mad:
            asking[dst, src] = None
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([Frame(frame, n * 1000) for n, frame in enumerate(frames)]))
    silent = rocekit.analyze(path).capture.silent
    assert sorted(silent) == sorted(way for way in asking if way not in heard)
    assert len(set(silent)) == len(silent)


@pytest.mark.parametrize("twice", [False, True])
def test_equal_ends_are_found_among_many_connections(twice: bool) -> None:
    def one(n: int) -> Any:
        return Connection(n, "RC", [f"10.0.{n >> 8}.{n & 255}", "10.1.0.1"], [None, n % 7], None)

    connections = [one(n) for n in range(500)]
    if twice:
        connections.append(Connection(500, "RC", ["10.0.1.4", "10.1.0.1"], [None, 260 % 7], None))
    assert may_be_doubled(connections) is twice


@pytest.mark.parametrize(("packets", "twice"), [(7, False), (8, True)])
def test_equal_ends_in_two_networks_need_packets_enough_in_both(packets: int, twice: bool) -> None:
    """Two capture points have packets of both: of one packet in each network nothing is to be compared."""

    def one(n: int) -> Any:
        connection = Connection(n, "RC", ["10.0.0.1", "10.1.0.1"], [None, 7], None)
        connection.around = (Wrapping(n), Wrapping(n))
        connection.packets = packets if n < 2 else 1
        return connection

    assert may_be_doubled([one(n) for n in range(500)]) is twice


def test_sides_in_different_networks_count_for_either() -> None:
    """A mirror may show a VLAN tag in one direction only."""
    connections = [Connection(n, "RC", ["10.0.0.1", "10.1.0.1"], [3, 7], None) for n in range(2)]
    for number, connection in enumerate(connections):
        connection.packets = 8
        connection.around = (Wrapping(0), Wrapping(number))
    assert may_be_doubled(connections)
