"""The clean lane says what the state machine says, and takes what is in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from amount import runs
from test_compiled import PACKAGE, TELL

from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random
from rocekit.track.connections import Connection
from rocekit.track.lane.clean_side import CleanSide
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import Transfer

#: All packets through the state machine.
TROUBLE_LANE = (
    "import functools, rocekit.analysis as analysis\n"
    "analysis.Tracker = functools.partial(analysis.Tracker, clean_lane=False)\n"
)
#: As a summary asks for transfers: the few slowest, and those with trouble.
SUMMARY = "import functools, rocekit\nrocekit.analyze = functools.partial(rocekit.analyze, plain=3)\n"
WEATHER: tuple[dict[str, float], ...] = (
    {},
    {"drop": 0.03},
    {"duplicate": 0.05},
    {"reorder": 0.05},
    {"drop": 0.02, "reorder": 0.02, "duplicate": 0.02},
)


def told(script: str, captures: list[Path], compiled: str = "") -> list[str]:
    environment = os.environ | {"ROCEKIT_COMPILED": compiled, "PYTHONPATH": str(PACKAGE.parent)}
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, captures)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return ran.stdout.splitlines()


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Random programs over soft endpoints in all weathers, and many QPs at once without and with losses."""
    folder = tmp_path_factory.mktemp("captures")
    paths = []
    for seed in range(runs(30, share=2)):
        path = folder / f"{seed}.pcapng"
        run(random_program(seed), at_random(WEATHER[seed % len(WEATHER)]), seed, capture=path)
        paths.append(path)
    path = folder / "reads.pcap"  # of one response, of nine, and of 1,954
    generate(
        path, Traffic(packets=6_000, operations=("READ",), sizes=(8, 9000, 2_000_000), loss=0.003, pairs=3)
    )
    paths.append(path)
    for name, loss, pairs in (("clean", 0.0, 3), ("lossy", 0.01, 3), ("many", 0.002, 300)):
        path = folder / f"{name}.pcap"
        traffic = Traffic(
            packets=6_000, operations=OPERATIONS, sizes=(8, 3000, 9000), loss=loss, ecn=0.02, pairs=pairs
        )
        generate(path, traffic)
        paths.append(path)
    # More messages of one side than are remembered.
    path = folder / "long.pcap"
    generate(path, Traffic(packets=14_000, operations=OPERATIONS[:1], sizes=(8,), loss=0.0005, pairs=1))
    return [*paths, path]


@pytest.mark.parametrize("compiled", ["", "0"], ids=["compiled", "as plain Python"])
@pytest.mark.parametrize("script", [TELL, SUMMARY + TELL], ids=["all transfers", "a summary"])
def test_both_lanes_say_the_same(captures: list[Path], script: str, compiled: str) -> None:
    some = captures if not compiled else captures[::3]
    both, trouble = told(script, some, compiled), told(TROUBLE_LANE + script, some, compiled)
    assert len(both) == len(some)
    for one, other in zip(both, trouble, strict=True):
        assert one == other


def test_both_lanes_say_the_same_of_the_captures_in_this_project() -> None:
    paths = sorted((PACKAGE.parent / "pcaps").glob("*.pcap*"))
    assert told(TELL, paths) == told(TROUBLE_LANE + TELL, paths)


def _tracked(path: Path, **options: object) -> tuple[Tracker, list[tuple[int, int, str]]]:
    """A tracker that was fed a capture in small batches, and how transfers ended and changed, as it came."""
    seen: list[tuple[int, int, str]] = []
    tracker = Tracker(
        on_end=lambda t: seen.append((t.id, t.acked_frame or 0, t.status)),
        on_change=lambda t, event: seen.append(
            (t.id, event.frame if event else 0, event.kind if event else "")
        ),
        **options,  # type: ignore[arg-type]
    )
    decoder = Decoder()
    with open_capture(path, batch_frames=300) as reader:
        for batch in reader:
            tracker.feed(decoder.decode(batch))
    tracker.finish()
    return tracker, seen


@pytest.mark.parametrize("plain", [None, 0, 3])
def test_who_follows_a_trace_hears_the_same(captures: list[Path], plain: int | None) -> None:
    for path in captures[-6:]:
        (clean, heard), (slow, wanted) = (
            _tracked(path, plain=plain, clean_lane=lane) for lane in (True, False)
        )
        assert heard == wanted
        assert [t.to_dict() for t in clean.transfers] == [t.to_dict() for t in slow.transfers]
        assert [c.to_dict() for c in clean.connections] == [c.to_dict() for c in slow.connections]
        assert clean.left_out == slow.left_out


@pytest.mark.parametrize("clean_lane", [True, False])
def test_an_error_of_who_follows_a_trace_ends_it(captures: list[Path], clean_lane: bool) -> None:
    """Most of the clean lane works without the interpreter's lock; an error there must not be lost."""
    heard: list[int] = []

    def listener(transfer: Transfer) -> None:
        heard.append(transfer.id)
        if len(heard) == 20:
            raise LookupError("enough")

    tracker, decoder = Tracker(on_end=listener, clean_lane=clean_lane), Decoder()
    with open_capture(captures[-1]) as reader:
        packets = decoder.decode(next(iter(reader)))
        with pytest.raises(LookupError, match="enough"):
            tracker.feed(packets)
    assert len(heard) == 20


def test_transfers_are_there_between_two_batches(captures: list[Path]) -> None:
    trackers = [Tracker(clean_lane=lane) for lane in (True, False)]
    decoder = Decoder()
    with open_capture(captures[-1], batch_frames=500) as reader:
        for batch in reader:
            packets = decoder.decode(batch)
            for tracker in trackers:
                tracker.feed(packets)
            one, other = ([t.to_dict() for t in tracker.transfers] for tracker in trackers)
            assert one == other


#: Prints how many packets passed the state machine, and how many there were.
COUNT = (
    "import sys, rocekit, rocekit.track.lane.clean_lane as lane\n"
    "takes, taken = lane.CleanLane.takes, []\n"
    "def counted(clean, rows, start, end):\n"
    "    after = takes(clean, rows, start, end)\n"
    "    taken.append(after - start)\n"
    "    return after\n"
    "lane.CleanLane.takes = counted\n"
    "a = rocekit.analyze(sys.argv[1], plain=0)\n"
    "print(sum(taken) / sum(c.packets for c in a.connections))\n"
)


@pytest.mark.parametrize(
    ("operation", "pairs", "loss", "least"),
    [
        ("WRITE", 4, 0.0, 0.95),
        ("WRITE", 40, 0.0, 0.5),
        ("WRITE", 4, 0.01, 0.5),
        ("READ", 4, 0.0, 0.95),
        ("READ", 40, 0.0, 0.5),
        ("READ", 4, 0.01, 0.5),
    ],
    ids=["few", "many", "lossy", "READs", "many READs", "lossy READs"],
)
def test_most_packets_are_in_order(
    tmp_path: Path, operation: str, pairs: int, loss: float, least: float
) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=6_000, operations=(operation,), pairs=pairs, loss=loss))
    assert float(told(COUNT, [path], "0")[0]) > least


def test_a_flow_without_packets_has_no_place_in_the_table_of_flows() -> None:
    """Its number is −1: in compiled code that is no last place, but memory of others."""
    lane = Tracker()._lane
    side = CleanSide(lane, Connection(0, "RC", ["10.0.0.1", "10.0.0.2"], [17, 18]), 0)
    lane._sides = [side]
    lane.send_on(-1, None)
    assert lane._sides == [side]
