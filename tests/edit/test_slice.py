"""`rocekit slice`: what is cut out is the whole story, nothing but it, and tells the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from story import Story
from tcp_segment import tcp_frame
from two_points import seen_at

import rocekit
from rocekit import cli
from rocekit.analysis import Analysis
from rocekit.capture import open_capture
from rocekit.edit.slice import Choice, Cut, cut
from rocekit.files.frame_names import FRAME_BITS, FRAME_MASK
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import JournalWriter, read_journal

TWO = {"cd": (("10.0.0.3", 0x13), ("10.0.0.4", 0x14))}
ARP = b"\xff" * 6 + b"\x9a\x01\x02\x03\x04\x05\x08\x06" + bytes(46)


def run(*args: str | Path | int) -> Result:
    return CliRunner().invoke(cli.rocekit, ["slice", *map(str, args)])


def error(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1].removeprefix("rocekit: error: ").removeprefix("Error: ")


def sliced(source: Path, folder: Path, **choice: Any) -> tuple[Analysis, Analysis, Cut]:
    analysis = rocekit.analyze(source)
    done = cut(analysis, [folder / "out.pcapng"], Choice(**choice))
    return analysis, rocekit.analyze(folder / "out.pcapng"), done


def frames(path: Path) -> list[bytes]:
    with open_capture(path) as reader:
        return [frame for batch in reader for frame in batch.frames()]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two connections whose packets lie between one another, and an ARP frame."""
    story = Story(others=TWO).connect(5, 500).connect(70, 700, who="c", comm_id=9).frame(ARP)
    story.lines("a RC_SEND_ONLY 5 64\nc RC_SEND_ONLY 70 64\nb ACK 5\nd ACK 70")
    story.lines(
        "a RC_SEND_ONLY 6 64\nc RC_SEND_ONLY 71 64\nd NAK 71\nb ACK 6\nc RC_SEND_ONLY 71 64\nd ACK 71"
    )
    return story.write(tmp_path / "x.pcapng")


def test_a_connection_goes_with_its_cm_messages_and_without_strangers(two: Path, tmp_path: Path) -> None:
    analysis, again, done = sliced(two, tmp_path, connections=(1,))
    assert done.slices[0].sources == [4, 5, 6, 9, 11, 13, 14, 16, 17]
    assert frames(tmp_path / "out.pcapng") == [frames(two)[n - 1] for n in done.slices[0].sources]
    assert [c.qpns for c in again.connections] == [[0x13, 0x14]]
    assert [r.message for r in again.cm] == ["REQ", "REP", "RTU"]
    assert done.slices[0].left_out == 1
    before = [t.to_dict() for t in analysis.transfers if t.connection.id == 1]
    for old, new in zip(before, again.transfers.to_dicts(), strict=True):
        changed = ("id", "connection", "frames")
        assert {k: v for k, v in new.items() if k not in changed} == {
            k: v for k, v in old.items() if k not in changed
        }


def test_a_transfer_tells_the_same_story_with_its_journal(pcaps: Path, tmp_path: Path) -> None:
    analysis, again, done = sliced(pcaps / "ping-write-loss-behind.pcap", tmp_path, transfers=(16,))
    assert len(again.transfers) == 1
    then, now = analysis.explain(16), again.explain(0)
    assert [(s.time_ns, s.what) for s in now.steps] == [(s.time_ns, s.what) for s in then.steps]
    assert now.timing == then.timing
    assert [f.rule for f in now.findings] == ["loss"]
    assert again.transfers[0].wr is not None
    assert again.transfers[0].wr.matched_by == "psn"
    assert done.journal == tmp_path / "out.journal.jsonl"
    posted = read_journal(done.journal).of("wr_posted")
    assert [event["wr_id"] for event in posted] == [8]


@pytest.mark.parametrize(
    ("name", "number"),
    [("blast-sr-rnr.pcap", 6), ("ping-read-response-loss.pcap", 5), ("atomic-response-loss.pcap", 9)],
)
def test_what_made_a_transfer_repeat_goes_with_it(
    pcaps: Path, name: str, number: int, tmp_path: Path
) -> None:
    analysis, again, _ = sliced(pcaps / name, tmp_path, transfers=(number,))
    transfer = analysis.transfers[number]
    (same,) = (t for t in again.transfers if t.first_psn == transfer.first_psn and t.side == transfer.side)
    assert same.status == transfer.status
    assert same.retransmitted_packets == transfer.retransmitted_packets
    assert (same.naks, same.rnr_naks) == (transfer.naks, transfer.rnr_naks)


@pytest.mark.parametrize("name", ["blast-sr-rnr.pcap", "ping-write-loss.pcapng", "blast-sr-corruption.pcap"])
def test_a_finding_is_found_again_in_its_slice(pcaps: Path, name: str, tmp_path: Path) -> None:
    for rule in dict.fromkeys(f.rule for f in rocekit.analyze(pcaps / name).findings):
        analysis, again, _ = sliced(pcaps / name, tmp_path, findings=(rule,))
        assert [f.title for f in again.findings.where(rule=rule)] == [
            f.title for f in analysis.findings.where(rule=rule)
        ]


def test_of_two_connections_a_finding_takes_its_own(two: Path, tmp_path: Path) -> None:
    analysis, again, _ = sliced(two, tmp_path, findings=("loss",))
    assert [c.qpns for c in again.connections] == [[0x13, 0x14]]
    assert [f.title for f in again.findings] == [f.title for f in analysis.findings.where(rule="loss")]


def test_times_limit_what_is_taken_on_both_ends(two: Path, tmp_path: Path) -> None:
    first = rocekit.analyze(two).capture.first_ns
    assert first is not None
    source = frames(two)
    for begin, end in (
        ("9us", "12us"),
        ("0.000009", "0.000012"),
        ("2023-11-14T22:13:20.000009", "0.000012s"),
    ):
        result = run(two, tmp_path / "out.pcapng", "--from", begin, "--to", end, "--connection", "0")
        assert result.exit_code == 0, result.stderr
        # Frames 10 to 13 lie in that time; 11 and 13 are the other connection's. Its CM messages come along.
        assert frames(tmp_path / "out.pcapng") == [source[n - 1] for n in (1, 2, 3, 10, 12)]


def test_the_exchange_of_qp_numbers_over_tcp_goes_with_its_connection(tmp_path: Path) -> None:
    here = b"0000:000011:000005:00000000000000000000ffff0a000001\0"
    there = b"0000:000012:0001f4:00000000000000000000ffff0a000002\0"
    stranger = b"0000:000099:0001f4:00000000000000000000ffff0a000009\0"
    story = Story(others=TWO)
    other = bytearray(tcp_frame(stranger))
    other[34:36] = b"\x12\x34"  # of another TCP connection
    story.frame(bytes(other)).frame(tcp_frame(here))
    reply = bytearray(tcp_frame(there))
    reply[26:34] = reply[30:34] + reply[26:30]
    reply[34:38] = reply[36:38] + reply[34:36]
    story.frame(bytes(reply)).lines("a UC_SEND_ONLY 5 64\nc RC_SEND_ONLY 7 64\nb UC_SEND_ONLY 500 64")
    source = story.write(tmp_path / "x.pcapng")
    analysis = rocekit.analyze(source)
    (number,) = (c.id for c in analysis.connections if c.paired_by == "handshake")
    done = cut(analysis, [tmp_path / "out.pcapng"], Choice(connections=(number,)))
    assert done.slices[0].sources == [2, 3, 4, 6]
    assert [c.paired_by for c in rocekit.analyze(tmp_path / "out.pcapng").connections] == ["handshake"]


def test_pauses_of_its_time_go_with_a_story(tmp_path: Path) -> None:
    pause = bytes.fromhex("0180c2000001 9a0102030405 8808 0001 ffff") + bytes(42)
    story = Story().frame(pause).lines("a RC_SEND_ONLY 5 64").frame(pause).lines("b ACK 5").frame(pause)
    source = story.write(tmp_path / "x.pcapng")
    _, again, done = sliced(source, tmp_path, connections=(0,))
    assert done.slices[0].sources == [2, 3, 4]
    assert again.capture.counts.pause_frames == 1


def test_without_payload_headers_and_wire_lengths_stay(tshark: str, pcaps: Path, tmp_path: Path) -> None:
    source, out = pcaps / "blast-sr-corruption.pcap", tmp_path / "out.pcapng"
    result = run(source, out, "--headers-only")
    assert result.exit_code == 0, result.stderr
    analysis, again = rocekit.analyze(source), rocekit.analyze(out)
    with open_capture(source) as one, open_capture(out) as two:
        lengths = [[n for batch in reader for n in batch.wirelen.tolist()] for reader in (one, two)]
    assert lengths[0] == lengths[1]
    assert all(a.startswith(b) for a, b in zip(frames(source), frames(out), strict=True))
    assert len(frames(out)[10]) < len(frames(source)[10])
    packets, cut_ = analysis.packets, again.packets
    for name in ("psn", "opcode", "dest_qpn", "payload_length", "syndrome", "rkey"):
        assert cut_[name].tolist() == packets[name].tolist()
    assert not any(cut_.payload(i) for i in range(len(cut_)) if cut_.has_payload and cut_.dest_qpn[i] > 1)
    wrong = [int(n) for n in packets.where(packets.icrc_state == 1).frame]
    shown = subprocess.run(
        [tshark, "-r", str(out), "-T", "fields", "-e", "frame.number",
         "-Y", 'frame.comment contains "ICRC"'],
        capture_output=True, text=True, check=True, timeout=240,
    ).stdout.split()  # fmt: skip
    assert [int(n) for n in shown] == wrong
    assert f"comments on {len(wrong)} whose ICRC was wrong" in result.stdout


def test_redacted_and_without_payload_nothing_of_the_hosts_is_left(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    result = run(pcaps / "ping-write-loss.pcapng", out, "--transfer", 3, "--redact", "--headers-only")
    assert result.exit_code == 0, result.stderr
    data = out.read_bytes() + (tmp_path / "out.journal.jsonl").read_bytes()
    assert b"10.9.0." not in data
    assert bytes((10, 9, 0, 1)) not in data
    assert [c.ips for c in rocekit.analyze(out).connections] == [["198.18.0.1", "198.18.0.2"]]


def test_comments_stay_unless_it_is_redacted(tmp_path: Path) -> None:
    source, out = tmp_path / "x.pcapng", tmp_path / "out.pcapng"
    with PcapngWriter(source) as writer:
        for shot in Story("a RC_SEND_ONLY 5 64\nb ACK 5").shots:
            writer.write(shot.data, shot.time_ns, comment="on alices-laptop")
    assert run(source, out, "--connection", 0).exit_code == 0
    assert out.read_bytes().count(b"on alices-laptop") == 2
    assert run(source, out, "--redact").exit_code == 0
    assert b"alice" not in out.read_bytes()


@pytest.mark.parametrize("options", [(), ("--redact",), ("--headers-only",)])
def test_two_captures_of_one_traffic_are_cut_alike(options: tuple[str, ...], tmp_path: Path) -> None:
    """The loss stays where it was: between the two capture points, of which one has the packet."""
    story = Story("A created\nA modified state=RTS dest_qpn=0x12 sq_psn=5", others=TWO)
    story.lines("A wr 1 SEND 64\nA wr 2 SEND 64\nA wr 3 SEND 64\nc RC_SEND_ONLY 70 64\nd ACK 70")
    story.lines("a RC_SEND_ONLY 5 64\na RC_SEND_ONLY 6 64\na RC_SEND_ONLY 7 64\n+20us\nb NAK 6\n+20us")
    story.lines("a RC_SEND_ONLY 6 64\na RC_SEND_ONLY 7 64\n+20us\nb ACK 7\nA wc 3 SUCCESS")
    story.write_journal(tmp_path / "client.journal.jsonl")
    everyone = {end.ip: 0 for end in story.ends.values()}
    at_a = seen_at(story.shots, everyone | {"10.0.0.2": 2_000})
    at_b = seen_at(story.shots, everyone | {"10.0.0.1": 2_000}, 5_000_000)
    del at_b[3]  # PSN 6, the first time
    for name, shots in (("client", at_a), ("server", at_b)):
        part = Story()
        part.shots = shots
        part.write(tmp_path / f"{name}.pcapng")
    sources = [tmp_path / "client.pcapng", tmp_path / "server.pcapng"]
    before = rocekit.analyze(*sources)
    (loss,) = [f for f in before.findings if f.rule == "loss"]
    assert loss.connection is not None
    result = run(*sources, tmp_path / "ticket", "--connection", loss.connection.id, *options)
    assert result.exit_code == 0, result.stderr
    told = [tmp_path / "ticket" / source.name for source in sources]
    assert [len(frames(path)) for path in told] == [7, 6]
    assert sorted(path.name for path in (tmp_path / "ticket").iterdir()) == [
        *("client.journal.jsonl", "client.pcapng", "server.pcapng")
    ]
    after = rocekit.analyze(*told)
    (again,) = [f for f in after.findings if f.rule == "loss"]
    assert before.capture.alignments[1].offset_ns == after.capture.alignments[1].offset_ns
    # Frames begin anew: the strangers' two packets stood in front.
    assert [(n >> FRAME_BITS, n & FRAME_MASK) for n in again.frames] == [
        (n >> FRAME_BITS, (n & FRAME_MASK) - 2) for n in loss.frames
    ]
    (place,), (was,) = again.evidence["places"], loss.evidence["places"]
    assert {k: v for k, v in place.items() if k != "frames"} == {
        k: v for k, v in was.items() if k != "frames"
    }
    assert [t.wr is not None for t in after.transfers] == [True, True, True]
    if "--redact" in options:
        assert b"\x0a\x00\x00\x01" not in b"".join(path.read_bytes() for path in told)


def test_a_capture_that_shows_nothing_of_a_story_is_left_out(two: Path, tmp_path: Path) -> None:
    other = Story("a RC_SEND_ONLY 5 64\nb ACK 5", a="10.7.0.1", b="10.7.0.2").write(tmp_path / "y.pcapng")
    analysis = rocekit.analyze(two, other)
    (strangers,) = [c.id for c in analysis.connections if "10.7.0.1" in c.ips]
    result = run(two, other, tmp_path / "out", "--connection", strangers)
    assert result.exit_code == 0, result.stderr
    assert f"{two}: nothing to keep" in result.output
    assert frames(tmp_path / "out" / "y.pcapng") == frames(other)
    assert not (tmp_path / "out" / "x.pcapng").exists()


def test_wrong_use_is_said_in_one_line(two: Path, pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pcapng"
    assert "say what to keep" in error(run(two, out), 2)
    assert "no connection 7: there are 2, counted from 0" in error(run(two, out, "--connection", 7))
    assert "no transfer 70: there are 4" in error(run(two, out, "--transfer", 70))
    assert "no finding rnr in this capture: it has loss" in error(run(two, out, "--finding", "rnr"))
    assert "it has no RoCE packets in that part" in error(run(two, out, "--from", "10"))
    assert "'soon' is not a time" in error(run(two, out, "--from", "soon"), 2)
    assert "this is the file that is read" in error(run(two, two, "--redact"))
    assert "there is no folder" in error(run(two, tmp_path / "no" / "x", "--redact"))
    assert "twice, which is not possible with standard input" in error(run("-", out, "--redact"))
    empty = tmp_path / "empty.pcapng"
    PcapngWriter(empty).close()
    assert "No RoCE v2 packets: nothing to cut out." in error(run(empty, out, "--redact"))
    journal = tmp_path / "y.journal.jsonl"
    journal.write_bytes((pcaps / "ping-sr-clean.client.journal.jsonl").read_bytes())
    message = error(run(two, tmp_path / "y.pcapng", "--redact", "--journal", journal))
    assert "y.journal.jsonl: this is the file that is read" in message
    assert not out.exists()


def test_counters_stay_only_with_all_packets(pcaps: Path, tmp_path: Path) -> None:
    """A part of the packets does not make the counters go up so much."""
    source = tmp_path / "x.pcapng"
    source.write_bytes((pcaps / "ping-write-loss.pcapng").read_bytes())
    lines = (pcaps / "ping-write-loss.client.journal.jsonl").read_text()
    host, pid = (json.loads(lines.splitlines()[0])[key] for key in ("host", "pid"))
    with JournalWriter(tmp_path / "x.counters.journal.jsonl", host=host, pid=pid) as writer:
        writer.write("counters", device="rxe0", port=1, hw_counters={"sent_pkts": 1})
    (tmp_path / "x.journal.jsonl").write_text(lines)
    analysis = rocekit.analyze(source)
    for choice, kept in ((Choice(transfers=(0,)), 0), (Choice(), 1)):
        done = cut(analysis, [tmp_path / f"out{kept}.pcapng"], choice)
        assert done.journal is not None
        assert len(read_journal(done.journal).of("counters")) == kept
