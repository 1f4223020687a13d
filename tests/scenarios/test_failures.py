"""``failures`` over soft devices: what it says it provoked is what the packets and the journal show."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from soft_pair import talk

from rocekit.analysis import Analysis, analyze
from rocekit.inject import Outcome
from rocekit.journal import read_journal
from rocekit.scenarios.failure_cases import CASES
from rocekit.scenarios.failure_meanings import EVENT_WORDS, STATUS_NOT, STATUS_WORDS
from rocekit.scenarios.scenario import Plan
from rocekit.wire import CM_EVENTS, WC_STATUSES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Outcome:
    n = os.getpid() % 60_000
    ips = (f"127.{n >> 8}.{n & 0xFF}.6", f"127.{n >> 8}.{n & 0xFF}.7")
    return talk(Plan("failures", 4096, 1), folder, server_ip=ips[0], client_ip=ips[1])


@pytest.fixture(scope="module")
def analysis(folder: Path, outcome: Outcome) -> Analysis:
    journals = [folder / f"{role}.journal.jsonl" for role in ("client", "server")]
    return analyze(folder / "x.pcapng", journals=journals)


def told(outcome: Outcome) -> dict[str, dict[str, str | None]]:
    return {row["name"]: row for row in outcome.details["provoked"]}


def test_each_status_and_event_is_told_of_once_with_what_it_means(outcome: Outcome) -> None:
    rows = outcome.details["provoked"]
    assert [row["name"] for row in rows] == [*WC_STATUSES.values(), *CM_EVENTS]
    assert all(row["means"] and (row["seen_by"] or row["how"]) for row in rows)
    assert json.loads(json.dumps(outcome.to_dict()))["provoked"] == rows


def test_all_sixteen_events_come(outcome: Outcome, folder: Path) -> None:
    assert all(told(outcome)[event]["seen_by"] for event in CM_EVENTS)
    journals = [read_journal(folder / f"{role}.journal.jsonl") for role in ("client", "server")]
    seen = {event["type"] for journal in journals for event in journal.of("cm_event")}
    assert seen == set(CM_EVENTS)


@pytest.mark.parametrize("status", sorted({case.status for case in CASES}))
def test_each_mistake_ends_in_the_status_it_is_meant_to(status: str, outcome: Outcome, folder: Path) -> None:
    row = told(outcome)[status]
    assert row["seen_by"] is not None
    assert row["how"] == "; ".join(case.how for case in CASES if case.status == status)
    polled = read_journal(folder / "client.journal.jsonl").of("wc_polled")
    assert status in {event["status"] for event in polled}


def test_what_no_case_provokes_has_its_reason(outcome: Outcome) -> None:
    for status in set(WC_STATUSES.values()) - {case.status for case in CASES}:
        assert told(outcome)[status]["how"] == f"not provoked: {STATUS_NOT[status]}"


def test_the_words_cover_what_there_is() -> None:
    assert set(STATUS_WORDS) == set(WC_STATUSES.values())
    assert set(EVENT_WORDS) == set(CM_EVENTS)


def test_every_request_of_a_mistake_is_explained(analysis: Analysis) -> None:
    """On the wire beside its transfer, or told why not: it failed before a packet was made."""
    assert analysis.journal is not None
    for request in analysis.journal.work_requests:
        assert request.completion is not None
        transfer = analysis.journal.transfer_of(request)
        if transfer is None:
            assert request.completion.status in ("LOC_PROT_ERR", "LOC_QP_OP_ERR", "WR_FLUSH_ERR")
        else:
            assert analysis.explain(transfer).verdict


def test_the_findings_name_each_kind_of_refusal(analysis: Analysis) -> None:
    rules: dict[str, int] = defaultdict(int)
    for finding in analysis.findings:
        rules[finding.rule] += 1
    assert rules["remote-access-error"] == 4  # wrong key twice, bounds, permission
    assert rules["invalid-request"] == 4
    assert rules["remote-operational-error"] == 1
    assert {"rnr", "cm-rejected", "cm-unanswered", "mtu-mismatch"} <= set(rules)
    assert {"retry-exceeded", "peer-silent"} & set(rules)
