"""The whole analysis: the JSON contract, tables, and captures made by others whose contents are known."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from story import REMOTE_VA, RKEY, START_NS, Story

import rocekit
from rocekit.analysis import find_journals
from rocekit.craft.generate import Traffic, generate
from rocekit.errors import CaptureError, JournalError
from rocekit.explanation.results import Table

# ---------------------------------------------------------------------- the contract

INT, STR, LIST, DICT = int, str, list, dict
MAYBE_INT, MAYBE_DICT, MAYBE_STR = (int, type(None)), (dict, type(None)), (str, type(None))
MAYBE_BOOL = (bool, type(None))
FRAME = (int, str)
CONTRACT: dict[str, dict[str, Any]] = {
    "capture": {
        "files": LIST, "frames": INT, "roce_packets": INT, "first_ns": MAYBE_INT, "last_ns": MAYBE_INT,
        "truncated_packets": INT, "malformed_packets": INT, "bad_icrc": INT, "unchecked_icrc": INT,
    },
    "connections": {
        "id": INT, "transport": STR, "a": DICT, "b": DICT, "paired_by": MAYBE_STR, "path_mtu": MAYBE_INT,
        "paired_surely": MAYBE_BOOL,
        "packets": INT, "bytes": INT, "transfers": INT, "retransmitted_packets": INT, "naks": INT,
        "rnr_naks": INT, "cnps": INT, "ce_marked": INT, "recovery": MAYBE_STR,
        "resent_per_loss": (float, type(None)),
    },
    "transfers": {
        "id": INT, "connection": INT, "requester": DICT, "operation": STR, "immediate": MAYBE_INT,
        "invalidate_rkey": MAYBE_INT, "bytes": INT, "packets": INT, "first_psn": INT, "last_psn": INT,
        "remote_va": MAYBE_INT, "rkey": MAYBE_INT, "first_ns": INT, "last_ns": INT, "acked_ns": MAYBE_INT,
        "status": STR, "retransmitted_packets": INT, "naks": INT, "rnr_naks": INT, "timeouts": INT,
        "wr": MAYBE_DICT, "wc": MAYBE_DICT, "frames": LIST,
    },
    "cm": {
        "frame": FRAME, "time_ns": INT, "message": STR, "src": DICT, "dst": DICT, "transaction_id": INT,
        "connection": MAYBE_INT,
    },
    "findings": {
        "rule": STR, "severity": STR, "title": STR, "connection": MAYBE_INT, "transfer": MAYBE_INT,
        "frames": LIST, "evidence": DICT, "advice": STR,
    },
}  # fmt: skip
OPERATIONS = {"SEND", "WRITE", "READ", "FETCH_ADD", "CMP_SWAP", "FLUSH", "ATOMIC_WRITE"}
STATUSES = {"acked", "unacknowledged", "incomplete", "sent"}


def check_contract(document: dict[str, Any], *, several: bool = False) -> None:
    """Check that every key of the contract is there, with a value of its type."""
    assert document["schema"] == "rocekit/1"
    for part, keys in CONTRACT.items():
        records = [document[part]] if part == "capture" else document[part]
        for record in records:
            for key, kinds in keys.items():
                assert isinstance(record[key], kinds), (part, key, record[key])
                assert kinds is MAYBE_BOOL or not isinstance(record[key], bool), (part, key)
    for number, t in enumerate(document["transfers"]):
        assert t["id"] == number
        assert t["operation"] in OPERATIONS
        assert t["status"] in STATUSES or t["status"].startswith("nak:")
        assert set(t["requester"]) == {"ip", "qpn"}
        assert len(t["frames"]) == 2
        assert {type(f) for f in t["frames"]} == {str if several else int}
        assert 0 <= t["first_psn"] < 1 << 24
        assert 0 <= t["last_psn"] < 1 << 24
        assert (t["acked_ns"] is None) or t["acked_ns"] >= t["first_ns"]
    for number, c in enumerate(document["connections"]):
        assert c["id"] == number
        assert set(c["a"]) == set(c["b"]) == {"ip", "qpn"}
        assert c["transport"] in {"RC", "UC", "UD", "XRC"}
        assert c["paired_by"] in {"cm", "journal", "psn", "source port", "handshake", None}
        assert (c["paired_surely"] is None) == (c["paired_by"] is None)
        own = [t for t in document["transfers"] if t["connection"] == number]
        assert c["transfers"] == len(own)
        assert c["bytes"] == sum(t["bytes"] for t in own)
    for m in document["cm"]:
        assert set(m["src"]) == set(m["dst"]) == {"ip"}
    for f in document["findings"]:
        assert f["severity"] in {"error", "warning", "info"}


FULL = """
    A created
    A modified dest_qpn=0x12 path_mtu=1024 sq_psn=5
    A wr 1 RDMA_WRITE 2000
    A wr 2 SEND_WITH_IMM 64 imm=9
    a RC_RDMA_WRITE_FIRST 5 1024 of=2000
    a RC_RDMA_WRITE_LAST 6 976
    a RC_SEND_ONLY_WITH_IMMEDIATE 7 64 immediate=9
    b NAK 7
    a RC_SEND_ONLY_WITH_IMMEDIATE 7 64 immediate=9
    b ACK 7
    A wc 1 SUCCESS opcode=RDMA_WRITE
    A wc 2 SUCCESS opcode=SEND
"""


def test_the_document_is_the_contract(tmp_path: Path) -> None:
    story = Story().connect(5, 900).lines(FULL)
    document = json.loads(json.dumps(story.analyze(tmp_path).to_dict()))
    check_contract(document)
    write, send = document["transfers"]
    assert (write["operation"], write["bytes"], write["packets"]) == ("WRITE", 2000, 2)
    assert (write["remote_va"], write["rkey"]) == (REMOTE_VA, RKEY)
    assert (write["wr"]["wr_id"], write["wc"]["status"]) == (1, "SUCCESS")
    assert (send["immediate"], send["retransmitted_packets"], send["naks"]) == (9, 1, 1)
    assert [m["message"] for m in document["cm"]] == ["REQ", "REP", "RTU"]
    assert document["connections"][0]["paired_by"] in {"cm", "journal"}
    assert document["capture"]["frames"] == document["capture"]["roce_packets"] == 9
    assert document["capture"]["first_ns"] == START_NS
    assert document["journal"]["work_requests"] == document["journal"]["matched"] == 2


@pytest.mark.parametrize("text", ["", "a UC_SEND_ONLY 5 64", "b ACK 5", "a UD_SEND_ONLY 5 64", "a CNP 0"])
def test_the_contract_holds_for_almost_empty_captures(tmp_path: Path, text: str) -> None:
    check_contract(json.loads(json.dumps(Story(text).analyze(tmp_path).to_dict())))


def test_times_are_whole_nanoseconds_since_the_epoch(tmp_path: Path) -> None:
    story = Story("a RC_SEND_ONLY 5 64\n b ACK 5", start_ns=1_700_000_000_123_456_789)
    (transfer,) = story.analyze(tmp_path).to_dict()["transfers"]
    assert (transfer["first_ns"], transfer["acked_ns"]) == (
        1_700_000_000_123_456_789,
        1_700_000_000_123_457_789,
    )


def test_what_is_unknown_is_null(tmp_path: Path) -> None:
    (connection,) = Story("a RC_SEND_ONLY 5 64").analyze(tmp_path).to_dict()["connections"]
    assert connection["a"] == {"ip": "10.0.0.1", "qpn": None}
    assert connection["b"] == {"ip": "10.0.0.2", "qpn": 0x12}
    assert (connection["paired_by"], connection["path_mtu"]) == (None, None)


def test_damaged_packets_are_counted_by_kind(tmp_path: Path) -> None:
    story = Story("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 6 64\n corrupt")
    story.frame(story.shots[0].data[:46])  # ends inside the BTH, though its IP length says otherwise
    capture = story.analyze(tmp_path).to_dict()["capture"]
    assert (capture["roce_packets"], capture["bad_icrc"]) == (4, 1)
    assert capture["malformed_packets"] + capture["truncated_packets"] >= 1


def test_with_several_captures_a_frame_has_the_number_of_its_file(tmp_path: Path) -> None:
    story = Story().connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5")
    one, two = story.write(tmp_path / "one.pcapng"), story.write(tmp_path / "two.pcapng")
    document = rocekit.analyze(one, two).to_dict()
    check_contract(json.loads(json.dumps(document)), several=True)
    assert document["capture"]["files"] == [str(one), str(two)]
    assert [m["frame"] for m in document["cm"]] == ["0:1", "0:2", "0:3"]


# ---------------------------------------------------------------------- tables


def test_tables_filter_by_value_and_by_function(tmp_path: Path) -> None:
    found = Story(FULL).analyze(tmp_path).transfers
    assert [t.id for t in found.where(operation="WRITE")] == [0]
    assert [t.id for t in found.where(bytes=lambda n: n < 100, status="acked")] == [1]
    assert found.where(operation="READ") == []
    assert isinstance(found.where(), Table)
    with pytest.raises(AttributeError):
        found.where(nonsense=1)


def test_tables_become_numpy_with_minus_one_for_what_is_missing(tmp_path: Path) -> None:
    found = Story(FULL + "\n a RC_SEND_ONLY 8 7").analyze(tmp_path).transfers
    array = found.to_numpy("bytes", "first_psn", "acked_ns", "immediate")
    assert array.dtype.names == ("bytes", "first_psn", "acked_ns", "immediate")
    assert array["bytes"].tolist() == [2000, 64, 7]
    assert array["immediate"].tolist() == [-1, 9, -1]
    assert array["acked_ns"][2] == -1
    assert array["acked_ns"][0] == found[0].acked_ns  # not rounded by a float


def test_tables_become_the_dicts_of_the_json(tmp_path: Path) -> None:
    analysis = Story(FULL).analyze(tmp_path)
    assert analysis.transfers.to_dicts() == analysis.to_dict()["transfers"]
    assert analysis.connections.to_dicts() == analysis.to_dict()["connections"]


def test_packets_are_columns_of_every_roce_packet(tmp_path: Path) -> None:
    analysis = Story(FULL).analyze(tmp_path)
    assert analysis.packets.psn.tolist() == [5, 6, 7, 7, 7, 7]
    assert len(analysis.packets) == analysis.capture.counts.roce_packets


def test_an_analysis_prints_as_the_command_prints_it(tmp_path: Path) -> None:
    text = str(Story(FULL).analyze(tmp_path))
    assert "2 transfers: 2 acked" in text
    assert "10.0.0.1 QP 0x11" in text
    assert "\x1b" not in text


# ---------------------------------------------------------------------- files and journals


def test_a_journal_named_like_the_capture_is_found(tmp_path: Path) -> None:
    story = Story(FULL)
    plain = story.write(tmp_path / "x.pcapng")
    packed = tmp_path / "x.pcapng.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    journal = story.write_journal(tmp_path / "x.journal.jsonl")
    server = story.write_journal(tmp_path / "x.server.journal.jsonl")
    story.write_journal(tmp_path / "y.journal.jsonl")
    assert find_journals(plain) == find_journals(packed) == [journal, server]
    server.unlink()
    assert [t.wr.wr_id for t in rocekit.analyze(plain).transfers if t.wr] == [1, 2]


def test_given_journals_replace_those_beside_the_capture_and_an_empty_list_means_none(tmp_path: Path) -> None:
    story = Story(FULL)
    capture = story.write(tmp_path / "x.pcapng")
    (tmp_path / "x.journal.jsonl").write_text("not a journal\n")
    elsewhere = story.write_journal(tmp_path / "elsewhere.jsonl")
    assert rocekit.analyze(capture, journals=[]).journal is None
    given = rocekit.analyze(capture, journals=[elsewhere]).journal
    assert given is not None
    assert given.unmatched == []


def test_a_bad_line_of_a_journal_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    story = Story(FULL)
    journal = story.write_journal(tmp_path / "story.journal.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:4], '{"event": "wr_posted"}', *lines[4:], ""]))
    analysis = rocekit.analyze(story.write(tmp_path / "story.pcapng"))
    (problem,) = analysis.journal_problems
    assert "story.journal.jsonl" in problem
    assert "line 5" in problem
    assert [t.wr.wr_id for t in analysis.transfers if t.wr] == [1, 2]


def test_what_cannot_be_read_is_an_error_of_its_kind(tmp_path: Path) -> None:
    capture = Story(FULL).write(tmp_path / "x.pcapng")
    with pytest.raises(CaptureError):
        rocekit.analyze(tmp_path / "missing.pcap")
    with pytest.raises(JournalError):
        rocekit.analyze(capture, journals=[tmp_path / "missing.jsonl"])
    with pytest.raises(ValueError, match="no capture"):
        rocekit.analyze()


def test_an_incomplete_capture_is_analysed_up_to_its_end(tmp_path: Path) -> None:
    path = Story(FULL).write(tmp_path / "x.pcapng")
    path.write_bytes(path.read_bytes()[:-50])
    analysis = rocekit.analyze(path)
    assert len(analysis.capture.damage) == 1
    assert analysis.transfers[0].status == "acked"


# ---------------------------------------------------------------------- captures made by others

Facts = dict[tuple[str, str], int]
OTHERS: dict[str, tuple[int, int, Facts]] = {
    "rping.pcap": (65, 65, {("RC", "SEND"): 20, ("RC", "READ"): 5, ("RC", "WRITE"): 5}),
    "rdma_cm.pcap": (96, 96, {("RC", "SEND"): 32, ("RC", "WRITE"): 5}),
    "rdma_write_bw.pcap": (60, 20, {("RC", "WRITE"): 5}),
    "rdma_read_bw.pcap": (60, 20, {("RC", "READ"): 5}),
    "rdma_read_lat.pcap": (38, 10, {("RC", "READ"): 5}),
    "rdma_send_bw.pcap": (50, 20, {("RC", "SEND"): 5}),
    "rdma_write_lat.pcap": (45, 20, {("RC", "WRITE"): 10}),
    "rdma_atomic_bw.pcap": (48, 10, {("RC", "FETCH_ADD"): 5}),
    "pingpong_rc.pcap": (31, 20, {("RC", "SEND"): 10}),
    "pingpong_uc.pcap": (21, 10, {("UC", "SEND"): 10}),
    "pingpong_ud.pcap": (21, 10, {("UD", "SEND"): 10}),
}
#: Packets of each transfer, where it is known.
PACKETS = {"rdma_write_bw.pcap": 3, "rdma_read_bw.pcap": 3, "rdma_read_lat.pcap": 1, "rdma_send_bw.pcap": 3}
CM = {
    "rping.pcap": {"REQ": 1, "REP": 1, "RTU": 1, "DREQ": 1, "DREP": 1},
    "rdma_cm.pcap": {"REQ": 2, "REP": 2, "RTU": 2},
}


@pytest.mark.parametrize("name", OTHERS)
def test_captures_made_by_others_contain_what_is_known_of_them(others: Path, name: str) -> None:
    frames, packets, wanted = OTHERS[name]
    analysis = rocekit.analyze(others / name)
    check_contract(json.loads(json.dumps(analysis.to_dict())))
    counts = analysis.capture.counts
    assert (counts.frames, counts.roce_packets) == (frames, packets)
    assert Counter((t.connection.transport, t.operation) for t in analysis.transfers) == wanted
    done = {"RC": "acked", "UC": "sent", "UD": "sent"}
    assert all(t.status == done[t.connection.transport] for t in analysis.transfers)
    assert all(t.retransmitted_packets == 0 and not t.events for t in analysis.transfers)
    assert (
        counts.bad_icrc == counts.unchecked_icrc == counts.malformed_packets == counts.truncated_packets == 0
    )
    assert [f.rule for f in analysis.findings if f.severity != "info"] == []
    if name in PACKETS:
        assert {t.packets for t in analysis.transfers} == {PACKETS[name]}
    if name in CM:
        messages = Counter(r.message for r in analysis.cm)
        assert {m: messages[m] for m in CM[name]} == CM[name]
        assert {c.paired_by for c in analysis.connections} == {"cm"}
        assert all(r.connection is not None for r in analysis.cm)


@pytest.mark.parametrize("name", ["rdma_write_lat.pcap", "pingpong_rc.pcap"])
def test_latency_tests_transfer_as_often_each_way(others: Path, name: str) -> None:
    sides = Counter(t.side for t in rocekit.analyze(others / name).transfers)
    assert sides == {0: 5, 1: 5}


def test_writes_of_several_packets_beside_connection_management(others: Path) -> None:
    analysis = rocekit.analyze(others / "rdma_cm.pcap")
    assert len(analysis.connections) == 2
    assert all(t.packets > 1 for t in analysis.transfers.where(operation="WRITE"))
    assert Counter(r.message for r in analysis.cm)["DREQ"] >= 2


def test_rping_repeats_its_six_transfers_five_times(others: Path) -> None:
    analysis = rocekit.analyze(others / "rping.pcap")
    one = ["SEND", "READ", "SEND", "SEND", "WRITE", "SEND"]
    begun = [t.operation for t in sorted(analysis.transfers, key=lambda t: t.first_ns)]
    assert begun == one * 5


@pytest.mark.parametrize("node", [0, 1, 2])
def test_the_qps_of_a_ring_that_start_at_psn_zero_are_paired_at_each_host(others: Path, node: int) -> None:
    analysis = rocekit.analyze(others / f"nccl_ring_node{node}.pcap")
    assert analysis.capture.counts.roce_packets == 184
    assert {c.paired_by for c in analysis.connections} == {"psn"}
    assert all(c.qpns[0] is not None and c.qpns[1] is not None for c in analysis.connections)
    assert {t.operation for t in analysis.transfers} == {"WRITE"}
    assert {t.status for t in analysis.transfers} == {"acked"}
    assert any(t.bytes == 0 for t in analysis.transfers)
    assert any(t.immediate is not None for t in analysis.transfers)
    assert [f.rule for f in analysis.findings if f.severity != "info"] == []


# ---------------------------------------------------------------------- interrupted, or not readable twice


def test_an_analysis_that_is_stopped_has_what_was_read_and_is_marked_as_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=200_000), snaplen=128)
    whole = rocekit.analyze(path)
    batches = 0

    def stop() -> bool:
        nonlocal batches
        batches += 1
        return batches == 1

    part = rocekit.analyze(path, stop=stop)
    assert part.capture.interrupted
    assert not whole.capture.interrupted
    assert 0 < part.capture.counts.frames < whole.capture.counts.frames
    assert not part.capture.damage


def test_packets_of_standard_input_cannot_be_read_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = Story().connect(5, 900).lines(FULL).write(tmp_path / "x.pcapng")
    with path.open("rb") as file:
        monkeypatch.setattr("sys.stdin", file)
        analysis = rocekit.analyze("-")
    assert analysis.transfers
    with pytest.raises(ValueError, match="standard input"):
        _ = analysis.packets


def test_a_capture_of_nothing_but_one_impossible_packet_has_no_roce(pcaps: Path, tmp_path: Path) -> None:
    """One packet, whose transport header has a version that does not exist, with a wrong ICRC."""
    data = bytearray((pcaps / "rping-clean.pcap").read_bytes())
    length = int.from_bytes(data[32:36], "little")
    data[24 + 16 + 14 + 20 + 8 + 1] |= 0x0F
    path = tmp_path / "x.pcap"
    path.write_bytes(data[: 40 + length])
    analysis = rocekit.analyze(path)
    counts = analysis.capture.counts
    assert (counts.malformed_packets, counts.roce_packets, counts.bad_icrc) == (0, 0, 0)
    assert counts.others == {"UDP port 4791, not RoCE": 1}
    assert not analysis.connections
    assert not analysis.findings
