"""QPs in step, all from PSN 0 and from one port: times of responses pair them right, or leave them open."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from places import OTHERS
from story import START_NS, Story

import rocekit

Rng = random.Random
SEEDS = int(os.environ.get("ROCEKIT_SEEDS", "6"))
#: Times of responses of the requests of one round, in ns: from when each QP's request was sent.
Answers = Callable[[Rng, list[int]], list[int]]


def steady(rng: Rng, sent: list[int]) -> list[int]:
    return [at + 4_000 + rng.randrange(800) for at in sent]


def slow_now_and_then(rng: Rng, sent: list[int]) -> list[int]:
    return [at + 4_000 + rng.randrange(800) + (50_000 if rng.random() < 0.05 else 0) for at in sent]


def noisy(rng: Rng, sent: list[int]) -> list[int]:
    return [at + 4_000 + rng.randrange(20_000) for at in sent]


def one_at_a_time(rng: Rng, sent: list[int]) -> list[int]:
    """A responder that serves requests in their order, slower than they come."""
    now, done = 0, {}
    for n in sorted(range(len(sent)), key=sent.__getitem__):
        now = done[n] = max(now, sent[n] + 1_000) + 900 + rng.randrange(100)
    return [done[n] for n in range(len(sent))]


def together(rng: Rng, sent: list[int]) -> list[int]:
    """All at once after the last request: interrupts that were coalesced."""
    last = max(sent) + 3_000 + rng.randrange(500)
    return [last + 100 * n for n in range(len(sent))]


def together_in_any_order(rng: Rng, sent: list[int]) -> list[int]:
    last = max(sent) + 3_000 + rng.randrange(500)
    return [last + 100 * n for n in rng.sample(range(len(sent)), len(sent))]


ANSWERS = (steady, slow_now_and_then, noisy, one_at_a_time, together, together_in_any_order)


def in_step(rng: Rng, count: int, rounds: int, shuffled: bool, answers: Answers, both: bool) -> Story:
    """QPs ``2n + 0x20`` ⇄ ``3n + 0x300``, which send in rounds."""
    qpns = [(2 * n + 0x20, 3 * n + 0x300) for n in range(count)]
    letters = list(zip("acegikmo", "bdfhjlnp", strict=True))[:count]
    others = {
        here + there: (("10.0.0.1", a), ("10.0.0.2", b))
        for (here, there), (a, b) in list(zip(letters, qpns, strict=True))[1:]
    }
    story = Story(qpns=qpns[0], others=others)
    packets: list[tuple[int, str, str, int]] = []
    for psn in range(rounds):
        for way in range(2 if both else 1):
            start = START_NS + psn * 300_000 + way * 150_000
            order = rng.sample(range(count), count) if shuffled else list(range(count))
            sent = [start + slot * 400 + rng.randrange(200) for slot in order]
            for (at, answered), names in zip(
                zip(sent, answers(rng, [t - start for t in sent]), strict=True), letters, strict=True
            ):
                packets.append((at, names[way], "RC_SEND_ONLY", psn))
                packets.append((start + answered, names[1 - way], "ACK", psn))
    for at, who, what, psn in sorted(packets):
        story.now = at
        story.packet(who, what, psn, *([64] if what != "ACK" else []), sport=50_000)
    return story


@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_pair_is_right_or_open(answers: Answers, both: bool, shuffled: bool) -> None:
    found = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        count = rng.choice([2, 3, 8])
        story = in_step(rng, count, rng.choice([9, 14, 40]), shuffled, answers, both)
        connections = story.track().tracker.connections
        told = [c for c in connections if c.paired_by]
        pairs = {tuple(c.qpns) for c in told} | {tuple(reversed(c.qpns)) for c in told}
        assert pairs <= {
            pair
            for n in range(count)
            for a, b in [(2 * n + 0x20, 3 * n + 0x300)]
            for pair in ((a, b), (b, a))
        }, seed
        assert all(c.paired_by == "psn" or not c.paired_surely for c in told)
        found += sum(c.paired_by == "response times" for c in told)
    if answers is steady and shuffled:
        assert found, "steady answers decide some"


def test_qps_in_strict_turn_stay_open() -> None:
    """The same order each round, at the same distances: no response tells whose it is."""
    story = in_step(
        random.Random(1), 4, 40, False, lambda rng, sent: [at // 400 * 400 + 9_000 for at in sent], True
    )
    assert {c.paired_by for c in story.track().tracker.connections} <= {None, "psn"}


@pytest.mark.skipif(not OTHERS.is_dir(), reason="captures that others made are not here")
def test_eight_qps_of_nccl_with_one_source_port(tmp_path: Path) -> None:
    path = tmp_path / "nccl8.pcap"
    path.write_bytes(gzip.decompress((OTHERS / "field" / "nccl8_sameport.pcap.gz").read_bytes()))
    analysis = rocekit.analyze(path)
    assert [tuple(c.qpns) for c in analysis.connections] == [(0x7B1 + 5 * n, 0x9C4 + 3 * n) for n in range(8)]
    assert {(c.paired_by, c.paired_surely) for c in analysis.connections} == {("response times", False)}
    assert [t.status for t in analysis.transfers] == ["acked"] * 960
