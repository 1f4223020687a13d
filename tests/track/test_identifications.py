"""What IP identifications tell of a packet that comes again, and where they tell nothing.

A sender that counts its packets gives away their order; of one that draws its identifications, or sets one
and the same, nothing may be concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
from amount import runs
from story import Story

import rocekit
from rocekit.craft.generate import OPERATIONS, Traffic, generate

Draw = Callable[[Random], Iterator[int]]


def counted(random: Random) -> Iterator[int]:
    """A host's count, of which other connections take their share."""
    at = random.randrange(1 << 16)
    while True:
        yield at or 1
        at = (at + random.choice((1, 1, 1, 2, 30))) & 0xFFFF


def drawn(random: Random) -> Iterator[int]:
    while True:
        yield random.randrange(1, 1 << 16)


def same(random: Random) -> Iterator[int]:
    number = random.randrange(1, 1 << 16)
    while True:
        yield number


def losses(seed: int, draw: Draw, *, held_up: bool = False) -> tuple[list[str], int]:
    """SENDs and READs of one side, some lost in front of the capture and sent again after a NAK.

    Args:
        held_up: what was lost was not: it comes by behind its repeat.

    Returns:
        The kinds of events, holes and NAKs left out; how many were lost.
    """
    random = Random(seed)
    ids, story, psn, lost = draw(random), Story(), 100, 0
    for _ in range(4):  # what shows that a sender counts
        story.a("RC_SEND_ONLY", psn, 64, identification=next(ids)).b("ACK", psn)
        psn += 1
    for _ in range(random.randrange(1, 12)):
        burst = [random.random() < 0.3 for _ in range(random.randrange(2, 6))]
        hole = random.randrange(len(burst) - 1) if random.random() < 0.7 else None
        numbers = [next(ids) for _ in burst]
        for i, is_read in enumerate(burst):
            if i != hole:
                _request(story, psn + i, is_read, numbers[i])
        if hole is not None:
            lost += 1
            story.b("NAK", psn + hole)
            for i in range(hole, len(burst)):
                _request(story, psn + i, burst[i], next(ids))
            if held_up:
                _request(story, psn + hole, burst[hole], numbers[hole])
        for i, is_read in enumerate(burst):
            if is_read:
                story.b("RC_RDMA_READ_RESPONSE_ONLY", psn + i, 64)
        psn += len(burst)
        if not burst[-1]:
            story.b("ACK", psn - 1)
    told = story.track()
    kinds = [e.kind for t in told.tracker.transfers for e in t.events]
    return [kind for kind in kinds if kind not in ("hole", "nak")], lost


def _request(story: Story, psn: int, is_read: bool, identification: int) -> None:
    what = "RC_RDMA_READ_REQUEST" if is_read else "RC_SEND_ONLY"
    story.a(what, psn, 64, identification=identification)


@pytest.mark.parametrize("draw", [counted, drawn, same])
def test_a_repeat_is_neither_late_nor_a_copy_whatever_its_identification(draw: Draw) -> None:
    seen = 0
    for seed in range(150):
        kinds, lost = losses(seed, draw)
        assert set(kinds) <= {"repeat"}, seed
        seen += lost
    assert seen > 300


def test_an_original_behind_its_repeat_is_late_where_the_sender_counts() -> None:
    for seed in range(150):
        kinds, lost = losses(seed, counted, held_up=True)
        assert kinds.count("late") == lost, seed


@pytest.mark.parametrize("draw", [drawn, same])
def test_an_original_behind_its_repeat_cannot_be_known_where_the_sender_does_not_count(draw: Draw) -> None:
    for seed in range(150):
        kinds, _ = losses(seed, draw, held_up=True)
        assert "late" not in kinds, seed


@pytest.mark.parametrize("draw", [counted, drawn])
def test_the_same_datagram_twice_is_a_copy(draw: Draw) -> None:
    for seed in range(50):
        ids = draw(Random(seed))
        story = Story()
        for psn in range(100, 105):
            story.a("RC_SEND_ONLY", psn, 64, identification=next(ids))
        told = story.again(3).b("ACK", 104).track()
        assert told.events == ["2 duplicate 102"], seed


def test_responses_that_all_have_the_same_identification_are_no_copies_of_another() -> None:
    told = Story()
    for asked in (0, 1):
        told.a("RC_RDMA_READ_REQUEST", 5 + asked, of=4096 - 1024 * asked)
        for psn in range(5 + asked, 9):
            place = "FIRST" if psn == 5 + asked else "LAST" if psn == 8 else "MIDDLE"
            told.b(f"RC_RDMA_READ_RESPONSE_{place}", psn, 1024, identification=7)
    assert not [event for event in told.track().events if "duplicate" in event]


def test_random_identifications_of_a_generated_capture_never_look_like_a_count(tmp_path: Path) -> None:
    """Nothing overtakes anything there, and nothing is doubled. The READs of 547 once seemed counted."""
    sizes = (0, 64, 5000)
    for seed in (547, *range(runs(60))):
        path = tmp_path / f"{seed}.pcap"
        traffic = Traffic(packets=600, operations=OPERATIONS, sizes=sizes, pairs=3, loss=0.2, seed=seed)
        generate(path, traffic)
        events = [e.kind for t in rocekit.analyze(path).transfers for e in t.events]
        assert "repeat" in events
        assert not {"late", "duplicate"} & set(events), seed


def test_a_count_may_run_over_sixteen_bits() -> None:
    ids = count(0xFFFC)
    story = Story()
    numbers = [next(ids) & 0xFFFF for _ in range(5)]
    for psn in (100, 101, 102, 103):
        story.a("RC_SEND_ONLY", psn, 64, identification=numbers[psn - 100] or 1)
    story.a("RC_SEND_ONLY", 105, 64, identification=2).b("NAK", 104)
    story.a("RC_SEND_ONLY", 104, 64, identification=3).a("RC_SEND_ONLY", 105, 64, identification=4)
    story.a("RC_SEND_ONLY", 104, 64, identification=1).b("ACK", 105)
    assert "4 late 104" in story.track().events
