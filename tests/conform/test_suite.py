"""The suite against the soft device, which is its model: every drill that its clause settles."""

from __future__ import annotations

import re

import pytest

from rocekit.conform.drill import Drill
from rocekit.conform.known import read_known
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.suite import DRILLS, run, suite
from rocekit.conform.verdict import PASS
from rocekit.errors import ScenarioError

# Each process that runs some of them reads all drills, for two seconds.
pytestmark = pytest.mark.xdist_group("drills")

NAMES = sorted(path.relative_to(DRILLS).with_suffix("").as_posix() for path in DRILLS.rglob("*.yaml"))
KNOWN = read_known()
_ASKS = r"(expect|acked|nothing|completion|event|memory|state|refused):"


@pytest.fixture(scope="module")
def drills() -> dict[str, Drill]:
    """All there are, by name."""
    return {drill.name: drill for drill in suite()}


@pytest.mark.parametrize("name", NAMES)
def test_the_soft_device_keeps(drills: dict[str, Drill], name: str) -> None:
    (result,) = run([drills[name]], SoftBench(), KNOWN)
    assert result.outcome == PASS, result.playing.verdict.words()


def test_the_suite_asks_requester_and_responder_at_least_150_questions() -> None:
    assert sum(name.startswith(("requester/", "responder/")) for name in NAMES) >= 150


def test_each_drill_asks_something_of_the_device(drills: dict[str, Drill]) -> None:
    for drill in drills.values():
        assert re.search(_ASKS, drill.text), drill.name


def test_no_two_drills_make_one_claim(drills: dict[str, Drill]) -> None:
    claims = [(drill.claim, drill.name.split("/")[0]) for drill in drills.values()]
    assert len(set(claims)) == len(claims)


def test_a_claim_is_one_sentence_and_a_clause_a_section(drills: dict[str, Drill]) -> None:
    for drill in drills.values():
        assert drill.claim[0].isupper(), drill.name
        assert drill.claim.endswith("."), drill.name
        assert re.fullmatch(r"IBA A?\d+(\.\d+)*(, A?\d+(\.\d+)*)*", drill.clause), drill.name


def test_the_claim_is_the_first_line_of_its_file() -> None:
    for path in DRILLS.rglob("*.yaml"):
        assert path.read_text().startswith("claim: "), path


def test_what_is_unsure_names_what_would_settle_it(drills: dict[str, Drill]) -> None:
    unsure = [drill for drill in drills.values() if drill.unsure]
    assert len(unsure) > 15
    for drill in unsure:
        assert re.search(r"settles? it", drill.unsure), drill.name


def test_known_failures_are_of_drills_that_there_are() -> None:
    assert KNOWN.drills() <= set(NAMES)


def test_a_drill_gives_the_same_every_time() -> None:
    drill = suite(["requester/rnr/waits_at_least"])[0]
    first, second = (SoftBench().play(drill) for _ in range(2))
    assert [frame.data for frame in first.frames] == [frame.data for frame in second.frames]
    assert first.said == second.said


def test_names_areas_and_patterns_choose_drills() -> None:
    assert [d.name for d in suite(["responder/psn/gap"])] == ["responder/psn/gap"]
    assert {d.name.split("/")[0] for d in suite(["uc", "ud"])} == {"uc", "ud"}
    assert len(suite(["responder/duplicates/atomic*"])) > 2
    with pytest.raises(ScenarioError, match=r"no drill is called respnder; the areas are cm, cnp, .*uc, ud"):
        suite(["respnder"])
