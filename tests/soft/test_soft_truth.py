"""Random programs under random faults: claims about the devices, and about an analysis of their captures.

Two thousand runs, or an eighth of them by default, are analysed, and half as many again only run; more with
``ROCEKIT_SEEDS=20000 pytest tests/soft/test_soft_truth.py``. A failure prints the command that repeats it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from amount import MORE, runs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rocekit.analysis import analyze
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.testbed import check_run, run
from rocekit.soft.testbed.program import Program, random_faults, random_program
from rocekit.soft.testbed.replay import compare, differences, random_run
from rocekit.soft.wires.faults import at_random

RUNS = runs(2000, share=12 if MORE else 24)
SEEDS = st.integers(0, 2**32 - 1)
many = settings(max_examples=max(10, RUNS // 2), deadline=None, suppress_health_check=list(HealthCheck))


def replay(seed: int, *faults: str, transports: str = "RC") -> str:
    words = "".join(f" --fault {fault}" for fault in faults)
    return f"python -m rocekit.soft.testbed.replay {seed}{words} --transports {transports}"


@many
@given(SEEDS)
@example(118319)  # credits ran out in a message of which no packet sent so far asked for an ACK
def test_data_arrives_once_and_intact_in_order_or_the_completion_says_why_not(seed: int) -> None:
    # A third of them react to CNPs.
    dcqcn = DcqcnParameters() if seed % 3 == 0 else None
    result = run(random_program(seed), random_faults(seed), seed, dcqcn=dcqcn)
    assert result.finished, replay(seed)
    assert check_run(result) == [], replay(seed)


@settings(many, max_examples=max(10, RUNS // 4))
@given(SEEDS)
def test_the_same_holds_of_unreliable_transports_but_for_loss(seed: int) -> None:
    result = run(random_program(seed, transports=("UC", "UD")), random_faults(seed), seed)
    assert result.finished, replay(seed, transports="UC,UD")
    assert check_run(result) == [], replay(seed, transports="UC,UD")


#: Faults between the devices. Delay and reordering behind the capture point are in HARD and test_doubt: there
#: the capture shows another order than the devices received.
RATES: tuple[dict[str, float], ...] = (
    {},
    {"drop": 0.02},
    {"drop": 0.02},
    {"drop": 0.1},
    {"bit-error": 0.05},
    {"duplicate": 0.1, "drop": 0.05},
    {"ecn": 0.1, "drop": 0.05},
)


@settings(many, max_examples=RUNS)
@given(seed=SEEDS, rates=st.sampled_from(RATES), journal=st.sampled_from([True, True, False]))
def test_an_analysis_of_the_capture_reproduces_the_record(
    seed: int, rates: dict[str, float], journal: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("truth")
    result, capture = random_run(seed, folder, faults=at_random(rates), journal=journal)
    compared = compare(result, analyze(capture).transfers, timers_known=journal)
    faults = [f"{kind}={rate}" for kind, rate in rates.items()] or ["drop=0"]
    assert compared.differences == [], replay(seed, *faults)


#: Runs that an analysis once got wrong: a go-back after a response that came meanwhile or was sent again; a
#: NAK that was delayed or overtaken, or that the requester obeyed before an ACK reached it which the capture
#: already had; a requester without any response; an RNR wait that a response ended; QPs whose first PSNs are
#: neighbours.
HARD: tuple[tuple[int, dict[str, float]], ...] = (
    (3969162756, {}),
    (2448, {"drop": 0.1}),
    (2050, {"drop": 0.25}),
    (3124, {"drop": 0.1}),
    (3276, {"drop": 0.25}),
    (4150, {"bit-error": 0.05}),
    (4289, {"drop": 0.25}),
    (4919, {"duplicate": 0.1, "drop": 0.05}),
    (5170, {"duplicate": 0.1, "drop": 0.05}),
    (1374, {"duplicate": 0.1, "drop": 0.05}),
    (5699, {"drop": 0.25}),
    (2034, {"drop": 0.25}),
    (20149, {"drop": 0.1}),
    (20214, {"drop": 0.25}),
    (60020, {"drop": 0.25}),
    (2978501, {"drop": 0.02}),
    (731199, {"drop": 0.1}),
    (30150, {"delay": 0.1}),
    (30331, {"reorder": 0.1, "drop": 0.05}),
    (40162, {"reorder": 0.1, "drop": 0.05}),
    (700267, {"reorder": 0.1}),
    (700450, {"reorder": 0.1}),
    (700761, {"reorder": 0.1}),
    (700878, {"reorder": 0.1, "drop": 0.05}),
    (700051, {"drop": 0.05, "reorder": 0.05, "duplicate": 0.05, "delay": 0.05, "bit-error": 0.02}),
    (710379, {"reorder": 0.1, "drop": 0.05}),
    (720555, {"drop": 0.05, "reorder": 0.05, "duplicate": 0.05, "delay": 0.05, "bit-error": 0.02}),
    (731422, {"drop": 0.05, "reorder": 0.05, "duplicate": 0.05, "delay": 0.05, "bit-error": 0.02}),
)


@pytest.mark.parametrize(("seed", "rates"), HARD, ids=str)
@pytest.mark.parametrize("journal", [True, False])
def test_so_it_does_of_runs_that_are_hard_to_read(
    seed: int, rates: dict[str, float], journal: bool, tmp_path: Path
) -> None:
    result, capture = random_run(seed, tmp_path, faults=at_random(rates), journal=journal)
    assert compare(result, analyze(capture).transfers, timers_known=journal).differences == []


@settings(many, max_examples=max(10, RUNS // 6))
@given(seed=SEEDS, rate=st.sampled_from([0.0, 0.1]))
def test_an_analysis_reproduces_unreliable_transfers_too(
    seed: int, rate: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("truth")
    faults = at_random({"drop": rate})
    result, capture = random_run(seed, folder, faults=faults, transports=("UC", "UD"))
    found = analyze(capture).transfers.to_dicts()
    command = replay(seed, f"drop={rate}", transports="UC,UD")
    assert differences(result.transfer_dicts(), found) == [], command


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_program_survives_json(seed: int) -> None:
    program = random_program(seed, transports=("RC", "UC", "UD"))
    assert Program.from_json(program.to_json()) == program


def test_a_program_with_an_unknown_key_says_which_there_are() -> None:
    with pytest.raises(ValueError, match="Post has no size; it has connection, side, opcode"):
        Program.from_json({"posts": [{"size": 3}]})


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    kinds = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        random_run(11, folder, faults=at_random({"drop": 0.1, "reorder": 0.1, "bit-error": 0.1}))
        kinds.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert kinds[0] == kinds[1]
    assert all(len(content) > 1000 for content in kinds[0])
