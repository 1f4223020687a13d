"""The truth bench in short: a few faults between rxe devices, and what an analysis says of them.

``benchmarks/truth.py`` makes all experiments and scores every claim.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from amount import MORE
from lab_boot import Boot, Part
from places import INSIDE
from truth_bench.experiments import EXPERIMENTS, SHORT
from truth_bench.neighbours import NEIGHBOURS
from truth_bench.scene import RIGHT, WRONG
from truth_bench.score import Scored, counted, disturbed, score, unfit, wrong_lines

PART = Part("truth", (str(INSIDE / "truth_inside.py"), *SHORT), timeout_s=600, devices=3)
pytestmark = pytest.mark.lab(PART)
#: Of claims of place and cause, at least so many of 100 must be right.
BAR = 99
#: The same of captures that hold less, each of which claims less too.
BAR_OF_NEIGHBOURS = 98


@pytest.fixture(scope="module")
def folders(boot: Boot) -> list[Path]:
    """Those of the experiments, without what a busy machine made of some of them."""
    found = [boot.of(PART) / name for name in SHORT]
    strange = [line for folder in found for line in disturbed(folder)]
    if strange:
        warnings.warn("; ".join(strange), stacklevel=1)
    calm = [folder for folder in found if not disturbed(folder)]
    if not calm:
        pytest.skip("this machine is too busy for the lab: packets overtook others in every experiment")
    return calm


@pytest.fixture(scope="module")
def scored(folders: list[Path]) -> list[Scored]:
    """Every claim about every experiment, from every view."""
    return [each for folder in folders for each in score(folder)]


@pytest.mark.parametrize("name", SHORT)
def test_the_fault_was_made_and_counted(boot: Boot, name: str) -> None:
    folder = boot.of(PART) / name
    truth = json.loads((folder / "truth.json").read_text())
    assert truth["programs"]["client"]["returncode"] == 0
    assert [fault["where"] for fault in truth["faults"]] == [f.where for f in EXPERIMENTS[name].faults]
    assert all(fault["counters"]["drops"] > 0 for fault in truth["faults"])
    assert unfit(folder) == []


@pytest.mark.parametrize("kind", ["cause", "place"])
def test_places_and_causes_are_right(scored: list[Scored], kind: str) -> None:
    _are_right([each for each in scored if each.claim.kind == kind], BAR)


def _are_right(scored: list[Scored], bar: int) -> None:
    counts = counted(scored)
    right, wrong = (sum(n for key, n in counts.items() if key[2] == verdict) for verdict in (RIGHT, WRONG))
    assert right > 0
    assert right * 100 >= bar * (right + wrong), "\n".join(wrong_lines(scored))


@pytest.fixture(scope="module")
def of_neighbours(folders: list[Path]) -> list[Scored]:
    """Every claim about the same traffic, captured less well; half of it unless more is wanted."""
    return [
        each
        for number, kind in enumerate(NEIGHBOURS)
        for folder in (folders if MORE else folders[number % 2 :: 2] or folders)
        for each in score(folder, kind)
    ]


@pytest.mark.parametrize("kind", ["cause", "place"])
def test_captures_that_hold_less_say_less_and_nothing_more_false(
    of_neighbours: list[Scored], kind: str
) -> None:
    _are_right([each for each in of_neighbours if each.claim.kind == kind], BAR_OF_NEIGHBOURS)


@pytest.mark.parametrize("kind", ["rule", "count", "cost", "transfers"])
def test_nothing_is_said_that_was_not_so(scored: list[Scored], kind: str) -> None:
    assert wrong_lines(each for each in scored if each.claim.kind == kind) == []
