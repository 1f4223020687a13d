"""Claims about journals in several files: bounded on disk, each whole by itself, together as one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rocekit
from rocekit.analysis import find_journals
from rocekit.cli import rocekit as command
from rocekit.journal import Journal, JournalWriter, merge, read_journal
from rocekit.journal.rotating import FileLimits, RotatingJournal
from rocekit.journal.work_requests import read_programs

QP = ("rxe0", 17)
COUNT = 600


def events() -> list[tuple[str, dict[str, Any]]]:
    """A program that sets up a QP, posts and polls, and makes and destroys another in between."""
    lines: list[tuple[str, dict[str, Any]]] = [
        ("recording", {"state": "began", "program": "x"}),
        ("device_opened", {"device": "rxe0", "gids": ["10.9.0.1"]}),
        ("mr_registered", {"device": "rxe0", "addr": 4096, "length": 10, "lkey": 5, "rkey": 5}),
        ("mr_registered", {"device": "rxe0", "addr": 8192, "length": 10, "lkey": 6, "rkey": 6}),
        ("qp_created", {"qp": QP, "transport": "RC"}),
        ("qp_modified", {"qp": QP, "state": "INIT"}),
        ("qp_modified", {"qp": QP, "state": "RTR", "dest_qpn": 18, "path_mtu": 1024}),
        ("qp_modified", {"qp": QP, "state": "RTS", "sq_psn": 100}),
        ("mr_deregistered", {"device": "rxe0", "lkey": 6, "rkey": 6}),
        ("qp_created", {"qp": ("rxe0", 19), "transport": "RC"}),
        ("qp_destroyed", {"qp": ("rxe0", 19)}),
    ]
    for n in range(COUNT):
        send = {"qp": QP, "wr_id": n, "opcode": "SEND", "length": 8, "signaled": True, "psn": 100 + n}
        lines.append(("wr_posted", send))
        lines.append(("wc_polled", {"qp": QP, "wr_id": n, "status": "SUCCESS", "opcode": "SEND"}))
    return lines


def written(writer: JournalWriter | RotatingJournal) -> None:
    with writer:
        for at, (event, fields) in enumerate(events()):
            writer.write(event, time_ns=1_000_000 + at, pid=7, **fields)


def rotated(folder: Path, limits: FileLimits) -> RotatingJournal:
    journal = RotatingJournal(folder / "x.journal.jsonl", limits, host="a")
    written(journal)
    return journal


def plain(journal: Journal) -> list[dict[str, Any]]:
    return [event.to_dict() for event in journal if event.event != "file_began"]


def test_the_files_together_are_the_journal_in_one_file(tmp_path: Path) -> None:
    written(JournalWriter(tmp_path / "one.jsonl", host="a"))
    files = rotated(tmp_path, FileLimits(size_bytes=20_000)).files
    assert len(files) > 5
    together = read_journal(f"rotated:{files[0]}..{files[-1].name}")
    assert plain(together) == plain(read_journal(tmp_path / "one.jsonl"))
    one_by_one = merge([read_journal(file) for file in files])
    assert plain(one_by_one) == plain(together)
    programs = read_programs(together)
    assert programs.files_missing == []
    assert [len(qp.sends) for qp in programs.qps] == [COUNT, 0]
    assert programs.qps[0].lossy_ns is None


@pytest.mark.parametrize("limits", [FileLimits(20_000, None, 3), FileLimits(None, None, None, 60_000)])
def test_all_files_are_never_larger_than_what_is_to_be_kept(tmp_path: Path, limits: FileLimits) -> None:
    most = 0
    journal = RotatingJournal(tmp_path / "x.journal.jsonl", limits, host="a")
    with journal:
        for at, (event, fields) in enumerate(events()):
            journal.write(event, time_ns=1_000_000 + at, pid=7, **fields)
            journal.flush()
            most = max(most, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert most <= 60_000
    assert most > 40_000, "the room is used"
    assert sorted(tmp_path.iterdir()) == journal.files
    assert journal.removed > 0
    assert plain(read_journal(journal.files[-1]))[-1]["wr_id"] == COUNT - 1, "the newest stay"


def test_the_last_file_alone_has_what_is_set_up_and_says_that_others_are_missing(tmp_path: Path) -> None:
    last = rotated(tmp_path, FileLimits(20_000, None, 1)).files[-1]
    programs = read_programs(read_journal(last))
    (qp,) = programs.qps
    assert (qp.transport, qp.addresses) == ("RC", ("10.9.0.1",))
    wanted = {"state": "RTS", "dest_qpn": 18, "path_mtu": 1024, "sq_psn": 100}
    assert {key: qp.attributes.get(key) for key in wanted} == wanted
    assert [event["lkey"] for event in programs.regions] == [5]
    # What it posted before is not here, so its PSNs are those that the recorder wrote, and no others.
    assert qp.lossy_ns is not None
    assert qp.sends[0].recorded_psn == 100 + qp.sends[0].wr_id
    (words,) = programs.files_missing
    assert str(words).startswith("the journal of a begins with file ")


def test_a_file_that_was_taken_out_is_named(tmp_path: Path) -> None:
    files = rotated(tmp_path, FileLimits(size_bytes=20_000)).files
    files[2].unlink()
    programs = read_programs(read_journal(f"rotated:{files[0]}..{files[-1].name}"))
    (words,) = programs.files_missing
    assert str(words) == "the journal of a has not all files of its recording: 3 missing"
    (qp,) = [qp for qp in programs.qps if qp.qpn == 17]
    assert qp.lossy_ns is not None
    assert 0 < len(qp.sends) < COUNT
    assert len(programs.regions) == 2, "each once, though two files have it"


def test_a_new_file_begins_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 1_000_000)
    monkeypatch.setattr("time.monotonic_ns", lambda: next(clock))
    files = rotated(tmp_path, FileLimits(period_ns=300_000_000)).files
    assert 3 <= len(files) <= 6
    assert len(plain(read_journal(f"rotated:{files[0]}..{files[-1].name}"))) == len(events())


def test_analyze_takes_rotated_journals_beside_a_capture_as_one(tmp_path: Path, pcaps: Path) -> None:
    (tmp_path / "x.pcap").write_bytes((pcaps / "blast-sr-loss.pcap").read_bytes())
    source = read_journal(pcaps / "blast-sr-loss.client.journal.jsonl")
    with RotatingJournal(tmp_path / "x.journal.jsonl", FileLimits(size_bytes=3_000)) as journal:
        journal.write_lines(json.dumps(event.to_dict(), separators=(",", ":")) for event in source)
    assert len(journal.files) > 3
    assert find_journals(tmp_path / "x.pcap") == journal.files
    (tmp_path / "y.pcap").write_bytes((pcaps / "blast-sr-loss.pcap").read_bytes())
    alone = rocekit.analyze(tmp_path / "y.pcap", journals=[pcaps / "blast-sr-loss.client.journal.jsonl"])
    together = rocekit.analyze(tmp_path / "x.pcap")
    assert together.journal is not None
    assert together.to_dict()["journal"] == alone.to_dict()["journal"]
    assert together.to_dict()["transfers"] == alone.to_dict()["transfers"]
    last = rocekit.analyze(tmp_path / "x.pcap", journals=journal.files[-1:])
    assert last.journal is not None
    assert any("begins with file" in line for line in last.journal.lacking)
    whole = {wr.wr_id: together.journal.transfer_of(wr) for wr in together.journal.work_requests}
    for wr in last.journal.work_requests:
        transfer = last.journal.transfer_of(wr)
        expected = whole[wr.wr_id]
        assert transfer is None or (expected is not None and transfer.id == expected.id), "no false match"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--keep", "3"], "--keep is for --rotate"),
        (["--rotate", "5m"], "5min for minutes, or 5M for MiB"),
        (["--rotate", "100"], "neither a size such as 100M nor a time"),
        (
            ["--rotate", "1M", "--keep", "no"],
            "neither a number of files such as 10 nor a size",
        ),
        (["--rotate", "1M", "--keep", "0"], "neither a number of files"),
    ],
)
def test_a_wrong_limit_is_refused(options: list[str], words: str) -> None:
    said = CliRunner().invoke(command, ["record", *options, "--", "true"])
    assert said.exit_code == 2
    assert words in " ".join(said.output.split())
