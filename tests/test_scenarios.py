"""Every scenario over soft devices: clean and with one packet lost, each work request explained."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

import pytest
from soft_pair import talk

from rocekit.analysis import Analysis, analyze
from rocekit.connecting import QpOptions
from rocekit.endpoint import Ways
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios.base import Plan
from rocekit.soft.faults import Fault
from rocekit.waiting import CM_WAYS, CQ_WAYS

#: What each scenario is told to do, and what its transfers must be: (operation, bytes): how many.
TOLD: dict[str, tuple[Plan, dict[tuple[str, int], int]]] = {
    "ping-sr": (Plan("ping-sr", 3000, 5, qps=2), {("SEND", 3000): 20}),
    **{f"ping-sr-{n}": (Plan(f"ping-sr-{n}", 3000, 5), {("SEND", 3000): 10}) for n in range(5)},
    "blast-sr": (Plan("blast-sr", 3000, 12, qps=2, window=4, cq_mod=3), {("SEND", 3000): 24}),
    "ping-write": (Plan("ping-write", 3000, 5, qps=2), {("WRITE", 3000): 20}),
    "ping-read": (Plan("ping-read", 3000, 5, qps=2), {("READ", 3000): 10}),
    "atomic": (Plan("atomic", 8, 5, qps=2), {("FETCH_ADD", 8): 10}),
}
QUICK = QpOptions(timeout=10)
"""Lost packets come again after 4 ms."""


@pytest.fixture
def ips() -> tuple[str, str]:
    """Two addresses that no other test run has."""
    n = os.getpid() % 60_000
    return f"127.{n >> 8}.{n & 0xFF}.4", f"127.{n >> 8}.{n & 0xFF}.5"


def analyzed(tmp_path: Path) -> Analysis:
    journals = [tmp_path / f"{role}.journal.jsonl" for role in ("client", "server")]
    return analyze(tmp_path / "x.pcapng", journals=journals)


def assert_explained(analysis: Analysis, expected: dict[tuple[str, int], int]) -> None:
    """Each transfer stands beside its work request, and each work request beside its transfer."""
    assert Counter((t.operation, t.bytes) for t in analysis.transfers) == expected
    assert {t.status for t in analysis.transfers} <= {"acked", "sent"}
    assert analysis.journal is not None
    assert not analysis.journal_problems
    assert not analysis.journal.unmatched
    for transfer in analysis.transfers:
        assert transfer.wr is not None
        assert analysis.explain(transfer).verdict


def test_every_scenario_is_told_here_what_to_do() -> None:
    assert set(TOLD) == set(SCENARIOS)


@pytest.mark.parametrize("name", TOLD)
def test_a_scenario_runs_and_every_wr_is_explained(name: str, tmp_path: Path, ips: tuple[str, str]) -> None:
    plan, expected = TOLD[name]
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1])
    assert outcome.samples is not None
    analysis = analyzed(tmp_path)
    assert_explained(analysis, expected)
    assert analysis.capture.counts.bad_icrc == 0
    assert not [f.rule for f in analysis.findings if f.severity in ("warning", "error")]


@pytest.mark.parametrize("name", TOLD)
def test_a_scenario_survives_a_lost_packet(name: str, tmp_path: Path, ips: tuple[str, str]) -> None:
    plan, expected = TOLD[name]
    lost = (Fault("drop", qpn=1, psn=4),)
    talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], faults=lost, qp=QUICK)
    analysis = analyzed(tmp_path)
    assert_explained(analysis, expected)
    assert sum(c.retransmitted_packets for c in analysis.connections) > 0


@pytest.mark.parametrize(("cm", "cq"), list(itertools.product(CM_WAYS, CQ_WAYS)))
def test_a_ping_pong_comes_back_whatever_its_way_of_waiting(
    cm: str, cq: str, tmp_path: Path, ips: tuple[str, str]
) -> None:
    plan = Plan("ping-sr", 64, 5)
    outcome = talk(plan, tmp_path, server_ip=ips[0], client_ip=ips[1], ways=Ways(cm, cq))
    assert outcome.ways == Ways(cm, cq)
    assert outcome.cpu_percent is not None
