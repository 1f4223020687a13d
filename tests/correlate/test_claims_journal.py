"""What a journal may change: only what is of the capture. Another changes nothing, and the report says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from places import PCAPS

import rocekit
from rocekit.cli import rocekit as command
from rocekit.report.text import summary

Line = dict[str, Any]
HOUR_NS = 3600 * 10**9
CAPTURE = PCAPS / "blast-sr-loss.pcap"
JOURNALS = [PCAPS / f"blast-sr-loss.{end}.journal.jsonl" for end in ("client", "server")]


def changed(folder: Path, change: Callable[[Line], None]) -> list[Path]:
    """The journals with every line changed."""
    made = []
    for journal in JOURNALS:
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        for line in lines:
            change(line)
        made.append(folder / journal.name)
        made[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made


def later(line: Line, hours: float = 3) -> None:
    line["time_ns"] += int(hours * HOUR_NS)


def other_psns(line: Line) -> None:
    for name in ("sq_psn", "rq_psn", "psn"):
        if name in line:
            line[name] = (line[name] + (5 << 20)) & 0xFFFFFF


def other_ports(line: Line) -> None:
    for name in ("local_port", "remote_port"):
        if name in line:
            line[name] += 1
    line.pop("private_data", None)


def other_qpns(line: Line) -> None:
    if "qp" in line:
        line["qp"]["qpn"] += 500
    if "dest_qpn" in line:
        line["dest_qpn"] += 500
    other_ports(line)


def other_hosts(line: Line) -> None:
    text = (
        json.dumps(line).replace("10.9.0.", "10.77.3.").replace("0a09:00", "0a4d:03").replace("a09:", "a4d:")
    )
    line.clear()
    line.update(json.loads(text))


def other_run(line: Line) -> None:
    """The same programs on the same QPNs, three hours later, with other timeouts."""
    later(line)
    other_psns(line)
    other_ports(line)
    if "timeout" in line:
        line["timeout"] = 20


def findings(*journals: Path) -> list[Any]:
    return [f.to_dict() for f in rocekit.analyze(CAPTURE, journals=journals).findings]


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (other_run, "starts 3.0 h after the capture ends"),
        (other_qpns, "no QP of it is in the capture"),
        (other_hosts, "which has no packets of its host"),
    ],
)
def test_a_journal_that_matches_nothing_changes_no_finding_and_says_why(
    tmp_path: Path, change: Callable[[Line], None], because: str
) -> None:
    journals = changed(tmp_path, change)
    assert findings(*journals) == findings()
    analysis = rocekit.analyze(CAPTURE, journals=journals)
    assert analysis.journal is not None
    assert analysis.journal.nothing_because is not None
    assert because in analysis.journal.nothing_because
    assert [c.paired_by for c in analysis.connections] == [
        c.paired_by for c in rocekit.analyze(CAPTURE, journals=()).connections
    ]
    assert "Nothing of the journal is in this capture: " in summary(analysis)
    assert analysis.to_dict()["journal"]["nothing_because"] == analysis.journal.nothing_because


def test_a_journal_of_another_run_beside_the_right_one_changes_nothing(tmp_path: Path) -> None:
    others = changed(tmp_path, other_run)
    with_right = findings(*JOURNALS)
    assert findings(*JOURNALS, *others) == with_right


def test_a_clock_that_is_three_hours_off_matches_by_its_psns(tmp_path: Path) -> None:
    analysis = rocekit.analyze(CAPTURE, journals=changed(tmp_path, later))
    assert analysis.journal is not None
    assert analysis.journal.nothing_because is None
    assert len(analysis.journal.carried) == len(analysis.journal.work_requests)


def test_the_right_journal_is_said_to_match() -> None:
    analysis = rocekit.analyze(CAPTURE, journals=JOURNALS)
    assert analysis.journal is not None
    assert analysis.journal.nothing_because is None
    assert analysis.journal.to_dict()["empty_files"] == []


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_journal_does_not_refuse_the_capture(tmp_path: Path, text: str, given: bool) -> None:
    capture = tmp_path / "x.pcap"
    shutil.copy(CAPTURE, capture)
    journal = tmp_path / ("other.jsonl" if given else "x.journal.jsonl")
    journal.write_text(text)
    arguments = ["analyze", str(capture), *(["--journal", str(journal)] if given else [])]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    assert "the journal is empty" in done.output
    assert rocekit.analyze(capture, journals=[journal]).to_dict()["findings"] == findings()


def test_an_empty_journal_beside_a_full_one_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.journal.jsonl"
    empty.touch()
    analysis = rocekit.analyze(CAPTURE, journals=[*JOURNALS, empty])
    assert f"{empty} is empty" in summary(analysis)
    assert [f.to_dict() for f in analysis.findings] == findings(*JOURNALS)


def test_a_journal_without_a_usable_line_is_an_error_after_the_capture_was_analysed(tmp_path: Path) -> None:
    journal = tmp_path / "x.journal.jsonl"
    journal.write_text("no journal\n")
    done = CliRunner().invoke(command, ["analyze", str(CAPTURE), "--journal", str(journal)])
    assert done.exit_code == 1
    assert "Connections" in done.output
    assert "no line is used" in done.output + (done.stderr or "")
