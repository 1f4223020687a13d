"""``rocekit analyze`` and ``rocekit explain``: what they print, and one clear line for wrong input."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from capture_bytes import enhanced, interface, section
from click.testing import CliRunner, Result
from story import Story
from test_analysis import FULL, check_contract

from rocekit import cli

SEVERAL = "\n".join(f"a RC_SEND_ONLY {p} {p}\n b ACK {p}" for p in range(5, 40))


def rocekit(*args: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.rocekit, [str(a) for a in args], input=stdin)


def one_line(result: Result, *words: str) -> str:
    """The error: exit 1, one line on standard error that holds the words, no traceback."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("rocekit: error: ")
    for word in words:
        assert word in lines[0], lines[0]
    return lines[0]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    story = Story().connect(5, 900).lines(FULL)
    story.write_journal(tmp_path / "x.journal.jsonl")
    return story.write(tmp_path / "x.pcapng")


# ---------------------------------------------------------------------- what they print


def test_analyze_prints_capture_connections_transfers_journal_and_findings(capture: Path) -> None:
    result = rocekit("analyze", capture)
    assert result.exit_code == 0, result.stderr
    assert f"{capture}: 9 frames, 9 RoCE packets" in result.stdout
    assert "10.0.0.1 QP 0x11" in result.stdout
    assert "2 transfers: 2 acked" in result.stdout
    assert "WR 1 SUCCESS" in result.stdout
    assert "3 CM messages" in result.stdout
    assert result.stderr == ""
    assert "\x1b" not in result.stdout  # plain in a pipe


LOSSY = """
a RC_SEND_FIRST 5 1024
a RC_SEND_LAST 7 64
b NAK 6
a RC_SEND_MIDDLE 6 1024
a RC_SEND_LAST 7 64
b ACK 7
"""


def test_analyze_says_findings_first_and_what_is_unknown_last(tmp_path: Path) -> None:
    text = rocekit("analyze", Story(LOSSY).write(tmp_path / "x.pcapng")).stdout
    parts = ("x.pcapng: ", "  ICRC: ", "\n1 finding\n  warning loss", "\nConnections\n", "\n1 transfer: ")
    places = [text.index(part) for part in (*parts, "\nCapture point: unknown (")]
    assert places == sorted(places)
    assert text.splitlines()[-1].startswith("Capture point: unknown (")
    assert "findings above" not in text


def test_lists_that_fill_a_screen_name_the_findings_once_more(tmp_path: Path) -> None:
    capture = Story(LOSSY + "\n".join(f"a RC_SEND_ONLY {p} 9\n b ACK {p}" for p in range(8, 40)))
    lines = rocekit("analyze", capture.write(tmp_path / "x.pcapng"), "--all").stdout.splitlines()
    assert lines[3].startswith("1 finding")
    assert lines[-3] == "1 finding above: loss"
    assert lines[-1].startswith("Capture point: unknown (")


def test_analyze_prints_the_contract_as_one_json_document(capture: Path) -> None:
    result = rocekit("analyze", capture, "--format", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    check_contract(document)
    assert [t["wr"]["wr_id"] for t in document["transfers"]] == [1, 2]


def test_analyze_lists_the_slowest_transfers_and_with_all_every_one_in_order(tmp_path: Path) -> None:
    capture = Story(SEVERAL).write(tmp_path / "x.pcapng")

    def listed(result: Result) -> list[int]:
        rows = [line.split() for line in result.stdout.splitlines() if " SEND " in line]
        return [int(row[0]) for row in rows]

    assert len(listed(rocekit("analyze", capture))) == 20
    assert listed(rocekit("analyze", capture, "--all")) == list(range(35))


def test_analyze_reads_standard_input(capture: Path) -> None:
    result = rocekit("analyze", "-", "--format", "json", stdin=gzip.compress(capture.read_bytes()))
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["capture"]["frames"] == 9


def test_analyze_takes_a_journal_from_anywhere(tmp_path: Path) -> None:
    story = Story(FULL)
    capture, journal = story.write(tmp_path / "x.pcapng"), story.write_journal(tmp_path / "elsewhere.jsonl")
    document = json.loads(rocekit("analyze", capture, "--journal", journal, "--format", "json").stdout)
    assert document["journal"]["matched"] == 2


def test_analyze_can_leave_icrcs_unverified(tmp_path: Path) -> None:
    capture = Story("a RC_SEND_ONLY 5 64\n corrupt\n b ACK 5").write(tmp_path / "x.pcapng")
    document = json.loads(rocekit("analyze", capture, "--no-icrc", "--format", "json").stdout)
    assert document["capture"]["bad_icrc"] == 0
    assert [t["status"] for t in document["transfers"]] == ["acked"]


def test_a_capture_without_roce_is_no_error(tmp_path: Path) -> None:
    capture = Story().frame(bytes(60)).write(tmp_path / "x.pcapng")
    result = rocekit("analyze", capture)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{capture}: No RoCE v2 packets: nothing to judge.\n  1 frame,")
    assert "No findings" not in result.stdout


def test_explain_tells_the_transfer_asked_for(capture: Path) -> None:
    result = rocekit("explain", capture, "--transfer", "0")
    assert result.exit_code == 0
    assert result.stdout.startswith("Transfer 0 · RDMA WRITE 2,000 bytes")
    assert "WC 1 SUCCESS" in result.stdout


def test_explain_tells_several_by_number_and_by_work_request(capture: Path) -> None:
    result = rocekit("explain", capture, "--transfer", "0", "--wr", "2", "--format", "json")
    stories = json.loads(result.stdout)
    assert [(s["id"], s["wr"]["wr_id"]) for s in stories] == [(0, 1), (1, 2)]


def test_explain_without_a_number_tells_the_most_troubled(capture: Path) -> None:
    assert json.loads(rocekit("explain", capture, "--format", "json").stdout)["id"] == 1


def test_explain_all_tells_every_one(capture: Path) -> None:
    assert len(json.loads(rocekit("explain", capture, "--all", "--format", "json").stdout)) == 2


def test_explain_names_what_there_is_when_asked_for_what_there_is_not(capture: Path, tmp_path: Path) -> None:
    one_line(rocekit("explain", capture, "--transfer", "2"), "no transfer 2", "there are 2")
    one_line(rocekit("explain", capture, "--wr", "77"), "work request 77")
    nothing = Story().frame(bytes(60)).write(tmp_path / "nothing.pcapng")
    one_line(rocekit("explain", nothing), "No RoCE v2 packets: nothing to explain. 1 frame: 1 LLC")


SAME_WR_ID = """
    A created
    B created
    A wr 8 SEND 64
    B wr 8 RDMA_WRITE 128
    A wr 9 SEND 64
    a RC_SEND_ONLY 5 64
    b ACK 5
    b RC_RDMA_WRITE_ONLY 900 128
    a ACK 900
    A wc 8 SUCCESS opcode=SEND
    B wc 8 SUCCESS opcode=RDMA_WRITE
"""


@pytest.fixture
def same_wr_id(tmp_path: Path) -> Path:
    story = Story().connect(5, 900).lines(SAME_WR_ID)
    story.write_journal(tmp_path / "x.journal.jsonl")
    return story.write(tmp_path / "x.pcapng")


def test_explain_names_all_work_requests_with_one_wr_id(same_wr_id: Path) -> None:
    one_line(
        rocekit("explain", same_wr_id, "--wr", "8"),
        "2 work requests have the wr_id 8; choose one with --transfer: SEND 64 bytes of",
        "(--transfer 0), RDMA_WRITE 128 bytes of",
        "(--transfer 1)",
    )


def test_explain_names_a_work_request_without_packets(same_wr_id: Path) -> None:
    words = "work request 9: SEND 64 bytes", "no packet in the capture"
    one_line(rocekit("explain", same_wr_id, "--wr", "9"), *words)


# ---------------------------------------------------------------------- wrong command lines


@pytest.mark.parametrize(
    "args",
    [
        ["analyze"],
        ["explain"],
        ["analyze", "x.pcapng", "--format", "xml"],
        ["explain", "x.pcapng", "--transfer", "-1"],
        ["explain", "x.pcapng", "--transfer", "many"],
        ["analyze", "--nonsense"],
        ["trace"],
        ["trace", "lo", "--duration", "0"],
        ["trace", "lo", "--count", "0"],
    ],
)
def test_a_wrong_command_line_exits_2(args: list[str]) -> None:
    assert rocekit(*args).exit_code == 2


# ---------------------------------------------------------------------- wrong input


@pytest.fixture(params=["analyze", "explain"])
def command(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_file_that_is_not_there(command: str, tmp_path: Path) -> None:
    one_line(rocekit(command, tmp_path / "missing.pcap"), "missing.pcap", "no such file")


def test_a_directory(command: str, tmp_path: Path) -> None:
    one_line(rocekit(command, tmp_path), str(tmp_path), "directory")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"once upon a time\n" * 9, "not a capture"),
        (b"\xd4\xc3\xb2", "not a capture"),
        (b"\0" * 4096, "not a capture"),
        (b"PK\x03\x04" + bytes(99), "zip"),
        (gzip.compress(b"once upon a time", mtime=0), "not a capture"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 105), "802.11"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 247), "InfiniBand"),
    ],
    ids=["empty", "text", "three bytes", "zeros", "zip", "gzip of text", "802.11", "InfiniBand"],
)
def test_what_is_no_capture(command: str, tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(content)
    one_line(rocekit(command, path), "x.pcap", words)


def test_a_file_that_may_not_be_read(command: str, capture: Path) -> None:
    capture.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        result = rocekit(command, capture)
    finally:
        if root:
            os.seteuid(0)
    one_line(result, "x.pcapng", "ermission denied")


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "in a packet": lambda data: data[:-40],
    "in a block's head": lambda data: data[: data.rfind(b"\x06\0\0\0") + 6],
    "in a block's end": lambda data: data[:-2],
}


@pytest.mark.parametrize("where", CUTS)
def test_a_capture_cut_in_the_middle_is_reported_as_far_as_it_goes(
    command: str, where: str, tmp_path: Path
) -> None:
    path = Story(SEVERAL).write(tmp_path / "x.pcapng")
    path.write_bytes(CUTS[where](path.read_bytes()))
    result = rocekit(command, path)
    one_line(result, "x.pcapng", "byte ", "what could be read is reported")
    assert "Transfer" in result.stdout or "35 transfers" in result.stdout


@pytest.mark.parametrize("keep", [5, 16, 30])
def test_a_pcap_cut_in_a_record_is_reported_as_far_as_it_goes(
    command: str, keep: int, tmp_path: Path
) -> None:
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    records = [
        struct.pack("<IIII", s.time_ns // 10**9, s.time_ns % 10**9 // 1000, len(s.data), len(s.data)) + s.data
        for s in Story("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 6 64").shots
    ]
    path = tmp_path / "x.pcap"
    path.write_bytes(head + records[0] + records[1] + records[2][:keep])
    result = rocekit(command, path)
    one_line(result, "x.pcap", f"byte {len(head + records[0] + records[1])}")
    assert "acked" in result.stdout or "completed" in result.stdout


def test_damage_stands_in_the_json_beside_what_could_be_read(tmp_path: Path) -> None:
    path = Story(SEVERAL).write(tmp_path / "x.pcapng")
    path.write_bytes(path.read_bytes()[:-40])
    result = rocekit("analyze", path, "--format", "json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert len(document["capture"]["damage"]) == 1
    assert len(document["transfers"]) == 35


def test_a_hostile_capture_does_not_drive_the_terminal(command: str, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2Jx\n.pcap"
    path.write_bytes(b"once upon a time")
    assert "\x1b" not in one_line(rocekit(command, path))


def test_a_journal_with_a_bad_line_says_which_and_what_was_expected_and_uses_the_rest(
    command: str, capture: Path
) -> None:
    journal = capture.with_name("x.journal.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:2], '{"time_ns": "soon"}', *lines[2:], ""]))
    result = rocekit(command, capture, "--format", "json")
    one_line(result, "x.journal.jsonl", "line 3", "expected", "the other lines are used")
    assert '"wr_id": 1' in result.stdout or '"wr_id": 2' in result.stdout


def test_a_journal_that_is_none(command: str, capture: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("once upon a time\n")
    one_line(rocekit(command, capture, "--journal", other), "other.jsonl", "line 1", "expected")
    one_line(rocekit(command, capture, "--journal", tmp_path / "missing.jsonl"), "missing.jsonl")


def test_one_good_and_one_bad_file(capture: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"once upon a time")
    one_line(rocekit("analyze", capture, bad), "bad.pcap", "not a capture")


def test_a_reader_that_has_gone_away_ends_it_quietly(capture: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "rocekit.cli", "analyze", str(capture)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=240, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


# ---------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_in_the_middle_leaves_what_was_read_marked_as_a_part(tmp_path: Path) -> None:
    whole = tmp_path / "x.pcap"
    assert rocekit("generate", whole, "--packets", "40000").exit_code == 0
    for output in ("text", "json"):
        program = [sys.executable, "-m", "rocekit.cli", "analyze", "-", "--format", output]
        told = tmp_path / "told"
        with told.open("wb") as file:
            process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
        with process:
            assert process.stdin is not None
            # More than is read at once and than a pipe holds: what comes first has been analysed by then.
            process.stdin.write(whole.read_bytes()[:-20_000])
            process.stdin.flush()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        said = told.read_text()
        if output == "json":
            document = json.loads(said)
            assert document["capture"]["interrupted"] is True
            assert 0 < document["capture"]["frames"] < 40_000
        else:
            assert "interrupted: only the part read until then is reported" in said


def test_a_capture_read_to_its_end_is_not_marked_as_interrupted(capture: Path) -> None:
    assert (
        json.loads(rocekit("analyze", capture, "--format", "json").stdout)["capture"]["interrupted"] is False
    )
    assert "interrupted" not in rocekit("analyze", capture).stdout


def test_frames_of_link_types_that_carry_no_roce_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    ethernet, ppp = 1, 9
    blocks = section() + interface(ethernet) + interface(ppp)
    blocks += enhanced(bytes(60), on=0) + enhanced(bytes(60), on=1) * 2
    path.write_bytes(blocks)
    assert "left out: 2 frames of link type 9 (PPP)" in rocekit("analyze", path).stdout
    capture = json.loads(rocekit("analyze", path, "--format", "json").stdout)["capture"]
    assert (capture["frames"], capture["skipped_frames"]) == (1, 2)
