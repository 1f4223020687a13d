"""UDP source ports break ties of PSNs: the right pair, or none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from story import Story

from rocekit.track.pairs.source_ports import RULES, QpnsOfHosts, fit, of_both, of_hash, of_own
from rocekit.track.pairs.waiting import Flow, note_rivals


def in_step(qpns: list[tuple[int, int]], port: Callable[[int, int], int]) -> Story:
    """QPs of two hosts that all start at PSN 0 and send in step."""
    others = {
        f"{2 * n}{2 * n + 1}": (("10.0.0.1", a), ("10.0.0.2", b)) for n, (a, b) in enumerate(qpns[1:], 1)
    }
    letters = [("a", "b"), *((pair[0], pair[1]) for pair in others)]
    story = Story(qpns=qpns[0], others=others)
    for p in range(12):
        for (asks, _), (a, b) in zip(letters, qpns, strict=True):
            story.packet(asks, "RC_SEND_ONLY", p, 64, sport=port(a, b))
        for (_, answers), (a, b) in reversed(list(zip(letters, qpns, strict=True))):
            story.packet(answers, "ACK", p, sport=port(b, a))
    return story


@pytest.mark.parametrize(
    ("qpns", "port"),
    [((0x14, 0x14), 49552), ((0x22, 0x1F), 50206), ((0x28, 0x22), 50512), ((0x22, 0x21), 50274)],
)
def test_ports_of_real_captures_follow_the_rule_of_linux(qpns: tuple[int, int], port: int) -> None:
    assert of_both(*qpns) == port
    assert fit(qpns[0], port, qpns[1], port)


@pytest.mark.parametrize("rule", [*RULES, lambda a, b: 50000, lambda a, b: 0xC000 + a * 7919 % 16384])
@pytest.mark.parametrize("seed", range(12))
def test_a_pair_is_right_or_open(rule: Callable[[int, int], int], seed: int) -> None:
    """Small QPNs, as hosts count them, make crossed pairs and equal products likely."""
    rng = random.Random(seed)
    first = rng.choice([0x11, 0x700, 0xABC000])
    count = rng.choice([2, 3, 4])
    a, b = (rng.sample(range(start, start + 8), count) for start in (first, first + rng.choice([0, 3, 300])))
    qpns = list(zip(a, b, strict=True))
    connections = in_step(qpns, rule).track().tracker.connections
    found = {tuple(c.qpns) for c in connections if c.paired_by}
    assert found <= set(qpns)
    if rule in RULES:
        assert found, "a known rule decides at least one pair"
        assert {c.paired_by for c in connections if c.paired_by} <= {"source port", "psn"}


@pytest.mark.parametrize("rule", [of_hash, of_own])
def test_crossed_qpns_are_not_paired_by_equal_ports(rule: Callable[[int, int], int]) -> None:
    qpns = [(0x11, 0x12), (0x12, 0x11)]
    told = in_step(qpns, rule).track()
    assert {(tuple(c.qpns), c.paired_by, c.paired_surely) for c in told.tracker.connections} == {
        (pair, "source port", True) for pair in qpns
    }


def test_equal_ports_without_a_rule_are_only_probable() -> None:
    told = in_step([(0x11, 0x112), (0x21, 0x122)], lambda a, b: 50000 + min(a, b)).track()
    assert {(c.paired_by, c.paired_surely) for c in told.tracker.connections} == {("source port", False)}


def test_crossed_qpns_with_ports_of_an_unknown_rule_stay_open() -> None:
    told = in_step([(0x11, 0x12), (0x12, 0x11)], lambda own, other: 50000 + own).track()
    assert {c.paired_by for c in told.tracker.connections} == {None}


@pytest.mark.parametrize("seed", range(4))
def test_fit_is_what_the_rules_say(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        a, b = rng.randrange(1 << 24), rng.randrange(1 << 24)
        rule = rng.choice([*RULES, None])
        ports = (rng.randrange(1 << 16), 0xC000) if rule is None else (rule(a, b), rule(b, a))
        told = any(ports == (known(a, b), known(b, a)) for known in RULES)
        assert fit(a, ports[0], b, ports[1]) is told


@pytest.mark.parametrize("seed", range(30))
def test_qpns_of_hosts_says_whether_both_have_a_number(seed: int) -> None:
    """Whatever the order in which flows come, and a host that talks to itself aside."""
    draw = random.Random(seed)
    qpns = QpnsOfHosts()
    known: set[tuple[int, int]] = set()
    same = False
    for _ in range(20):
        more = [
            Flow(draw.randrange(2), draw.randrange(2), draw.randrange(200), "RC", 1)
            for _ in range(draw.randrange(3))
        ]
        qpns.add(more)
        for flow in more:
            known.add((flow.dst, flow.qpn))
            same = same or (flow.src != flow.dst and (flow.src, flow.qpn) in known)
        assert qpns.same == same


def test_responders_are_noted_with_each_flow_in_their_order() -> None:
    """They are looked at again in this order, once one of these flows is paired."""
    a, b, c, one, two = (Flow(0, 1, number, "RC", 1) for number in range(5))
    for flow in (a, b):
        one.vote(flow)
    for flow in (b, c):
        two.vote(flow)
    undecided: dict[Flow, list[Flow]] = {}
    later = [one]
    note_rivals(undecided, later)
    assert later == []
    later += [two, one]
    note_rivals(undecided, later)
    assert undecided == {a: [one, one], b: [one, two, one], c: [two]}
