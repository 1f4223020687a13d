"""Input of others that once ended in a traceback: now in a result, or in one line that names it."""

from __future__ import annotations

import gzip
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from capture_bytes import pcap
from click.testing import CliRunner, Result
from talk import Talk

from rocekit.cli import rocekit as cli
from rocekit.conform.language import parse_drill
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.verdict import FAIL
from rocekit.errors import ScenarioError
from rocekit.files.yaml import parse_yaml
from rocekit.journal import read_journal
from rocekit.packets.filters import Filter
from rocekit.report.happenings import _KINDS
from rocekit.track.events import Event
from rocekit.wire.build import build_frame

DRILL = "claim: It is so.\nclause: IBA 9.7\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def saved(talk: Talk, folder: Path) -> Path:
    path = folder / "x.pcap"
    path.write_bytes(pcap(talk.frames))
    return path


def vendors(folder: Path) -> Path:
    """A connection with packets of an opcode that the specification leaves to vendors."""
    talk = Talk()
    talk.send(10, 3)
    talk.packet("RC_ACKNOWLEDGE", 12, by="b", syndrome=0x1F, msn=1)
    talk.raw(build_frame(0xC1, src="10.9.0.1", dst="10.9.0.2", dest_qpn=0x12, psn=13, identification=9))
    return saved(talk, folder)


def test_packets_of_a_vendors_opcode_are_in_the_report(tmp_path: Path) -> None:
    result = run("report", vendors(tmp_path), "-o", tmp_path / "x.html")
    assert result.exit_code == 0, result.output


def test_a_graph_has_a_sign_for_everything_that_happens_to_a_transfer() -> None:
    every = re.findall(r"``(\w+)``", "".join(re.findall(r"\* (.*?):", Event.__doc__ or "")))
    assert len(every) >= 9
    assert set(every) <= set(_KINDS)


def late_response(folder: Path) -> Path:
    """READ responses in order, but one that a later one overtook."""
    talk = Talk()
    for first in (10, 16):
        talk.packet(
            "RC_RDMA_READ_REQUEST", first, remote_va=0x1000, rkey=1, dma_length=6 * 1024, identification=first
        )
        for n in (0, 1, 2, 4, 3, 5) if first == 16 else range(6):
            name = "FIRST" if n == 0 else "LAST" if n == 5 else "MIDDLE"
            more = {"syndrome": 0x1F, "msn": 1} if name != "MIDDLE" else {}
            talk.packet(
                f"RC_RDMA_READ_RESPONSE_{name}",
                first + n,
                bytes(1024),
                by="b",
                identification=100 + first + n,
                **more,
            )
    return saved(talk, folder)


def test_a_report_shows_a_response_that_came_late(tmp_path: Path) -> None:
    path = late_response(tmp_path)
    assert "response reordered" in run("explain", path, "--transfer", 1).output
    result = run("report", path, "-o", tmp_path / "x.html")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("kind", ["perfetto", "qlog"])
def test_responses_sent_again_without_any_request_in_the_capture_are_exported(
    tmp_path: Path, kind: str
) -> None:
    if kind == "perfetto":
        pytest.importorskip("perfetto")
    talk = Talk()
    for _ in range(2):
        for n, name in enumerate(("FIRST", "MIDDLE", "LAST")):
            more = {"syndrome": 0x1F, "msn": 1} if name != "MIDDLE" else {}
            talk.packet(f"RC_RDMA_READ_RESPONSE_{name}", 10 + n, bytes(1024), by="b", **more)
    result = run("export", saved(talk, tmp_path), "--to", kind, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output


def test_times_before_the_epoch_are_exported_as_the_epoch(tmp_path: Path) -> None:
    """Perfetto has no times below 0."""
    pytest.importorskip("perfetto")
    blocks = [struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)]
    since = struct.pack("<HHq", 14, 8, -1_000_000_000)  # if_tsoffset
    body = struct.pack("<HHI", 1, 0, 262144) + since + bytes(4)
    blocks.append(struct.pack("<II", 1, 12 + len(body)) + body + struct.pack("<I", 12 + len(body)))
    talk = Talk()
    talk.send(10, 3)
    talk.packet("RC_ACKNOWLEDGE", 12, by="b", syndrome=0x1F, msn=1)
    for n, frame in enumerate(talk.frames):
        data = frame.data + bytes(-len(frame.data) & 3)
        head = struct.pack("<IIIII", 0, 0, n, len(frame.data), len(frame.data))
        size = 32 + len(data)
        blocks.append(struct.pack("<II", 6, size) + head + data + struct.pack("<I", size))
    (tmp_path / "x.pcapng").write_bytes(b"".join(blocks))
    result = run("export", tmp_path / "x.pcapng", "--to", "perfetto", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output


# ---------------------------------------------------------------------- journals

LINE = {"time_ns": 5, "clock": "realtime", "host": "h", "pid": 1, "event": "async_event", "type": "X"}


def test_a_journal_whose_gzip_data_is_damaged_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = json.dumps(LINE).encode() + b"\n"
    damaged = bytearray(gzip.compress(lines))
    damaged[10] |= 0x06  # a block of a type that there is not
    path = tmp_path / "x.journal.jsonl.gz"
    path.write_bytes(gzip.compress(lines) + damaged)
    journal = read_journal(path)
    assert len(journal) == 1
    assert "gzip data cut off or damaged" in str(journal.problems[-1])


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_damage(tmp_path: Path, word: str) -> None:
    """Python reads and writes them, other programs do not: `analyze --format json` would be no JSON."""
    path = tmp_path / "x.journal.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"more": 0})[:-2] + word + "}\n")
    journal = read_journal(path)
    assert (len(journal), [p.line for p in journal.problems]) == (1, [2])


# ---------------------------------------------------------------------- YAML, filters, packets, drills


@pytest.mark.parametrize("text", ["a: \x00", "\x01", "a: \ufffe", "x: \x1b[2J"])
def test_characters_that_yaml_forbids_are_named_in_one_line(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^x\.yaml: no YAML"):
        parse_yaml(text, "x.yaml")


@pytest.mark.parametrize(
    "text",
    ["truncated == 0xffffffffffffffff", "truncated in (-1, 99)", "truncated < -5", "truncated > 1 << 63"],
)
def test_a_filter_compares_a_flag_with_any_number(text: str) -> None:
    Filter(text)


@pytest.mark.parametrize(
    "field",
    [
        *({"dscp": 64}, {"dscp": -1}, {"ecn": 4}, {"ttl": 256}, {"sport": 1 << 16}, {"dport": -1}),
        *({"identification": 1 << 16}, {"fragment": -1}, {"icrc": 1 << 32}, {"vlan": 4096}, {"priority": 8}),
        *({"vlan": -1}, {"payload": bytes(70_000)}, {"psn": 1 << 24}, {"psn": -1}),
    ],
    ids=lambda field: "-".join(field),
)
def test_a_packet_with_a_value_that_does_not_fit_is_a_value_error(field: dict[str, object]) -> None:
    given = {
        "src": "10.0.0.1",
        "dst": "10.0.0.2",
        "psn": 1,
        "vlan": 5 if "priority" in field else None,
    } | field
    with pytest.raises(ValueError, match=r"takes|has up to"):
        build_frame("RC_SEND_ONLY", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps:\n  - fill: {at: 5}", "line 4: fill is written as"),
        ("device: {path_mtu: 0}\nsteps:\n  - fill: {bytes: 5}", "line 3: path_mtu is a"),
        ("device: {rq_psn: 16777216}\nsteps:\n  - fill: {bytes: 5}", "line 3: rq_psn is a"),
        ("device: {memory: {main: {length: 9999999999}}}\nsteps:\n  - fill: {bytes: 5}", "line 3: length is"),
        (f"steps:\n  - fill: {{bytes: {'9' * 5000} zeros}}", "line 4: bytes: more than"),
        (f"steps:\n  - nothing: {'9' * 5000} ms", "line 4: nothing is a time"),
        (f"steps:\n  - acked: {'9' * 5000}x", "acked is a number"),
    ],
)  # fmt: skip
def test_impossible_values_of_a_drill_are_refused_when_it_is_read(text: str, expected: str) -> None:
    with pytest.raises(ScenarioError, match=expected):
        parse_drill(DRILL + text)


@pytest.mark.parametrize(
    ("step", "came"),
    [
        ("memory: {at: 70000, is: 64}", "64 bytes at 70000 are not in main"),
        ("memory: {region: other, is: 64}", "no region 'other'"),
        ("fill: {at: 65530, bytes: 64}", "64 bytes at 65530 are not in main"),
        ("post: {op: SEND, wr_id: 0 - 1}", "wr_id is no number of 64 bits"),
        ("post: {op: RDMA_WRITE, length: 1, rkey: 4294967296}", "rkey is no number of 32 bits"),
        ("recv: {length: 64, count: 4294967296}", "count is no number of 16 bits"),
        ("post: {op: SEND, region: other, length: 5}", "no region 'other'"),
        ("send: {op: RC_RDMA_WRITE_ONLY, dma_length: 0 - 1}", "dma_length takes values under"),
    ],
)
def test_impossible_values_that_show_when_a_drill_is_played_fail_it(step: str, came: str) -> None:
    verdict = SoftBench().play(parse_drill(f"{DRILL}steps:\n  - {step}\n")).verdict
    assert verdict.outcome == FAIL
    assert came in verdict.came


def test_what_a_drill_says_cannot_turn_the_line_around() -> None:
    drill = parse_drill('claim: It is \u202eso.\nclause: IBA\nsteps:\n  - post: {op: "SEND\u202e"}\n')
    assert drill.claim == r"It is \u202eso."
    assert "\u202e" not in drill.steps[0].text


# ---------------------------------------------------------------------- times


def test_times_far_from_today_are_read_so_that_their_differences_fit(tmp_path: Path) -> None:
    """A pcapng file can state any of 64 bits; tracking and graphs subtract times."""
    from rocekit.files.pcapng_interface import split_stamp

    seconds, _ = split_stamp(np.array([(1 << 64) - 1], np.uint64), 0)
    assert int(seconds[0]) == (1 << 64) - 1
    blocks = [struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)]
    body = struct.pack("<HHI", 1, 0, 262144)
    blocks.append(struct.pack("<II", 1, 12 + len(body)) + body + struct.pack("<I", 12 + len(body)))
    body = struct.pack("<HHI", 1, 0, 262144) + struct.pack("<HHq", 14, 8, -(1 << 62)) + bytes(4)
    blocks.append(struct.pack("<II", 1, 12 + len(body)) + body + struct.pack("<I", 12 + len(body)))
    talk = Talk()
    talk.send(10, 4)
    talk.packet("RC_ACKNOWLEDGE", 13, by="b", syndrome=0x1F, msn=1)
    for n, frame in enumerate(talk.frames):
        data = frame.data + bytes(-len(frame.data) & 3)
        head = struct.pack("<IIIII", n & 1, 0xFFFFFFFF * (n & 1 ^ 1), n, len(frame.data), len(frame.data))
        size = 32 + len(data)
        blocks.append(struct.pack("<II", 6, size) + head + data + struct.pack("<I", size))
    path = tmp_path / "x.pcapng"
    path.write_bytes(b"".join(blocks))
    from rocekit.capture import open_capture

    times = [int(t) for batch in open_capture(path) for t in batch.time_ns]
    assert max(times) - min(times) < 1 << 63
    assert "outside the years 1824 to 2116" in run("analyze", path).output
    assert "a defect" not in run("report", path, "-o", tmp_path / "x.html").output


# ---------------------------------------------------------------------- a LAKE


@pytest.mark.parametrize("content", [b"", b"PAR1" + bytes(60), b"PAR1" + bytes(8) + b"PAR1"])
def test_a_damaged_table_of_a_lake_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("duckdb")
    lake_module = pytest.importorskip("rocekit.fleet.lake")
    from rocekit.fleet.stream_tables import LakeSettings

    lake_module.Lake(tmp_path).make(LakeSettings())
    folder = tmp_path / "day=2026-01-01" / "point=a" / "x"
    folder.mkdir(parents=True)
    (folder / "transfers.parquet").write_bytes(content)
    result = run("fleet", "query", tmp_path, "SELECT * FROM transfers")
    assert result.exit_code == 1
    assert "the table transfers cannot be read" in result.output
