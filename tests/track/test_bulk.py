"""Packets that wait in chains change nothing but the time it takes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from amount import runs
from test_compiled import PACKAGE, TELL

from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.packets.rows import Rows
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random
from rocekit.track.causes import busy_since_ns
from rocekit.track.tracker import Tracker

ONE_BY_ONE = "import rocekit.track.bulk\nrocekit.track.bulk.Chains.takes = lambda chains, start, end: start\n"
#: Batches so small that packets wait over many of them.
SMALL = (
    "import functools, rocekit.analysis\n"
    "small = functools.partial(rocekit.feeding.open_capture, batch_frames=24)\n"
    "rocekit.feeding.open_capture = small\n"
)
#: Packets that wait are taken out of their batches where they are less than one in so many.
TAKEN_OUT = "import rocekit.track.pairs.waiting_rows as rows\nrows._FEW = {}\n"
#: Lobbies that are full, or have waited long enough, after a few packets.
LIMITED = (
    "import rocekit.track.lobby as lobby\n"
    "lobby.LOBBY_PACKETS, lobby.FLOW_PACKETS, lobby.LOBBY_NS = {}, 1, {}\n"
)
#: As many slots at once as there are at most.
ALL_SLOTS = "import rocekit.track.recent as recent\nrecent._FEW = recent._FEW_COVERED = recent.RING\n"
WEATHER: tuple[dict[str, float], ...] = (
    {},
    {"drop": 0.03},
    {"drop": 0.1, "duplicate": 0.03},
    {"reorder": 0.05},
)


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Random programs over soft endpoints in all weathers, and many QPs at once with losses and marks."""
    folder = tmp_path_factory.mktemp("captures")
    paths = []
    for seed in range(runs(24, share=2)):
        path = folder / f"{seed}.pcapng"
        run(random_program(seed), at_random(WEATHER[seed % len(WEATHER)]), seed, capture=path)
        paths.append(path)
    many = folder / "many.pcap"
    sizes = (100, 9000, 30_000)
    generate(many, Traffic(packets=6000, operations=OPERATIONS, sizes=sizes, loss=0.02, ecn=0.05))
    return *paths, many


@cache
def told(script: str, captures: tuple[Path, ...]) -> str:
    environment = os.environ | {"ROCEKIT_COMPILED": "0", "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, captures)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout


def test_one_by_one_or_together_the_analysis_is_the_same(captures: tuple[Path, ...]) -> None:
    together, one_by_one = told(TELL, captures), told(ONE_BY_ONE + TELL, captures)
    assert len(together.splitlines()) == len(captures)
    for a, b in zip(together.splitlines(), one_by_one.splitlines(), strict=True):
        assert a == b


@pytest.mark.parametrize(("packets", "ns"), [(60, 1 << 40), (1 << 20, 2_000)])
def test_a_lobby_is_overdue_at_the_same_packet_one_by_one_or_together(
    captures: tuple[Path, ...], packets: int, ns: int
) -> None:
    limited = LIMITED.format(packets, ns)
    some = captures[:: len(captures) // 3]
    together, one_by_one = told(limited + TELL, some), told(limited + ONE_BY_ONE + TELL, some)
    assert together == one_by_one
    assert together != told(TELL, some)


def test_few_slots_at_first_remember_the_same(captures: tuple[Path, ...]) -> None:
    some = captures[:: len(captures) // 3]
    assert told(TELL, some) == told(ALL_SLOTS + TELL, some)


def test_packets_that_wait_are_the_same_by_themselves_as_in_their_batches(captures: tuple[Path, ...]) -> None:
    by_themselves = told(SMALL + TAKEN_OUT.format(0) + TELL, captures)
    in_their_batches = told(SMALL + TAKEN_OUT.format(1 << 40) + TELL, captures)
    assert len(by_themselves.splitlines()) == len(captures)
    for a, b in zip(by_themselves.splitlines(), in_their_batches.splitlines(), strict=True):
        assert a == b


def test_a_packet_by_itself_tells_as_much_of_what_its_sender_did_before(captures: tuple[Path, ...]) -> None:
    decoder, tail = Decoder(), ((), ())
    with open_capture(captures[-1], batch_frames=500) as reader:
        for packets in map(decoder.decode, reader):
            if not len(packets):
                continue
            rows = Rows(packets, tail)
            tail = rows.tail()
            few = rows.only(list(range(0, len(packets), 7)))
            since = [busy_since_ns(rows, i) for i in range(0, len(packets), 7)]
            assert [busy_since_ns(few, k) for k in range(len(few))] == since
            assert since != list(few.time_ns)  # they have been sending for longer


#: Prints how many packets were chained.
COUNT = (
    "import sys, rocekit, rocekit.track.bulk\n"
    "takes, taken = rocekit.track.bulk.Chains.takes, []\n"
    "def counted(runs, start, end):\n"
    "    after = takes(runs, start, end)\n"
    "    taken.append(after - start)\n"
    "    return after\n"
    "rocekit.track.bulk.Chains.takes = counted\n"
    "rocekit.analyze(sys.argv[1])\n"
    "print(sum(taken))\n"
)


def test_most_packets_of_large_messages_wait_together(tmp_path: Path) -> None:
    path = tmp_path / "large.pcap"
    packets = generate(path, Traffic(packets=5000, pairs=300)).packets
    assert int(told(COUNT, (path,))) > 0.7 * packets


def test_chains_go_on_with_the_next_batch(tmp_path: Path) -> None:
    """Packets of many connections come by turns: a batch may have one of each message."""
    path = tmp_path / "large.pcap"
    generate(path, Traffic(packets=9000, pairs=300))
    results, most = [], []
    for batch_frames in (300, 100_000):
        tracker, decoder, chaining = Tracker(), Decoder(), [0]
        with open_capture(path, batch_frames=batch_frames) as reader:
            for packets in map(decoder.decode, reader):
                tracker.feed(packets)
                chaining.append(tracker._chains.chaining)
        tracker.finish()
        results.append(([t.to_dict() for t in tracker.transfers], [c.to_dict() for c in tracker.connections]))
        most.append(max(chaining))
    assert most[0] > 5 * 300
    assert results[0] == results[1]
