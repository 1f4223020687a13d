"""No packet makes the analysis fail: whatever becomes of real traffic, it is told of, and nothing is raised.

Frames of this project's captures are changed, left out, repeated and put in another order, with their ICRCs
verified and not (so that what was changed is tracked); then everything that the commands print is asked for.
"""

from __future__ import annotations

import functools
import json
import random
import struct
from pathlib import Path

from amount import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from places import PCAPS

import rocekit
from rocekit.explanation.transfer import story

NAMES = sorted(path.name for path in PCAPS.glob("*.pcap"))
HEADERS_FROM, HEADERS_TO = 42, 100  # of an Ethernet frame over IPv4: BTH and what follows


@functools.cache
def records(name: str) -> tuple[bytes, tuple[bytes, ...]]:
    """A pcap's file header, and its records, headers included."""
    data = (PCAPS / name).read_bytes()
    found, at = [], 24
    while at < len(data):
        [length] = struct.unpack_from("<I", data, at + 8)
        found.append(data[at : at + 16 + length])
        at += 16 + length
    return data[:24], tuple(found)


def changed(record: bytes, rng: random.Random) -> bytes:
    """The record with a few bytes of its transport headers replaced."""
    frame = bytearray(record)
    last = min(len(frame) - 16, HEADERS_TO)
    for _ in range(rng.randrange(1, 4)):
        if last > HEADERS_FROM:
            frame[16 + rng.randrange(HEADERS_FROM, last)] = rng.randrange(256)
    return bytes(frame)


def garbled(name: str, seed: int, share: float, order: str) -> list[bytes]:
    """A file header and records."""
    rng = random.Random(seed)
    header, kept = records(name)
    frames = list(kept)
    if order == "shuffled":
        rng.shuffle(frames)
    elif order == "thinned":
        frames = [frame for frame in frames if rng.random() > 0.2]
        frames += rng.choices(kept, k=10)
    return [header, *(changed(f, rng) if rng.random() < share else f for f in frames)]


@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 2**32),
    share=st.sampled_from([0.02, 0.3, 1.0]),
    order=st.sampled_from(["kept", "shuffled", "thinned"]),
    icrc=st.booleans(),
)
@example(name="ib_send_bw-rnr.pcap", seed=624203, share=1.0, order="shuffled", icrc=False)
def test_nothing_is_raised_and_every_frame_counts(
    tmp_path: Path, name: str, seed: int, share: float, order: str, icrc: bool
) -> None:
    frames = garbled(name, seed, share, order)
    capture = tmp_path / "x.pcap"
    capture.write_bytes(b"".join(frames))
    analysis = rocekit.analyze(capture, check_icrc=icrc)
    assert str(analysis)
    document = json.loads(json.dumps(analysis.to_dict()))
    assert document["capture"]["frames"] == len(frames) - 1
    for number in range(min(10, len(analysis.transfers))):
        assert story(analysis.explain(number))
    assert analysis.statistics().to_dict()
