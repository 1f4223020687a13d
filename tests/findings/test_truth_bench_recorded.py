"""Claims about the truth bench's judge of journals: it finds each line in its place, and a wrong one."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest
from places import PCAPS
from truth_bench.drawn import WIDER, experiment_of
from truth_bench.recorded import Programs
from truth_bench.scene import RIGHT, WRONG

import rocekit
from rocekit.analysis import Analysis

NAME = "blast-sr-loss"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    folder = tmp_path_factory.mktemp("recorded")
    for journal in PCAPS.glob(f"{NAME}.*.journal.jsonl"):
        shutil.copy(journal, folder)
    return Programs(folder)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return rocekit.analyze(PCAPS / f"{NAME}.pcap")


def verdicts(programs: Programs, analysis: Analysis, found: dict[str, Any]) -> Counter[tuple[str, str]]:
    return Counter((c.what, c.verdict) for c in programs.claims(analysis, found, clocks=True))


def test_each_work_request_completion_and_receive_is_found(programs: Programs, analysis: Analysis) -> None:
    found = verdicts(programs, analysis, analysis.to_dict())
    assert found == {("wr", RIGHT): 20, ("wc", RIGHT): 20, ("receive", RIGHT): 20, ("clock", RIGHT): 2}


@pytest.mark.parametrize(("what", "key"), [("wr", "posted_ns"), ("wc", "polled_ns")])
def test_a_line_of_another_work_request_is_wrong(
    programs: Programs, analysis: Analysis, what: str, key: str
) -> None:
    found = analysis.to_dict()
    of_it = next(t for t in found["transfers"] if t[what] is not None)
    of_it[what][key] += 1
    assert verdicts(programs, analysis, found)[what, WRONG] == 1


def test_a_clock_that_is_said_to_be_wrong_is_wrong(programs: Programs, analysis: Analysis) -> None:
    found = analysis.to_dict()
    found["journal"]["clocks"][0]["offset_ns"] = 28_000_000
    assert verdicts(programs, analysis, found)["clock", WRONG] == 1


@pytest.mark.parametrize("first", [0, WIDER])
def test_every_seed_draws_an_experiment_and_always_the_same(first: int) -> None:
    for seed in range(first, first + 200):
        drawn = experiment_of(f"drawn-{seed}")
        assert drawn == experiment_of(f"drawn-{seed}")
        assert drawn.faults
        assert not drawn.journal
        assert experiment_of(f"recorded-{seed}").journal
