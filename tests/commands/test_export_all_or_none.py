"""``rocekit export`` writes all its tables, or leaves nothing behind: no folder either."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from click.testing import CliRunner
from places import PCAPS

from rocekit.cli import rocekit
from rocekit.report import export

pytest.importorskip("polars")
CAPTURE = str(PCAPS / "ping-write-loss-behind.pcap")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full at the second table."""
    begun = []
    start = export.start_table

    def start_one(*given: object) -> object:
        begun.append(given)
        if len(begun) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return start(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(export, "start_table", start_one)


def test_a_folder_that_was_made_for_the_tables_goes_with_them(full: None, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tables"
    done = CliRunner().invoke(rocekit, ["export", CAPTURE, "--to", "csv", "-o", str(out)])
    assert done.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_with_what_is_in_it(full: None, tmp_path: Path) -> None:
    (tmp_path / "transfers.csv").write_text("old")
    done = CliRunner().invoke(rocekit, ["export", CAPTURE, "--to", "csv", "-o", str(tmp_path)])
    assert done.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["transfers.csv"]
    assert (tmp_path / "transfers.csv").read_text() == "old"
