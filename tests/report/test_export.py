"""`rocekit export`: what polars, pandas and DuckDB read is what the analysis knows."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from places import PCAPS
from story import Story

import rocekit
from rocekit import cli, wire
from rocekit.correlate import timing
from rocekit.explanation.packets import CAUSES, ROLES, packet_stories
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.packets import COLUMNS

pl = pytest.importorskip("polars", reason="no polars (pip install 'rocekit[export]')")
duckdb = pytest.importorskip("duckdb", reason="no duckdb")
pd = pytest.importorskip("pandas", reason="no pandas")

from rocekit.report.export import FORMATS, TABLES, tables, write_table  # noqa: E402
from rocekit.report.tables import packet_table  # noqa: E402
from rocekit.report.tables.packet_table import packets_table  # noqa: E402

LOSS = """
a RC_SEND_ONLY 5 64
a RC_SEND_ONLY 6 65
a RC_SEND_ONLY 7 64
b NAK 6
a RC_SEND_ONLY 6 65
a RC_SEND_ONLY 7 64
b ACK 7
"""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli.rocekit, ["export", *map(str, args)])


def error(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1].removeprefix("rocekit: error: ").removeprefix("Error: ")


@pytest.fixture(
    scope="module",
    params=["blast-sr-corruption.pcap", "ping-read-response-loss.pcap", "rping-ipv6-clean.pcap"],
)
def analysis(request: pytest.FixtureRequest) -> rocekit.Analysis:
    return rocekit.analyze(PCAPS / request.param)


def test_transfers_and_connections_are_those_of_the_json(analysis: rocekit.Analysis) -> None:
    made = tables(analysis)
    for row, transfer in zip(made["transfers"].to_dicts(), analysis.transfers, strict=True):
        document = transfer.to_dict()
        for name in document.keys() & row.keys() - {"connection"}:
            assert row[name] == document[name], name
        assert row["requester_ip"] == transfer.requester["ip"]
        assert [row["first_frame"], row["last_frame"]] == document["frames"]
        assert row["wr_id"] == (None if transfer.wr is None else transfer.wr.wr_id)
        clocks = {} if analysis.journal is None else analysis.journal.clocks
        assert row["wire_ns"] == timing(transfer, clocks).wire_ns
        assert row["total_ns"] == timing(transfer, clocks).total_ns
    for row, connection in zip(made["connections"].to_dicts(), analysis.connections, strict=True):
        document = connection.to_dict()
        for name in document.keys() & row.keys():
            assert row[name] == document[name], name
        assert (row["a_ip"], row["b_qpn"]) == (connection.ips[0], connection.qpns[1])
    for row, finding in zip(made["findings"].to_dicts(), analysis.findings, strict=True):
        document = finding.to_dict()
        assert json.loads(row.pop("evidence")) == json.loads(json.dumps(document.pop("evidence")))
        row.pop("files")
        assert row == document


def test_packets_are_the_decoders_rows_with_their_stories(analysis: rocekit.Analysis) -> None:
    stories = packet_stories(analysis)
    table = tables(analysis, ["packets"])["packets"]
    renamed = {"payload_length": "payload_bytes", "dma_length": "dma_bytes"}
    for i, (row, packet) in enumerate(zip(table.to_dicts(), stories.packets.rows(), strict=True)):
        for name, value in packet.items():
            assert row[renamed.get(name, name)] == value, name
        assert row["role"] == ROLES[stories.role[i]]
        assert row["cause"] == (CAUSES[stories.cause[i]] or None)
        assert (row["round"] or 0) == stories.round[i]
        opcode = wire.OPCODE_NAMES[row["opcode"]]
        headers = {field.name for header in wire.OPCODES[opcode].headers for field in header.fields}
        for name in ("rkey", "syndrome", "immediate", "qkey", "original"):
            assert (row[name] is not None) == (name in headers)


def test_every_field_has_its_column_and_its_own_type(analysis: rocekit.Analysis) -> None:
    schema = tables(analysis, ["packets"])["packets"].schema
    missing = set(COLUMNS) - set(schema) - {"payload_length", "dma_length", "has", "flow"}
    assert not missing
    for name, bits in (("psn", 32), ("remote_va", 64), ("syndrome", 8), ("icrc", 32), ("dest_qpn", 32)):
        assert schema[name] == getattr(pl, f"UInt{bits}")
    assert schema["ackreq"] == pl.Boolean
    for table in tables(analysis).values():
        for name, dtype in table.schema.items():
            assert dtype not in (pl.Float64, pl.Null, pl.Object), name
            assert not name.endswith("_ns") or dtype == pl.Int64


@pytest.mark.parametrize(("vlan", "column"), [(None, None), (0, 0), (1, 1), (4094, 4094)])
def test_vlan_0_is_a_tag_and_no_vlan_is_null(vlan: int | None, column: int | None, tmp_path: Path) -> None:
    """A frame with VLAN 0 carries a priority and belongs to no VLAN (IEEE 802.1Q, 6.9)."""
    story = Story(vlan=vlan) if vlan is not None else Story()
    story.lines("a RC_SEND_ONLY 5 64\nb ACK 5")
    packets = tables(story.analyze(tmp_path))["packets"]
    assert packets["vlan"].to_list() == [column, column]
    assert packets["priority"].to_list() == [None if vlan is None else 0] * 2


@pytest.mark.parametrize("name", ["blast-sr-loss.pcap", "failures-each.pcap", "ib_send_bw-rnr.pcap"])
def test_the_times_of_transfers_are_those_that_explain_splits_up(name: str) -> None:
    analysis = rocekit.analyze(PCAPS / name)
    clocks = {} if analysis.journal is None else analysis.journal.clocks
    names = ("software_ns", "sending_ns", "wire_ns", "recovery_ns", "completion_ns", "total_ns")
    expected = [tuple(getattr(timing(t, clocks), name) for name in names) for t in analysis.transfers]
    assert tables(analysis, ["transfers"])["transfers"].select(names).rows() == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_holds_the_same(pcaps: Path, kind: str, tmp_path: Path) -> None:
    source = pcaps / "ping-write-loss.pcapng"
    result = run(source, "--to", kind, "-o", tmp_path / "made" / "here")
    assert result.exit_code == 0, result.stderr
    made = tables(rocekit.analyze(source))
    readers: dict[str, Any] = {
        "parquet": pl.read_parquet,
        "arrow": pl.read_ipc,
        "jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
        "csv": lambda path: pl.read_csv(path, infer_schema=False),
    }
    for name in TABLES:
        path = tmp_path / "made" / "here" / f"{name}{FORMATS[kind]}"
        assert f"{path}: " in result.stdout
        table = readers[kind](path)
        if kind == "csv":
            assert table.columns == made[name].columns
            assert table.height == made[name].height
            for column in table.columns:
                own = made[name][column]
                if not own.dtype.is_nested() and own.dtype != pl.Boolean:
                    assert table[column].to_list() == [None if v is None else str(v) for v in own.to_list()]
        else:
            assert (table if kind == "jsonl" else table.to_dicts()) == made[name].to_dicts()


def test_duckdb_and_pandas_read_the_parquet_with_its_types(pcaps: Path, tmp_path: Path) -> None:
    analysis = rocekit.analyze(pcaps / "ping-read-response-loss.pcap")
    assert run(pcaps / "ping-read-response-loss.pcap", "--to", "parquet", "-o", tmp_path).exit_code == 0
    slowest = sorted(analysis.transfers, key=lambda t: -timing(t).wire_ns)[:3]
    rows = duckdb.sql(
        f"select id, wire_ns, recovery_ns from '{tmp_path}/transfers.parquet' where operation = 'READ' "
        "order by wire_ns desc limit 3"
    ).fetchall()
    assert rows == [(t.id, timing(t).wire_ns, timing(t).recovery_ns) for t in slowest]
    kinds = dict(
        duckdb.sql(f"select column_name, column_type from (describe '{tmp_path}/packets.parquet')").fetchall()
    )
    assert (kinds["psn"], kinds["remote_va"], kinds["time_ns"]) == ("UINTEGER", "UBIGINT", "BIGINT")
    again = duckdb.sql(
        f"select sum((round > 1)::int) from '{tmp_path}/packets.parquet' where not duplicate"
    ).fetchall()
    assert again == [(sum(t.retransmitted_packets for t in analysis.transfers),)]
    frame = pd.read_parquet(tmp_path / "transfers.parquet")
    assert frame["id"].tolist() == [t.id for t in analysis.transfers]
    assert frame["first_ns"].dtype == "int64"


def test_the_whole_of_two_captures_names_the_file_of_each_frame(tmp_path: Path) -> None:
    first, second = (Story(LOSS).write(tmp_path / name) for name in ("one.pcapng", "two.pcapng"))
    made = tables(rocekit.analyze(first, second))
    assert made["packets"].height == 7
    assert set(made["packets"]["file"]) <= {0, 1}
    (finding,) = made["findings"].filter(rule="loss").to_dicts()
    assert len(finding["files"]) == len(finding["frames"])


def test_one_table_goes_to_standard_output(tmp_path: Path) -> None:
    source = Story(LOSS).write(tmp_path / "x.pcapng")

    def piped(kind: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-m", "rocekit.cli", "export", str(source),
             "--to", kind, "--table", "transfers", "-o", "-"],
            capture_output=True, check=True, timeout=120, cwd=tmp_path,
        ).stdout  # fmt: skip

    rows = list(csv.DictReader(io.StringIO(piped("csv").decode())))
    assert [row["bytes"] for row in rows] == ["64", "65", "64"]
    lines = [json.loads(line) for line in piped("jsonl").splitlines()]
    assert [line["naks"] for line in lines] == [0, 1, 0]
    assert pl.read_parquet(io.BytesIO(piped("parquet")))["id"].to_list() == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.pcapng"]


def test_text_of_others_is_no_formula_in_csv_and_numbers_stay_numbers(
    pcaps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = (pcaps / "ping-write-clean.pcap").read_bytes()
    Path("=1+1.pcap").write_bytes(whole[:-10])
    result = run("=1+1.pcap", "--to", "csv", "--table", "findings", "-o", "-")
    titles = [row["title"] for row in csv.DictReader(io.StringIO(result.stdout))]
    assert any(title.startswith("'=1+1.pcap is damaged") for title in titles)
    texts = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\uff1d1", "\t=1", "a=1", "10.0.0.1", None]
    table = pl.DataFrame({"text": texts, "delta_ns": [-1, 2, *[None] * 7], "ratio": [-0.5, *[None] * 8]})
    out = io.BytesIO()
    write_table(table, out, "csv", "x.csv")
    rows = list(csv.DictReader(io.StringIO(out.getvalue().decode())))
    assert [row["text"] for row in rows] == [
        *("'=cmd|' /C calc'!A0", "'+1", "'-1", "'@SUM(A1)", "'\uff1d1", "\\t=1", "a=1", "10.0.0.1", ""),
    ]
    assert (rows[0]["delta_ns"], rows[0]["ratio"]) == ("-1", "-0.5")


@pytest.mark.parametrize("kind", FORMATS)
def test_the_table_of_packets_is_the_same_in_pieces(
    pcaps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The last piece has one packet; causes name packets of other pieces."""
    stories = packet_stories(rocekit.analyze(pcaps / "blast-sr-corruption.pcap"))
    whole, out = packets_table(stories), tmp_path / f"x.{kind}"
    monkeypatch.setattr(packet_table, "_PIECE", (len(stories) - 1) // 3)
    pieces = packet_table.PacketPieces(stories)
    assert (pieces.height, pieces.width) == whole.shape
    assert len(list(pieces)) in (4, 5)
    with out.open("wb") as file:
        write_table(pieces, file, kind, out)
    with (tmp_path / "whole").open("wb") as file:
        write_table(whole, file, kind, "whole")
    if kind in ("csv", "jsonl"):
        assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    else:
        read = pl.read_parquet if kind == "parquet" else pl.read_ipc
        assert read(out).schema == read(tmp_path / "whole").schema
        assert read(out).equals(whole)


def test_without_a_folder_named_they_stand_beside_in_one_named_like_the_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Story(LOSS).write(tmp_path / "x.pcapng")
    monkeypatch.chdir(tmp_path)
    assert run("x.pcapng", "--to", "csv", "--table", "findings").exit_code == 0
    assert (tmp_path / "x-tables" / "findings.csv").is_file()


def test_wrong_use_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Story(LOSS).write(tmp_path / "x.pcapng")
    assert "takes one table" in error(run(source, "--to", "csv", "-o", "-"), 2)
    assert "twice, not possible with standard input" in error(run("-", "--to", "csv", "-o", tmp_path))
    assert "this is a file; -o names a folder" in error(run(source, "--to", "csv", "-o", source))
    assert "Not a directory" in error(run(source, "--to", "csv", "-o", source / "x"))
    assert "No RoCE v2 packets: nothing to export." in error(
        run(_empty(tmp_path), "--to", "csv", "-o", tmp_path / "t")
    )
    assert "there is no such file" in error(run(tmp_path / "none", "--to", "csv", "-o", tmp_path / "t"))
    assert not (tmp_path / "t").exists()
    monkeypatch.setitem(sys.modules, "polars", None)
    message = error(run(source, "--to", "csv", "-o", tmp_path / "t"))
    assert message == f"export needs polars: {sys.executable} -m pip install 'rocekit[export]'"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_full_disk_is_said_in_one_line(kind: str, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    source = Story(LOSS).write(tmp_path / "x.pcapng")
    (tmp_path / "t").mkdir()
    path = tmp_path / "t" / f"transfers{FORMATS[kind]}"
    path.symlink_to("/dev/full")
    message = error(run(source, "--to", kind, "--table", "transfers", "-o", tmp_path / "t"))
    assert message.startswith(f"{path}: cannot be written")


def _empty(folder: Path) -> Path:
    path = folder / "empty.pcapng"
    PcapngWriter(path).close()
    return path


def test_a_table_that_is_none_is_the_callers_mistake(tmp_path: Path) -> None:
    analysis = rocekit.analyze(Story(LOSS).write(tmp_path / "x.pcapng"))
    with pytest.raises(ValueError, match="no table hosts: there are packets"):
        tables(analysis, ["hosts"])
