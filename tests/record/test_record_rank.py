"""Claims about parallel programs: behind a launcher every rank has a journal of its own, named by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocekit.analysis import find_journals
from rocekit.errors import RocekitError
from rocekit.journal import read_journal
from rocekit.record.rank import find_rank

LAUNCHERS = ("TORCHELASTIC_", "OMPI_", "MV2_", "PMI", "SLURM_")


def launch(variable: str, command: list[str], cwd: Path, *, ranks: int = 2) -> None:
    """What a launcher does: the same command line for each rank, at once; only a variable differs."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    running = [
        subprocess.Popen(command, cwd=cwd, env=clean | {variable: str(rank)}, stderr=subprocess.PIPE)
        for rank in range(ranks)
    ]
    for process in running:
        assert process.communicate(timeout=240)[1] is not None
        assert process.returncode == 0


def record(*options: str) -> list[str]:
    return [sys.executable, "-m", "rocekit.cli", "record", *options, "--"]


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_ranks_that_name_one_file_write_one_each(program: Path, tmp_path: Path, variable: str) -> None:
    launch(variable, [*record("-o", "run.journal.jsonl"), str(program), "each_operation"], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == [
        "run.rank-0.journal.jsonl",
        "run.rank-1.journal.jsonl",
    ]
    for rank in (0, 1):
        journal = read_journal(tmp_path / f"run.rank-{rank}.journal.jsonl")
        assert journal.problems == []
        assert [event["rank"] for event in journal.of("recording") if "rank" in event.fields] == [rank]
        assert len(journal.of("wr_posted")) == 7, "one process's, all of it"
        assert len({event.pid for event in journal.of("wr_posted")}) == 1
    assert len(find_journals(tmp_path / "run.pcapng")) == 2, "analyze finds both beside the capture"


def test_a_rank_s_default_name_has_it_and_replaces_nothing(program: Path, tmp_path: Path) -> None:
    for _ in range(2):
        launch("PMI_RANK", [*record(), str(program), "each_operation"], tmp_path, ranks=1)
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == [
        "program-2.rank-0.journal.jsonl",
        "program.rank-0.journal.jsonl",
    ]


def test_without_a_launcher_nothing_is_renamed(program: Path, tmp_path: Path) -> None:
    launch(
        "NO_LAUNCHER", [*record("-o", "x.journal.jsonl"), str(program), "each_operation"], tmp_path, ranks=1
    )
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["x.journal.jsonl"]


def test_the_launcher_nearest_to_the_program_names_its_rank() -> None:
    # mpirun in a job of Slurm: the daemon of each host has a number of Slurm, its ranks have their own.
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
    assert find_rank(slurm) is not None
    found = find_rank(slurm | {"OMPI_COMM_WORLD_RANK": "5"})
    assert found is not None
    assert (found.number, found.variable) == (5, "OMPI_COMM_WORLD_RANK")
    found = find_rank(slurm | {"RANK": "12", "TORCHELASTIC_RUN_ID": "none"})
    assert found is not None
    assert (found.number, found.variable) == (12, "RANK")


def test_a_batch_script_is_no_rank() -> None:
    # What sbatch gives to the script itself (slurm.schedmd.com/sbatch.html): number 0, and no step.
    assert find_rank({"SLURM_JOB_ID": "200505", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
    assert find_rank({"RANK": "3"}) is None, "a common word, without torchrun"


def test_what_is_no_rank_is_refused_in_one_line() -> None:
    with pytest.raises(RocekitError, match=r"SLURM_PROCID is 'x', no rank"):
        find_rank({"SLURM_PROCID": "x"})


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("a/x.journal.jsonl", "a/x.rank-3.journal.jsonl"),
        ("x.pcapng", "x.rank-3.pcapng"),
        ("run.7.jsonl", "run.7.rank-3.jsonl"),
        ("x", "x.rank-3"),
    ],
)
def test_a_rank_stands_before_the_suffix(name: str, named: str) -> None:
    rank = find_rank({"PMI_RANK": "3"})
    assert rank is not None
    assert rank.name(Path(name)) == Path(named)
