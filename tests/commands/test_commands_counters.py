"""`rocekit counters` prints snapshots and differences, and keeps them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rocekit.cli import rocekit
from rocekit.journal import read_journal
from rocekit.journal.counters import snapshots_in
from rocekit.machine.counters import CounterReader


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the counters of a machine with one rxe device."""
    folder = tmp_path / "rdma/rxe0/ports/1/hw_counters"
    folder.mkdir(parents=True)
    (tmp_path / "rdma/rxe0/ports/1/gids").mkdir()
    (tmp_path / "rdma/rxe0/parent").write_text("eth1\n")
    (tmp_path / "net/eth1/statistics").mkdir(parents=True)
    (tmp_path / "net/eth1/statistics/rx_bytes").write_text("9\n")
    (folder / "out_of_seq_request").write_text("1200\n")
    (folder / "sent_pkts").write_text("0\n")
    reader = CounterReader(tmp_path / "rdma", tmp_path / "net", programs=False)
    monkeypatch.setattr("rocekit.machine.counters.CounterReader", lambda: reader)
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(rocekit, ["counters", *words])


def test_a_table_has_what_is_not_zero_and_its_meaning(counted: Path) -> None:
    shown = run("rxe0")
    assert shown.exit_code == 0, shown.output
    head, *lines = shown.stdout.splitlines()
    assert head.startswith("rxe0 (eth1) on ")
    assert lines == [
        "  hw_counters  out_of_seq_request  1,200  gaps in received requests, each answered with one NAK",
        "  link         rx_bytes                9",
    ]
    assert "sent_pkts" in run("eth1", "--all").stdout


def test_json_has_the_event_s_keys(counted: Path) -> None:
    document = json.loads(run("--format", "json").stdout)
    assert document["schema"] == "rocekit/1"
    (snapshot,) = document["snapshots"]
    assert snapshot["hw_counters"] == {"out_of_seq_request": 1200, "sent_pkts": 0}
    assert document["differences"] == []


def test_snapshots_are_appended_and_compared(counted: Path, tmp_path: Path) -> None:
    journal = str(tmp_path / "x.journal.jsonl")
    assert run("rxe0", "-o", journal, "--capture", "captures/x.pcap").exit_code == 0
    (counted / "out_of_seq_request").write_text("1203\n")
    since = run("rxe0", "--since", journal)
    assert since.exit_code == 0, since.output
    (line,) = since.stdout.splitlines()[1:]
    assert line.split()[:3] == ["hw_counters", "out_of_seq_request", "3"]
    assert run("rxe0", "-o", journal).exit_code == 0
    first, last = snapshots_in(read_journal(journal))
    assert (first.captured_on, first.captured_to) == ("eth1", "x.pcap")
    assert (last.captured_on, last.captured_to) == (None, None)
    document = json.loads(run(journal, "--format", "json").stdout)
    (difference,) = document["differences"]
    assert difference["went_up_by"]["hw_counters"] == {"out_of_seq_request": 3, "sent_pkts": 0}
    assert document["snapshots"] == []


def test_for_some_seconds_takes_both_snapshots(counted: Path, tmp_path: Path) -> None:
    journal = tmp_path / "x.journal.jsonl"
    shown = run("rxe0", "--for", "0.01", "-o", str(journal))
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[1:] == ["  none changed"]
    assert len(snapshots_in(read_journal(journal))) == 2


def test_an_unknown_name_is_one_line_with_those_there_are(counted: Path) -> None:
    refused = run("mlx5_0")
    assert refused.exit_code == 1
    assert refused.stderr.strip() == (
        "rocekit: error: no device or interface 'mlx5_0'; RDMA devices: rxe0; interfaces: eth1"
    )


def test_a_journal_without_snapshots_is_refused(counted: Path, tmp_path: Path) -> None:
    journal = tmp_path / "x.journal.jsonl"
    journal.write_text('{"time_ns":1,"host":"a","pid":1,"event":"recording","state":"started"}\n')
    refused = run("rxe0", "--since", str(journal))
    assert refused.exit_code == 1
    assert "no snapshots of counters" in refused.stderr


def test_one_snapshot_has_no_difference(counted: Path, tmp_path: Path) -> None:
    journal = str(tmp_path / "x.journal.jsonl")
    run("rxe0", "-o", journal)
    refused = run(journal)
    assert refused.exit_code == 1
    assert "no two snapshots of the same device or interface" in refused.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("x.journal.jsonl", "rxe0"),
        ("x.journal.jsonl", "--for", "1"),
        ("rxe0", "--for", "1", "--since", "x.journal.jsonl"),
        ("rxe0", "-o", "-"),
        ("rxe0", "--for", "0"),
    ],
)
def test_words_that_contradict_each_other_are_a_wrong_command_line(
    counted: Path, words: tuple[str, ...]
) -> None:
    assert run(*words).exit_code == 2
