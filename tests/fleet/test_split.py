"""A very large capture is split by pairs of hosts, and its rows are those of the whole."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fleet_lake import FLEET, made
from mixed_capture import ONE_WAY, SOURCES, mixed
from places import PCAPS

from rocekit.cli import rocekit as cli
from rocekit.fleet.lake import Lake
from rocekit.fleet.page import document
from rocekit.fleet.query import connect, dicts
from rocekit.fleet.stream_tables import LakeSettings
from rocekit.fleet.streams import find_streams
from rocekit.fleet.work import MOST_PARTS, add_stream

#: Numbers that count within a capture, and so within each part.
NUMBERS = ("capture", "connection", "transfer", "finding")


def split_into(parts: int, capture: Path) -> LakeSettings:
    return LakeSettings(None, True, -(-capture.stat().st_size // parts))


def ask(lake: Path, sql: str) -> list[dict[str, Any]]:
    return dicts(connect(Lake(lake)), sql)


def rows_of(lake: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table without numbers that count within a capture."""
    names = ask(lake, f"DESCRIBE {table}")
    gone = [own for own in NUMBERS if own in {row["column_name"] for row in names}]
    columns = f"* EXCLUDE ({', '.join(gone)})" if gone else "*"
    return ask(lake, f"SELECT {columns} FROM {table} ORDER BY ALL")


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed(tmp_path_factory.mktemp("split") / "mixed.pcap")


@pytest.fixture(scope="module")
def split(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("split") / "lake", capture, settings=split_into(3, capture))


def test_rows_of_the_parts_are_those_of_the_whole(split: Path, capture: Path, tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", capture, settings=LakeSettings(None))
    for table in ("connections", "transfers", "troubles", "rates", "cm", "ways", "links", "hosts"):
        if table in ("cm", "transfers", "troubles", "connections"):
            assert len(ask(whole, f"SELECT capture FROM {table}")) > 3
        assert _told(rows_of(split, table)) == _told(rows_of(whole, table)), table
    sums = "SELECT sum(frames), sum(bytes), sum(roce_packets), sum(connections), sum(transfers) FROM captures"
    assert ask(split, sums) == ask(whole, sums)
    assert [row["part"] for row in ask(split, "SELECT part FROM captures ORDER BY part")] == [
        "1/3",
        "2/3",
        "3/3",
    ]
    assert document(Lake(split))["total"]["captures"] == 1


def _told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a part cannot know: the connection's number in the whole capture (CM messages have it
    among their fields), and that the capture has both directions of other hosts, so that a host of which
    nothing is seen is silent.
    """
    return [
        {name: value for name, value in row.items() if name != "fields"}
        for row in rows
        if row.get("requester_ip", row.get("src")) != SOURCES[ONE_WAY][0]
    ]


def test_the_command_of_a_part_shows_its_transfer(split: Path) -> None:
    sql = "SELECT source, t.transfer, t.frame, t.src FROM troubles t JOIN captures c USING (capture)"
    both = f"transfer IS NOT NULL AND requester_ip <> '{SOURCES[ONE_WAY][0]}'"
    rows = ask(split, f"{sql} WHERE {both} ORDER BY time_ns LIMIT 3")
    assert rows
    for row in rows:
        command = ["explain", row["source"], "--transfer", str(row["transfer"]), "--format", "json"]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        assert row["src"] in result.output
        assert str(row["frame"]) in result.output
    for row in document(Lake(split))["first"][:2]:
        assert CliRunner().invoke(cli, shlex.split(row["command"])[1:]).exit_code == 0


def test_a_part_that_is_there_is_not_analyzed_again_and_others_are_forgotten(
    capture: Path, split: Path, tmp_path: Path
) -> None:
    lake = shutil.copytree(split, tmp_path / "lake")
    settings = split_into(3, capture)
    (stream,) = find_streams([capture])
    done = add_stream(str(lake), stream, settings)
    assert (done.new, done.parts, len(done.captures)) == (False, (), 3)
    gone = next(lake.glob("day=*/point=*/*"))
    shutil.rmtree(gone)
    done = add_stream(str(lake), stream, settings)
    assert [gone.name.endswith(own.capture) for _, own in done.parts] == [True]
    own = Path(shutil.copy(capture, tmp_path / "own.pcap"))
    other = made(tmp_path / "other", own, settings=settings)
    mixed(own, ("rping-clean",))  # now it is small, and whole
    made(other, own, settings=settings)
    assert [row["part"] for row in ask(other, "SELECT part FROM captures")] == [None]


def test_only_a_large_capture_without_journals_is_split(capture: Path, tmp_path: Path) -> None:
    for name in ("x.pcap", "y.pcap"):
        shutil.copy(capture, tmp_path / name)
    shutil.copy(PCAPS / "ping-write-loss-behind.client.journal.jsonl", tmp_path / "y.journal.jsonl")
    lake = str(tmp_path / "lake")
    for size, parts in ((capture.stat().st_size, 0), (capture.stat().st_size - 1, 2), (1, MOST_PARTS)):
        settings = LakeSettings(split_bytes=size)
        Lake(f"{lake}{size}").make(settings)
        one, other = find_streams([tmp_path])
        assert len(add_stream(f"{lake}{size}", one, settings).parts) == parts
        assert add_stream(f"{lake}{size}", other, settings).parts == ()


def test_parts_of_a_fleet_find_their_witnesses(captures: Path, lake: Path, tmp_path: Path) -> None:
    """Captures of other points are matched with the part that has the same two hosts."""
    sources = [captures / f"host{number:04}.pcap" for number in (6, 7, 9)]
    own = made(tmp_path / "lake", *sources, settings=LakeSettings(split_bytes=sources[1].stat().st_size // 2))
    assert ask(own, "SELECT count(part) > 5 AS split FROM captures") == [{"split": True}]
    missing = "SELECT src, dst, first_point, second_point, packets, missing FROM paths"
    ends = "(first_point IN ('host0006', 'host0009') OR second_point IN ('host0006', 'host0009'))"
    found = ask(own, f"{missing} ORDER BY ALL")
    assert found == ask(lake, f"{missing} WHERE {ends} ORDER BY ALL")
    assert {FLEET.addresses[7]} == {row["dst"] for row in found if row["missing"]}
