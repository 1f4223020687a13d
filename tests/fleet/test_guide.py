"""The guide's ten questions are answered, its tables are those in the files, and sources are watched."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
import yaml
from click.testing import CliRunner
from fleet_lake import FLEET
from places import PCAPS, ROOT

from rocekit.cli import rocekit as cli
from rocekit.fleet.lake import Lake
from rocekit.fleet.query import ask, connect
from rocekit.fleet.schema import TABLES
from rocekit.fleet.watching import Watcher

GUIDE = (ROOT / "docs" / "guide" / "fleet.md").read_text()
QUESTIONS = re.findall(r"^(\d+)\. ([^\n]*\?)\n\n    ```sql\n(.*?)    ```", GUIDE, re.MULTILINE | re.DOTALL)


def test_there_are_ten_questions() -> None:
    assert [int(number) for number, _, _ in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize(("number", "sql"), [(int(n), sql) for n, _, sql in QUESTIONS])
def test_a_question_of_the_guide_is_answered(number: int, sql: str, lake: Path) -> None:
    answer = ask(connect(Lake(lake)), sql)
    assert answer.rows
    faulty = FLEET.addresses[7]
    if number == 1:
        assert [row[:2] for row in answer.rows] == [(faulty, "to")]
    elif number in (2, 6):
        assert {row[1] for row in answer.rows} == {faulty}
    elif number == 3:
        result = CliRunner().invoke(cli, answer.rows[0][-1].split()[1:])
        assert result.exit_code == 0
        assert "did not arrive" in result.output
    elif number == 8:
        assert answer.rows[0][0] == "broken"


def test_files_of_a_lake_have_the_columns_and_types_of_the_guide(lake: Path) -> None:
    seen = set()
    for path in lake.rglob("*.parquet"):
        found = {name: str(kind) for name, kind in pl.read_parquet_schema(path).items()}
        assert found == {name: kind for name, (kind, _) in TABLES[path.stem].items()}, path
        seen.add(path.stem)
        for name, (kind, meaning) in TABLES[path.stem].items():
            assert f"| `{name}` | {kind} | {meaning} |" in GUIDE
    # Of these the fleet has nothing: generated traffic has no CM messages, and no journals.
    assert seen == set(TABLES) - {"cm", "counters", "links"} | ({"links"} & seen)


def test_the_compose_file_starts_a_scheduler_and_workers_of_dask() -> None:
    services = yaml.safe_load((ROOT / "contrib" / "fleet-compose.yaml").read_text())["services"]
    assert services["scheduler"]["command"].startswith("dask scheduler ")
    assert services["worker"]["command"].startswith("dask worker tcp://scheduler:8786 ")
    assert all(port.startswith("127.0.0.1:") for port in services["scheduler"]["ports"])


def test_what_is_new_or_has_grown_is_due_once_it_rests(tmp_path: Path) -> None:
    watcher = Watcher([str(tmp_path)])
    assert watcher.due() == []
    one = tmp_path / "x.pcap"
    data = (PCAPS / "rping-clean.pcap").read_bytes()
    one.write_bytes(data[:500])
    assert watcher.due() == []  # it may still be written to
    assert [s.point for s in watcher.due()] == ["x"]
    assert watcher.due() == []
    one.write_bytes(data)
    assert watcher.due() == []
    assert [s.point for s in watcher.due()] == ["x"]
    shutil.copy(PCAPS / "rping-clean.pcap", tmp_path / "x.pcap1")  # the rotation goes on
    assert watcher.due() == []
    assert [len(s.files) for s in watcher.due()] == [2]
