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

ALL = suite()
KNOWN = read_known()
_ASKS = r"(expect|acked|nothing|completion|event|memory|state|refused):"


@pytest.mark.parametrize("drill", ALL, ids=[drill.name for drill in ALL])
def test_the_soft_device_keeps(drill: Drill) -> None:
    (result,) = run([drill], SoftBench(), KNOWN)
    assert result.outcome == PASS, result.playing.verdict.words()


def test_the_suite_asks_requester_and_responder_at_least_150_questions() -> None:
    assert len(suite(["requester"])) + len(suite(["responder"])) >= 150


def test_each_drill_asks_something_of_the_device() -> None:
    for drill in ALL:
        assert re.search(_ASKS, drill.text), drill.name


def test_no_two_drills_make_one_claim() -> None:
    claims = [(drill.claim, drill.name.split("/")[0]) for drill in ALL]
    assert len(set(claims)) == len(claims)


def test_a_claim_is_one_sentence_and_a_clause_a_section() -> None:
    for drill in ALL:
        assert drill.claim[0].isupper(), drill.name
        assert drill.claim.endswith("."), drill.name
        assert re.fullmatch(r"IBA A?\d+(\.\d+)*(, A?\d+(\.\d+)*)*", drill.clause), drill.name


def test_the_claim_is_the_first_line_of_its_file() -> None:
    for path in DRILLS.rglob("*.yaml"):
        assert path.read_text().startswith("claim: "), path


def test_what_is_unsure_names_what_would_settle_it() -> None:
    unsure = [drill for drill in ALL if drill.unsure]
    assert len(unsure) > 15
    for drill in unsure:
        assert re.search(r"settles? it", drill.unsure), drill.name


def test_known_failures_are_of_drills_that_there_are() -> None:
    assert KNOWN.drills() <= {drill.name for drill in ALL}


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
