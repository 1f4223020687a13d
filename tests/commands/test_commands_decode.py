"""What ``rocekit decode`` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from handmade import Net, batch_of, ethernet, transport

from rocekit.capture import PcapngWriter
from rocekit.cli import rocekit
from rocekit.wire import OPCODE_NAMES as OP
from rocekit.wire.cm import CM_ATTRIBUTE_IDS, CM_MESSAGES
from rocekit.wire.cm import MAD as MAD_HEADER

TO, BACK = Net(), Net(src="10.9.0.2", dst="10.9.0.1", tclass=3)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Seven frames a microsecond apart; the second is no RoCE packet, the last has a wrong ICRC."""
    rej = MAD_HEADER.pack(
        base_version=1, mgmt_class=7, class_version=2, method=3, attribute_id=CM_ATTRIBUTE_IDS["REJ"]
    ) + CM_MESSAGES["REJ"].pack(reason=8)
    write = {"psn": 1000, "dest_qpn": 17, "ackreq": 1, "remote_va": 0x7F0000001000, "rkey": 0x1A2B}
    bodies = [
        (TO, transport(OP["UD_SEND_ONLY"], rej, dest_qpn=1, src_qpn=1)),
        (TO, transport(OP["RC_RDMA_WRITE_ONLY"], bytes(64), dma_length=64, **write)),
        (BACK, transport(OP["RC_ACKNOWLEDGE"], psn=1000, dest_qpn=18, syndrome=0x60, msn=7)),
        (TO, transport(OP["RC_FETCH_ADD"], psn=1001, dest_qpn=17, swap_add=5, remote_va=64, rkey=1)),
        (TO, transport(0xBF, psn=2, dest_qpn=17)),
        (TO, transport(OP["RC_SEND_ONLY"], b"abcd", psn=1002, dest_qpn=17)),
    ]
    frames = [ethernet(net.wrap(body)) for net, body in bodies]
    frames[-1] = frames[-1][:-1] + bytes([frames[-1][-1] ^ 1])
    frames.insert(1, ethernet(bytes(28), 0x0806))
    path = tmp_path / "x.pcapng"
    with PcapngWriter(path) as writer:
        writer.write_batch(batch_of(frames))
    return path


def run(*arguments: str | Path, **options: object) -> Result:
    return CliRunner().invoke(rocekit, ["decode", *map(str, arguments)], **options)  # type: ignore[arg-type]


def test_a_line_a_packet(capture: Path) -> None:
    result = run(capture)
    assert result.exit_code == 0
    head, *lines = result.stdout.splitlines()
    assert " ".join(head.split()) == "frame seconds from → to opcode to QP PSN"
    assert [line.split()[0] for line in lines] == ["1", "3", "4", "5", "6", "7"]
    assert lines[1].split()[1] == "0.000002000"
    for line, says in zip(
        lines,
        (
            ["UD_SEND_ONLY", "CM REJ", "nobody listens"],
            [
                "RC_RDMA_WRITE_ONLY",
                "0x11",
                "1000",
                "va 0x7f0000001000",
                "rkey 0x1a2b",
                "64 bytes",
                "ack requested",
            ],
            ["10.9.0.2 → 10.9.0.1", "NAK psn_sequence_error", "MSN 7", "CE"],
            ["RC_FETCH_ADD", "add 0x5"],
            ["opcode 0xbf", "MALFORMED: unknown opcode"],
            ["RC_SEND_ONLY", "4 bytes", "ICRC INVALID"],
        ),
        strict=True,
    ):
        assert all(word in line for word in says), line
        assert line.index(says[0]) == head.index("opcode") or "→" in says[0]
    assert lines[1].index("1000") + len("1000") == head.index("PSN") + len("PSN")


def test_plain_in_a_pipe(capture: Path) -> None:
    assert "\x1b" not in run(capture).stdout
    assert "\x1b" in run(capture, env={"CLICOLOR_FORCE": "1"}, color=True).stdout


def test_json_is_one_object_a_line_with_the_wire_s_names(capture: Path) -> None:
    rows = [json.loads(line) for line in run(capture, "--format", "json").stdout.splitlines()]
    assert [row["frame"] for row in rows] == [1, 3, 4, 5, 6, 7]
    assert rows[0]["mad"]["cm"]["message"] == "REJ"
    assert rows[1]["remote_va"] == 0x7F0000001000
    assert (rows[2]["syndrome"], rows[2]["ecn"], rows[2]["src"]) == (0x60, 3, "10.9.0.2")
    assert "rkey" not in rows[2]
    assert (rows[4]["opcode"], rows[4]["malformed"]) == (0xBF, "unknown opcode")
    assert rows[5]["icrc_state"] == "invalid"


def test_fields_are_separated_by_tabs(capture: Path) -> None:
    result = run(capture, "--fields", "frame, opcode,psn,rkey,src")
    assert result.stdout.splitlines()[:3] == [
        "frame\topcode\tpsn\trkey\tsrc",
        "1\tUD_SEND_ONLY\t0\t\t10.9.0.1",
        "3\tRC_RDMA_WRITE_ONLY\t1000\t6699\t10.9.0.1",
    ]


def test_fields_as_json(capture: Path) -> None:
    result = run(capture, "--fields", "psn,rkey,has", "--format", "json", "--filter", "AETH")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"psn": 1000, "rkey": None, "has": 129}
    ]


def test_a_filter_and_a_count(capture: Path) -> None:
    result = run(
        capture, "--filter", "dest_qpn == 17 and src == 10.9.0.1", "--count", "2", "--fields", "frame"
    )
    assert result.stdout.split() == ["frame", "3", "5"]


def test_a_filter_that_matches_nothing_says_so(capture: Path) -> None:
    result = run(capture, "--filter", "psn == 77")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no packet matches the filter in 7 frames" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--filter", "psnn == 1"], "there is no field 'psnn'"),
        (["--filter", "psn =="], "is not an expression"),
        (
            ["--filter", "opcode == RC_RDMA_WRIT_ONLY"],
            "there is no opcode 'RC_RDMA_WRIT_ONLY'; did you mean RC_RDMA_WRITE_ONLY?",
        ),
        (["-o", "x.pcap"], "decode prints; rocekit replay FILE --filter EXPR -w x.pcap"),
        (["-w", "x.pcap"], "decode prints; rocekit replay FILE --filter EXPR -w x.pcap"),
        (["--fields", "psn,banana"], "there is no field 'banana'"),
        (["--fields", ","], "names separated by commas"),
        (["--count", "0"], "--count"),
    ],
)
def test_a_wrong_command_line_exits_2(capture: Path, arguments: list[str], says: str) -> None:
    result = run(capture, *arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_capture_cut_short_prints_what_is_there_and_then_one_line(capture: Path) -> None:
    capture.write_bytes(capture.read_bytes()[:-90])
    result = run(capture, "--fields", "frame")
    assert result.exit_code == 1
    assert result.stdout.split() == ["frame", "1", "3", "4", "5", "6"]
    assert len(result.stderr.splitlines()) == 1
    assert "x.pcapng" in result.stderr


def test_standard_input(capture: Path) -> None:
    import subprocess
    import sys

    with capture.open("rb") as source:
        done = subprocess.run(
            [sys.executable, "-m", "rocekit.cli", "decode", "-", "--fields", "psn", "--count", "1"],
            stdin=source,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert (done.returncode, done.stdout.split()) == (0, ["psn", "0"])
