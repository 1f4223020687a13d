"""Claims about recording on the kernel's rxe what others made: all of their programs, and a suite of tests.

Their ends, the packets on the wire, and a counter below the recorder are the truth.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import lab_record_peers as inside
import lab_record_suite as suite
import pytest
from amount import EVERYTHING
from lab_boot import Boot, Part
from lab_forks import PRELOADED

from rocekit.analysis import Analysis, analyze
from rocekit.journal import Journal, read_journal
from rocekit.lab.jobs import load_manifest
from rocekit.record.build import look
from rocekit.wire.psn import MASK

INSTALLED = tuple(job for job in inside.JOBS if shutil.which(job.truth["program"]))


def obstacle() -> str | None:
    found = look()
    if found.path is None and not found.can_build:
        return f"{found.obstacle} (apt-get install {' '.join(found.packages)})"
    return None if EVERYTHING else "scripts/test --everything records all programs that others made"


def no_suite() -> str | None:
    return obstacle() or (
        None if suite.PACKAGED.is_dir() else "no tests of rdma-core (apt-get install rdma-core)"
    )


PART = Part(
    "record_peers", (inside.__file__,), timeout_s=3000, jobs=INSTALLED, loads=PRELOADED, obstacle=obstacle
)
SUITE = Part("record_suite", (suite.__file__, "rxe0"), timeout_s=1800, obstacle=no_suite)
pytestmark = [pytest.mark.lab(PART), pytest.mark.lab(SUITE)]
NAMES = [job.name for job in INSTALLED]
TRUTH = {job.name: job.truth for job in INSTALLED}
SIDES = ("client", "server")


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    return boot.of(PART)


_ANALYSES: dict[str, Analysis] = {}


def journals(out: Path, name: str) -> list[Journal]:
    return [read_journal(out / f"{name}.{side}.journal.jsonl") for side in SIDES]


def analysis(out: Path, name: str) -> Analysis:
    if name not in _ANALYSES:
        paths = [out / f"{name}.{side}.journal.jsonl" for side in SIDES]
        _ANALYSES[name] = analyze(out / f"{name}.pcap", journals=paths)
    return _ANALYSES[name]


@pytest.mark.parametrize("name", NAMES)
def test_programs_end_well(out: Path, name: str) -> None:
    entry = load_manifest(out)[name]
    assert entry["client_result"] == {"returncode": 0, "killed": False}
    assert entry["server_result"]["killed"] is TRUTH[name].get("serves_on", False)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_missing_in_their_journals(out: Path, name: str) -> None:
    for journal in journals(out, name):
        assert journal.problems == []
        assert not journal.of("records_lost", "not_recorded")


@pytest.mark.parametrize("name", NAMES)
def test_each_transfer_on_the_wire_has_its_request(out: Path, name: str) -> None:
    found = analysis(out, name)
    assert load_manifest(out)[name]["dropped_by_kernel"] == 0
    wanted = TRUTH[name].get("messages")
    assert len(found.transfers) == wanted if wanted is not None else found.transfers
    for transfer in found.transfers:
        assert transfer.wr is not None, transfer
        if transfer.connection.transport != "UD":
            assert transfer.wr.matched_by == "psn"
            assert transfer.wr.recorded_psn == transfer.first_psn & MASK


@pytest.mark.parametrize("name", NAMES)
def test_each_request_is_on_the_wire_unless_the_program_stopped_first(out: Path, name: str) -> None:
    found = analysis(out, name)
    assert found.journal is not None
    left = found.journal.unmatched
    assert not left or TRUTH[name].get("stops_posting"), left
    assert all(wr.wc is None and wr.unmatched_because is None for wr in left)


@pytest.fixture(scope="module")
def suite_out(boot: Boot) -> Path:
    return boot.of(SUITE)


def of_run(folder: Path, run: str, what: str) -> dict[str, Any]:
    return dict(json.loads((folder / f"{run}.{what}.json").read_text()))


RECORDED = [run for run in suite.RUNS if run.startswith("recorded")]


def test_rdma_core_s_tests_end_as_without_the_recorder(suite_out: Path) -> None:
    plain = [of_run(suite_out, run, "results") for run in suite.RUNS if run not in RECORDED]
    steady = {name: how for name, how in plain[0]["results"].items() if plain[1]["results"].get(name) == how}
    assert Counter(steady.values())["ok"] > 30
    assert len(steady) > 0.95 * len(plain[0]["results"])
    for run in RECORDED:
        recorded = of_run(suite_out, run, "results")
        assert {name: recorded["results"].get(name) for name in steady} == steady
        assert recorded["returncode"] in {before["returncode"] for before in plain}


@pytest.mark.parametrize("run", RECORDED)
def test_their_journal_has_all_that_was_counted_below_the_recorder(suite_out: Path, run: str) -> None:
    counted = of_run(suite_out, run, "counts")
    journal = read_journal(suite_out / f"{run}.journal.jsonl")
    assert not journal.of("records_lost")
    # The counter is another preloaded library, which looks for libibverbs by its name.
    assert [e["what"].split(":")[0] for e in journal.of("not_recorded")] == [
        "calls past a preloaded library, unless it passes its own calls on"
    ]
    posted = journal.of("wr_posted", "recv_posted")
    accepted = Counter(event.event for event in posted if not event.get("errno"))
    assert counted["sent"] > 100
    assert accepted["wr_posted"] > counted["sent"]  # those of the ibv_wr_* calls, which are not counted, too
    assert accepted["recv_posted"] == counted["received"]
    assert len(journal.of("wc_polled")) == counted["polled"]
