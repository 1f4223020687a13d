"""Of the programs that run in the lab, those that run by default still show each kind of thing.

Fewer programs take less time; these say what may not be left out.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from lab_programs import NETEM, PERFTEST, everything, selection

from rocekit.lab.jobs import Job

FAULTS = tuple(net for net in NETEM if net != "clean")


def under(net: str) -> list[Job]:
    return [job for job in selection() if job.netem == NETEM[net] and not job.truth.get("rnr")]


def operations(job: Job) -> set[str]:
    return {operation for operation, _, _ in job.truth["messages"]}


def test_each_program_runs_once_and_is_one_of_all() -> None:
    names = [job.name for job in selection()]
    assert len(set(names)) == len(names)
    assert set(names) <= {job.name for job in everything()}


def test_without_faults_each_operation_of_each_transport_runs_and_on_several_qps() -> None:
    several = {
        (job.truth["transport"], operation)
        for job in under("clean")
        if job.truth.get("connections", 1) > 1
        for operation in operations(job)
    }
    assert several == {(transport, operation) for _, _, _, transport, operation, _ in PERFTEST}
    assert any(job.truth.get("connections") == 1 for job in under("clean"))


def test_each_reliable_operation_meets_two_faults_or_more() -> None:
    met = defaultdict(set)
    for net in FAULTS:
        for job in under(net):
            for operation in operations(job) if job.truth["transport"] == "RC" else ():
                met[operation].add(net)
    assert set(met) == {operation for _, _, _, transport, operation, _ in PERFTEST if transport == "RC"}
    assert {operation for operation, nets in met.items() if len(nets) < 2} == set()


def test_each_transport_is_under_loss() -> None:
    assert {job.truth["transport"] for job in under("loss")} == {"RC", "UC", "UD"}


@pytest.mark.parametrize("net", FAULTS)
def test_under_each_fault_several_qps_of_one_program_run(net: str) -> None:
    assert any(job.truth.get("connections", 1) > 1 and job.truth["complete"] for job in under(net))


@pytest.mark.parametrize("net", ["loss", "reorder", "duplicate"])
def test_datagrams_that_nobody_acknowledges_meet_what_changes_their_number_or_order(net: str) -> None:
    assert any(job.truth["transport"] == "UD" for job in under(net))


def test_a_receiver_that_is_not_ready_is_among_them() -> None:
    assert any(job.truth.get("rnr") for job in selection())
