"""Snapshots of counters are read from a journal as they were written, and are no account of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit.journal import JournalWriter, read_journal
from rocekit.journal.counters import counting, fields_of, only_counters, snapshots_in, write_snapshots
from rocekit.machine import counters as machine
from rocekit.machine.counters import CounterPlace, CounterReader, CounterSnapshot, RunningCapture

PLACE = CounterPlace("rxe0", 1, "rxe", "eth1", ("10.9.0.1", "fd00:9::1"))
SNAPSHOT = CounterSnapshot(
    "a",
    PLACE,
    5_000,
    300,
    {"hw_counters": {"sent_pkts": 7, "rcvd_pkts": 0}, "tc": {"egress netem 8001: drops": 2}},
    ("ethtool: the program ethtool is not installed",),
    "eth1",
    "x.pcapng",
)
BARE = CounterSnapshot("a", CounterPlace(None, None, None, "eth2"), 6_000, 0, {"link": {"rx_bytes": 1}})


@pytest.mark.parametrize("name", ["x.journal.jsonl", "x.journal.jsonl.gz"])
def test_what_is_written_is_read_back_and_appended_to(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with JournalWriter(path, host="a") as writer:
        write_snapshots(writer, [SNAPSHOT])
    with JournalWriter(path, host="a", append=True) as writer:
        write_snapshots(writer, [BARE])
    journal = read_journal(path)
    assert journal.problems == []
    assert snapshots_in(journal) == [SNAPSHOT, BARE]
    assert only_counters(journal)


def test_a_journal_of_a_program_has_more_than_counters(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "x", host="a") as writer:
        write_snapshots(writer, [SNAPSHOT])
        writer.write("recording", time_ns=1, state="started")
    assert not only_counters(read_journal(tmp_path / "x"))
    assert not only_counters(None)


def test_negative_counts_and_counts_that_are_no_numbers_are_no_event(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "x", host="a") as writer, pytest.raises(ValueError, match="hw_counters"):
        writer.write("counters", time_ns=1, **{**fields_of(SNAPSHOT), "hw_counters": {"sent_pkts": -1}})


def rxe(folder: Path) -> CounterReader:
    counted = folder / "rdma/rxe0/ports/1/hw_counters"
    (folder / "rdma/rxe0/ports/1/gids").mkdir(parents=True)
    counted.mkdir()
    (counted / "sent_pkts").write_text("3\n")
    return CounterReader(folder / "rdma", folder / "net", programs=False)


def test_counting_writes_before_and_after_even_if_the_program_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = rxe(tmp_path)
    monkeypatch.setattr("rocekit.journal.counters.CounterReader", lambda programs: reader)
    with JournalWriter(tmp_path / "x") as writer, pytest.raises(KeyError), counting(writer, "rxe0"):
        raise KeyError
    first, last = snapshots_in(read_journal(tmp_path / "x"))
    assert first.place == last.place
    assert first.counts == {"hw_counters": {"sent_pkts": 3}}


def test_counting_an_unknown_device_or_without_a_journal_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SYSFS_RDMA", tmp_path / "none")
    with JournalWriter(tmp_path / "x") as writer, counting(writer, "soft@10.9.0.1"):
        pass
    assert (tmp_path / "x").read_text() == ""
    with counting(None, "rxe0"):
        pass


def test_a_running_capture_is_named(tmp_path: Path) -> None:
    reader = rxe(tmp_path)
    (place,) = reader.places()
    named = reader.snapshot(place, RunningCapture("eth1", "x.pcap"))
    assert (named.captured_on, named.captured_to) == ("eth1", "x.pcap")
