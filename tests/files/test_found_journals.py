"""A journal that is found beside a capture is an input: no command writes over it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from places import PCAPS

from rocekit.cli import rocekit


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture with one journal of its name, and one of a host."""
    path = tmp_path / "x.pcap"
    shutil.copy(PCAPS / "cq-ex-soft.pcapng", path)
    for name in ("x.journal.jsonl", "x.client.journal.jsonl"):
        shutil.copy(PCAPS / "cq-ex-soft.journal.jsonl", tmp_path / name)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["slice", "x.pcap", "x.pcapng", "--connection", "0"],  # writes x.journal.jsonl too
        ["slice", "x.pcap", "x.client.journal.jsonl", "--connection", "0"],
        ["report", "x.pcap", "-o", "x.client.journal.jsonl"],
        ["plot", "x.pcap", "-o", "x.journal.jsonl"],
        ["annotate", "x.pcap", "x.client.journal.jsonl"],
    ],
)
def test_a_found_journal_is_no_output(
    capture: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(capture.parent)
    before = {path: path.read_bytes() for path in capture.parent.iterdir()}
    result = CliRunner().invoke(rocekit, words)
    assert result.exit_code != 0
    assert "journal.jsonl: " in result.output
    assert {path: path.read_bytes() for path in capture.parent.iterdir()} == before
