"""How each two captures go together, found for all at once, and compared with a look at each two."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap

import rocekit
from rocekit.machine.limits import CAPTURE_PAIRS, choose_limit, usual_limits
from rocekit.points.relations import CONSECUTIVE, DIFFERENT, DIRECTIONS, EMPTY, SAME, Relations, Span
from rocekit.wire.build import build_frame

Ways = set[tuple[str, str]]


def apart(first: Ways, second: Ways, span: Span, other: Span) -> str:
    """The relation of two captures without a packet in common."""
    if not first or not second or span is None or other is None:
        return EMPTY
    hosts = {host for way in first for host in way} & {host for way in second for host in way}
    if hosts and (span[1] <= other[0] or other[1] <= span[0]):
        return CONSECUTIVE
    if not first & second and first & {(dst, src) for src, dst in second}:
        return DIRECTIONS
    return DIFFERENT


def captures(seed: int) -> tuple[list[int], list[Ways], list[Span]]:
    """Captures of few hosts, whose times touch, overlap or are equal."""
    rng = random.Random(seed)
    groups: list[int] = []
    ways: list[Ways] = []
    spans: list[Span] = []
    for number in range(rng.randrange(2, 14)):
        groups.append(rng.choice([number, number, *groups]))
        hosts = rng.choice(("abc", "de", "xyz"))
        pairs = [(src, dst) for src in hosts for dst in hosts if src != dst]
        ways.append(set(rng.sample(pairs, rng.choice((0, 1, 1, 2)))))
        start = rng.randrange(8)
        spans.append(None if rng.random() < 0.1 else (start, start + rng.randrange(4)))
    return groups, ways, spans


@pytest.mark.parametrize("seed", range(150))
def test_all_relations_are_those_of_each_two(seed: int) -> None:
    groups, ways, spans = captures(seed)
    expected = {
        (a, b): SAME if groups[a] == groups[b] else apart(ways[a], ways[b], spans[a], spans[b])
        for a, b in combinations(range(len(groups)), 2)
    }
    found = Relations(groups, ways, spans)
    assert {(r.first, r.second): r.relation for r in found.every} == expected
    assert found.counts == Counter(expected.values())
    assert [(r.first, r.second) for r in found.every] == list(expected)


def following(count: int) -> Relations:
    """One capture in many files, named so that their order is not that of time."""
    starts = [10 * (number * 7 % count) for number in range(count)]
    return Relations(range(count), [{("a", "b")}] * count, [(start, start + 5) for start in starts])


def test_beyond_the_limit_the_nearest_in_time_are_listed_and_all_are_counted() -> None:
    count = 40
    try:
        choose_limit(CAPTURE_PAIRS, 2 * count - 3)
        found = following(count)
        assert not found.are_all_listed
        place = {file: at for at, file in enumerate(found.order)}
        listed = {(r.first, r.second) for r in found.every}
        assert listed == {
            (a, b) for a, b in combinations(range(count), 2) if abs(place[a] - place[b]) in (1, 2)
        }
        assert {r.relation for r in found.every} == {CONSECUTIVE}
        assert found.overall == CONSECUTIVE
        assert found.counts == {CONSECUTIVE: count * (count - 1) // 2}
    finally:
        usual_limits()


def test_so_many_captures_as_the_limits_words_say_are_all_listed() -> None:
    assert following(447).are_all_listed
    assert not following(448).are_all_listed


def test_very_many_captures_are_related_without_a_look_at_each_two() -> None:
    """Of 3,000, two that are not like the others are found and named, and nothing else is gone through."""
    count = 3_000
    ways: list[Ways] = [{("a", "b")}] * count
    ways[7], ways[8] = {("x", "y")}, set()
    found = Relations(range(count), ways, [(10 * n, 10 * n + 5) for n in range(count)])
    assert found.counts == {
        CONSECUTIVE: (count - 2) * (count - 3) // 2,
        DIFFERENT: count - 2,
        EMPTY: count - 1,
    }
    assert found.overall == DIFFERENT
    assert len(found.every) == 100_000


def test_json_says_that_it_does_not_list_every_pair(tmp_path: Path) -> None:
    paths = []
    for host in range(4):
        frame = build_frame("RC_SEND_ONLY", src=f"10.0.{host}.1", dst=f"10.0.{host}.2", dest_qpn=2, psn=host)
        paths.append(tmp_path / f"{host}.pcap")
        paths[-1].write_bytes(pcap([Frame(frame, 1000 * host)]))
    whole = rocekit.analyze(*paths).capture_dict()
    assert (len(whole["relations"]), whole["limits_met"]) == (6, [])
    try:
        choose_limit(CAPTURE_PAIRS, 3)
        analysis = rocekit.analyze(*paths)
        told = analysis.capture_dict()
        assert [r["files"] for r in told["relations"]] == [[0, 1], [1, 2], [2, 3]]
        assert told["relation"] == DIFFERENT
        (met,) = told["limits_met"]
        assert met["limit"] == CAPTURE_PAIRS
        assert "--limit capture-pairs=N" in met["meaning"]
        # The text has all pairs, or counts them: nothing is left out there.
        assert "capture-pairs" not in str(analysis)
        assert str(analysis).count("not the same traffic") == 6
    finally:
        usual_limits()


def test_directions_need_no_way_in_common() -> None:
    found = Relations(range(3), [{("a", "b")}, {("b", "a")}, {("a", "b"), ("b", "a")}], [(0, 9)] * 3)
    assert [r.relation for r in found.every] == [DIRECTIONS, DIFFERENT, DIFFERENT]
