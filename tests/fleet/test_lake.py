"""What a LAKE has: a row for every capture, what analyze says of each, and nothing of what is gone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fleet_lake import FLEET, contents, made
from places import PCAPS

import rocekit
from rocekit.analysis import find_journals
from rocekit.cli import rocekit as cli
from rocekit.errors import RocekitError
from rocekit.files.capture_names import Rotation, rotation
from rocekit.fleet.lake import Lake, write_parquet
from rocekit.fleet.query import connect, dicts
from rocekit.fleet.schema import OF_ALL, OF_PAIRS, TABLES
from rocekit.fleet.stream_tables import LakeSettings
from rocekit.fleet.streams import Stream, find_streams
from rocekit.fleet.work import add_stream


def ask(lake: Path, sql: str) -> list[dict[str, Any]]:
    return dicts(connect(Lake(lake)), sql)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["fleet", *arguments])


def test_every_capture_is_a_row_and_one_that_cannot_be_read_has_its_error(lake: Path) -> None:
    rows = ask(lake, "SELECT point, error, roce_packets FROM captures ORDER BY point")
    assert len(rows) == FLEET.hosts + 1
    broken = [row for row in rows if row["error"]]
    assert [row["point"] for row in broken] == ["broken"]
    assert "not a capture" in broken[0]["error"]
    assert broken[0]["roce_packets"] is None


def test_findings_and_connections_are_those_of_analyze(tmp_path: Path) -> None:
    for name in ("ping-write-loss-behind", "ping-write-dead", "blast-sr-rnr", "rping-clean"):
        for path in PCAPS.glob(f"{name}.*"):
            shutil.copy(path, tmp_path)
    lake = made(tmp_path / "lake", tmp_path, settings=LakeSettings(transfers=None))
    for row in ask(lake, "SELECT * FROM captures"):
        one = rocekit.analyze(row["source"])
        where = f"WHERE capture = '{row['capture']}' ORDER BY"
        found = ask(lake, f"SELECT * FROM findings {where} finding")
        assert [(f["rule"], f["title"], json.loads(f["evidence"])) for f in found] == [
            (f.rule, f.title, json.loads(json.dumps(f.to_dict()["evidence"]))) for f in one.findings
        ]
        connections = ask(lake, f"SELECT * FROM connections {where} connection")
        assert [c["retransmitted_packets"] for c in connections] == [
            c.retransmitted_packets for c in one.connections
        ]
        assert [t["status"] for t in ask(lake, f"SELECT * FROM transfers {where} transfer")] == [
            t.status for t in one.transfers
        ]
        assert len(ask(lake, f"SELECT * FROM cm {where} frame")) == len(one.cm)
        (rates,) = ask(lake, f"SELECT sum(packets) AS n FROM rates WHERE capture = '{row['capture']}'")
        assert rates["n"] == row["roce_packets"] == one.capture.counts.roce_packets


def test_a_loss_is_on_the_way_from_the_requester_behind_the_capture_point(tmp_path: Path) -> None:
    lake = made(tmp_path / "lake", PCAPS / "ping-write-loss-behind.pcap")
    sql = "SELECT src, dst, place, sum(lost_packets) AS n FROM troubles WHERE rule = 'loss' GROUP BY ALL"
    rows = ask(lake, sql)
    assert rows == [{"src": "10.9.0.1", "dst": "10.9.0.2", "place": "behind", "n": 7}]


def test_all_troubled_transfers_are_kept_and_the_slowest_others(captures: Path, tmp_path: Path) -> None:
    lake = made(tmp_path / "lake", captures / "host0007.pcap", settings=LakeSettings(transfers=3))
    (row,) = ask(lake, "SELECT count(*) FILTER (troubled) AS bad, count(*) AS n FROM transfers")
    (whole,) = ask(lake, "SELECT transfers FROM captures")
    troubled = sum(not t.clean for t in rocekit.analyze(captures / "host0007.pcap").transfers)
    assert row["bad"] == troubled
    assert troubled < row["n"]
    assert whole["transfers"] > row["n"]


def test_a_capture_that_grew_replaces_its_rows(captures: Path, tmp_path: Path) -> None:
    own = tmp_path / "x.pcap"
    data = (captures / "host0000.pcap").read_bytes()
    own.write_bytes(data[: len(data) // 2])
    lake = made(tmp_path / "lake", own)
    (before,) = ask(lake, "SELECT frames, capture FROM captures")
    own.write_bytes(data)
    made(lake, own)
    (after,) = ask(lake, "SELECT frames, capture FROM captures")
    assert after["frames"] > before["frames"]
    assert after["capture"] != before["capture"]
    assert add_stream(str(lake), find_streams([own])[0], LakeSettings()).new is False


def test_nothing_is_cut_at_the_end_of_a_file_of_a_rotation(captures: Path, tmp_path: Path) -> None:
    if shutil.which("editcap") is None:
        pytest.skip("no editcap (apt-get install wireshark-common)")
    whole = captures / "host0007.pcap"
    parts = tmp_path / "parts"
    parts.mkdir()
    subprocess.run(
        ["editcap", "-F", "nsecpcap", "-c", "300", whole, parts / "host7.pcap"], check=True, timeout=240
    )
    assert len(list(parts.iterdir())) > 4
    (stream,) = find_streams([parts])
    assert (stream.point, stream.files) == ("host7", tuple(sorted(map(str, parts.iterdir()))))
    lake, other = made(tmp_path / "lake", parts), made(tmp_path / "other", whole)
    for table in ("connections", "findings", "troubles", "transfers", "rates"):
        wanted = f"SELECT * EXCLUDE (capture, point) FROM {table} ORDER BY ALL"
        assert ask(lake, wanted) == ask(other, wanted)
    # What a row names as its source is what every command takes, with the same frames.
    (row,) = ask(lake, "SELECT source FROM captures")
    (trouble,) = ask(lake, "SELECT frame, transfer FROM troubles ORDER BY frame DESC LIMIT 1")
    shown = CliRunner().invoke(cli, ["explain", row["source"], "--transfer", str(trouble["transfer"])])
    same = CliRunner().invoke(cli, ["explain", str(whole), "--transfer", str(trouble["transfer"])])
    assert shown.exit_code == same.exit_code == 0
    assert shown.output == same.output


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["x.pcap", "x.pcap1", "x.pcap2", "x.pcap10"], ["x.pcap", "x.pcap1", "x.pcap2", "x.pcap10"]),
        (
            ["e_00010_20261120000000.pcapng", "e_00002_20261120000900.pcapng"],
            ["e_00002_20261120000900.pcapng", "e_00010_20261120000000.pcapng"],
        ),
        (
            ["h-20261121-000000.pcap.gz", "h-20261120-235900.pcap"],
            ["h-20261120-235900.pcap", "h-20261121-000000.pcap.gz"],
        ),
    ],
)
def test_names_of_rotations_tell_their_order(names: list[str], order: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    (stream,) = find_streams([tmp_path])
    assert [Path(file).name for file in stream.files] == order


def test_numbered_hosts_are_no_rotation(tmp_path: Path) -> None:
    for name in ("host-1.pcap", "host-2.pcap", "rack1/host-1.pcap", "10.9.0.1.pcap", "10.9.0.2.pcap"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    points = {stream.point for stream in find_streams([tmp_path])}
    assert points == {"host-1", "host-2", "rack1/host-1", "10.9.0.1", "10.9.0.2"}


def test_a_pattern_names_the_points(tmp_path: Path) -> None:
    for name in ("a/h1.pcap", "b/h2.pcap"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert {s.point for s in find_streams([tmp_path], r"/(\w)/h\d")} == {"a", "b"}
    with pytest.raises(RocekitError, match="finds no name"):
        find_streams([tmp_path], "rack")
    with pytest.raises(RocekitError, match="no regular expression"):
        find_streams([tmp_path], "(")


def test_sources_are_folders_globs_files_and_lists(captures: Path, tmp_path: Path) -> None:
    names = tmp_path / "list.txt"
    names.write_text(f"# hosts\n{captures}/host0000.pcap\n\n{captures}/host000[12].pcap\n")
    assert [s.point for s in find_streams([f"@{names}"])] == ["host0000", "host0001", "host0002"]
    assert len(find_streams([captures])) == FLEET.hosts + 1
    for wrong in (str(captures / "none"), f"@{captures}/none", str(captures / "none*"), str(tmp_path)):
        with pytest.raises(RocekitError):
            find_streams([wrong])


def test_any_name_of_a_point_is_found_again(captures: Path, tmp_path: Path) -> None:
    point = "rack 1/täst=[x]*?%2F" + "y" * 300
    lake = tmp_path / "la[k]e"
    Lake(lake).make(LakeSettings())
    stream = Stream(point, (str(captures / "host0000.pcap"),))
    assert add_stream(str(lake), stream, LakeSettings()).new
    assert not add_stream(str(lake), stream, LakeSettings()).new
    short = Stream("rack 1/täst=[x]*?%2F", stream.files)
    assert add_stream(str(lake), short, LakeSettings()).new
    assert {short.point} < {row["point"] for row in ask(lake, "SELECT point FROM captures")}


def test_a_lake_is_not_added_to_with_other_settings(lake: Path, tmp_path: Path) -> None:
    with pytest.raises(RocekitError, match="other settings"):
        Lake(lake).make(LakeSettings(transfers=7))
    (tmp_path / "x").write_text("")
    with pytest.raises(RocekitError, match="no LAKE"):
        Lake(tmp_path).make(LakeSettings())
    for command in (["query", str(tmp_path)], ["query", str(tmp_path / "none"), "SELECT 1"]):
        result = run(*command)
        assert result.exit_code == 1
        assert result.output.startswith("rocekit: error: ")


def test_every_table_has_the_columns_that_its_schema_says(lake: Path) -> None:
    connection = connect(Lake(lake))
    for table, columns in TABLES.items():
        names = [row["column_name"] for row in dicts(connection, f"DESCRIBE {table}")]
        assert names == ([] if table in (*OF_PAIRS, *OF_ALL) else ["day", "point"]) + list(columns)


def test_query_prints_text_json_and_csv_and_one_line_for_what_is_wrong(lake: Path) -> None:
    sql = "SELECT count(*) AS n, min(point) AS p FROM captures"
    assert run("query", str(lake), sql).output == f" n  p\n{FLEET.hosts + 1}  broken\n"
    assert json.loads(run("query", str(lake), sql, "--format", "json").output) == [{"n": 13, "p": "broken"}]
    assert run("query", str(lake), sql, "--format", "csv").output == "n,p\n13,broken\n"
    formulas = "SELECT '=1+1' AS a, -1 AS b, '-x' AS c, 2.5 AS d"
    assert run("query", str(lake), formulas, "--format", "csv").output == "a,b,c,d\n'=1+1,-1,'-x,2.5\n"
    wrong = run("query", str(lake), "SELECT nothing FROM captures")
    assert (wrong.exit_code, wrong.output.count("\n")) == (1, 1)
    assert "lost_packets" in run("query", str(lake)).output


def test_a_full_disk_is_said_and_leaves_no_half_of_a_capture(
    captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from rocekit.fleet import lake as module

    def full(table: Any, path: Path) -> None:
        path.write_bytes(b"PAR1")
        if path.name == "findings.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")

    lake = tmp_path / "lake"
    Lake(lake).make(LakeSettings())
    monkeypatch.setattr(module, "write_parquet", full)
    done = add_stream(str(lake), find_streams([captures / "host0000.pcap"])[0], LakeSettings())
    assert done.full == "No space left on device"
    assert sorted(p.name for p in lake.rglob("*") if p.is_file()) == ["manifest.json"]
    assert set(contents(lake)) == {"manifest.json"}


def test_a_worker_of_a_killed_run_leaves_no_capture_with_half_of_its_tables(
    captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run removes what is half made while a worker still makes it."""
    lake = Lake(tmp_path / "lake")
    lake.make(LakeSettings())
    (stream,) = find_streams([captures / "host0006.pcap"])

    def slow_removal(folder: Path, ignore_errors: bool = False) -> None:
        for path in folder.rglob("*.parquet"):  # the folder itself would go last
            path.unlink()

    def write_last(table: Any, path: Path) -> None:
        if path.name == "transfers.parquet":
            with monkeypatch.context() as patched:
                patched.setattr("rocekit.fleet.lake.shutil.rmtree", slow_removal)
                with Lake(lake.folder).alone():
                    pass
        write_parquet(table, path)

    monkeypatch.setattr("rocekit.fleet.lake.write_parquet", write_last)
    done = add_stream(str(lake.folder), stream, LakeSettings())
    assert done.full == "No such file or directory"
    assert not list(lake.folder.glob("day=*/point=*/*"))


def test_the_cost_of_a_capture_does_not_grow_with_the_captures_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Journals are looked for by name, and only names of journals are taken apart."""
    taken_apart: list[str] = []

    def noted(name: str) -> Rotation:
        taken_apart.append(name)
        return rotation(name)

    monkeypatch.setattr("rocekit.analysis.rotation", noted)
    for number in range(40):
        (tmp_path / f"host{number}.pcap").touch()
    (tmp_path / "host7.program.journal.jsonl").touch()
    assert find_journals(tmp_path / "host7.pcap") == [tmp_path / "host7.program.journal.jsonl"]
    assert find_journals(tmp_path / "host8.pcap") == []
    assert taken_apart == ["host7.program.journal.jsonl"]
