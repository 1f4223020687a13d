"""`rocekit annotate`: tshark shows what each packet is, and nothing else of the capture changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from story import Story
from tcp_segment import tcp_frame
from two_points import both_ends

import rocekit
from rocekit import cli
from rocekit.capture import open_capture
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.report.annotate import annotate

LOSS = """
a RC_SEND_ONLY 5 64
a RC_SEND_ONLY 6 64  # lost on its way to B
a RC_SEND_ONLY 7 64
b NAK 6
a RC_SEND_ONLY 6 64
a RC_SEND_ONLY 7 64
b ACK 7
"""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli.rocekit, ["annotate", *map(str, args)])


def error(result: Result) -> str:
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("rocekit: error: ")


def comments(tshark: str, path: Path) -> dict[int, list[str]]:
    """Each frame's comments as tshark reads them."""
    out = subprocess.run(
        [tshark, "-r", str(path), "-T", "json", "-e", "frame.number", "-e", "frame.comment"],
        capture_output=True,
        check=True,
        timeout=120,
    ).stdout
    layers = [packet["_source"]["layers"] for packet in json.loads(out)]
    return {int(layer["frame.number"][0]): layer.get("frame.comment", []) for layer in layers}


def test_tshark_shows_what_each_packet_is_and_the_findings_that_name_it(tshark: str, tmp_path: Path) -> None:
    story = Story("A created\nA modified state=RTS dest_qpn=0x12 sq_psn=5")
    story.lines("A wr 1 SEND 64\nA wr 2 SEND 64\nA wr 3 SEND 64").lines(LOSS)
    story.write_journal(tmp_path / "x.journal.jsonl")
    source, out = story.write(tmp_path / "x.pcapng"), tmp_path / "out.pcapng"
    result = run(source, out)
    assert result.exit_code == 0, result.stderr
    said = comments(tshark, out)
    assert (
        said[5][0]
        == "WR 2 (transfer 1), PSN 6 again (2nd), after the NAK (frame 4); SEND of 64 bytes, connection 0"
    )
    assert said[7][0].startswith("ACK to PSN 7, completes ")
    (finding,) = (f for f in rocekit.analyze(source).findings if f.rule == "loss")
    named = [frame for frame, texts in said.items() if f"warning: loss: {finding.title}" in texts]
    assert sorted(finding.frames) == named


def test_frames_times_and_the_comments_it_had_are_kept(tshark: str, tmp_path: Path) -> None:
    story = Story("a RC_SEND_ONLY 5 64")
    source, out = tmp_path / "x.pcapng", tmp_path / "out.pcapng"
    other = bytes(12) + b"\x08\x06" + bytes(40)
    with PcapngWriter(source) as writer:
        writer.write(story.shots[0].data, 1_700_000_000_123_456_789, comment="seen at night")
        writer.write(other, 1_700_000_001_000_000_001, wirelen=1500)
    assert run(source, out).exit_code == 0
    with open_capture(source) as one, open_capture(out) as two:
        (a,), (b,) = list(one), list(two)
        assert list(a.frames()) == list(b.frames())
        for name in ("time_ns", "wirelen", "caplen", "linktype", "number"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
    said = comments(tshark, out)
    assert said[1][0] == "seen at night"
    assert said[1][1].startswith("transfer 0, PSN 5")
    assert said[2] == []


def test_the_exchange_of_qp_numbers_is_told_as_well(tshark: str, tmp_path: Path) -> None:
    text = b"0000:000011:000005:00000000000000000000ffff0a000001\0"
    source = Story().frame(tcp_frame(text)).lines("a RC_SEND_ONLY 5 64").write(tmp_path / "x.pcapng")
    assert run(source, tmp_path / "out.pcapng").exit_code == 0
    said = comments(tshark, tmp_path / "out.pcapng")
    assert said[1] == ["10.0.0.1 announces QP 0x11, first PSN 5"]


def test_findings_of_no_frame_stand_on_the_capture_and_drops_are_told_on(tmp_path: Path) -> None:
    source, out = tmp_path / "x.pcapng", tmp_path / "out.pcapng"
    with PcapngWriter(source) as writer:
        for shot in Story(LOSS).shots:
            writer.write(shot.data, shot.time_ns)
        writer.write_statistics(7, 12)
    assert run(source, out).exit_code == 0
    before, after = rocekit.analyze(source), rocekit.analyze(out)
    assert [f.title for f in after.findings] == [f.title for f in before.findings]
    loose = [f for f in before.findings if not f.frames]
    assert loose
    for finding in loose:
        assert f"{finding.rule}: {finding.title}".encode() in out.read_bytes()[:4096]


@pytest.mark.parametrize("name", ["ping-write-loss.pcapng", "blast-sr-rnr.pcap", "rping-ipv6-clean.pcap"])
def test_what_is_annotated_analyses_to_the_same(pcaps: Path, name: str, tmp_path: Path) -> None:
    analysis = rocekit.analyze(pcaps / name, journals=())
    (done,) = annotate(analysis, tmp_path / "out.pcapng")
    again = rocekit.analyze(tmp_path / "out.pcapng")
    assert done.frames == done.described == analysis.capture.counts.frames
    assert again.transfers.to_dicts() == analysis.transfers.to_dicts()
    assert again.findings.to_dicts() == analysis.findings.to_dicts()


def two_places(folder: Path) -> list[Path]:
    """A loss on the way from A to B, captured at both ends; B's clock is 5 ms ahead."""
    story = Story(LOSS.replace("b NAK 6", "+20us\nb NAK 6\n+20us").replace("b ACK", "+20us\nb ACK"))
    shots = both_ends(story, flight_ns=2_000, ahead_ns=5_000_000)
    paths = []
    for name, seen, lost in (("client", shots[0], None), ("server", shots[1], 1)):
        story = Story()
        story.shots = [shot for i, shot in enumerate(seen) if i != lost]
        paths.append(story.write(folder / f"{name}.pcapng"))
    return paths


def test_two_captures_of_one_traffic_tell_its_story_each(tshark: str, tmp_path: Path) -> None:
    client, server = two_places(tmp_path)
    result = run(client, server, tmp_path / "told")
    assert result.exit_code == 0, result.stderr
    at_a = comments(tshark, tmp_path / "told" / "client.pcapng")
    at_b = comments(tshark, tmp_path / "told" / "server.pcapng")
    assert (len(at_a), len(at_b)) == (7, 6)
    assert at_a[1][0].endswith("connection 0; frame 1 of server.pcapng, 2 µs later")
    assert at_a[2][0].endswith("connection 0; not in server.pcapng")
    assert "PSN 6 again (2nd), after the NAK (frame 4);" in at_a[5][0]
    # The same packet in the other capture, by the other's frame numbers.
    assert "PSN 6 again (2nd), after the NAK (frame 3);" in at_b[4][0]
    assert at_b[4][0].endswith("frame 5 of client.pcapng, 2 µs earlier")
    assert at_a[4][0].endswith("frame 3 of server.pcapng, 2 µs earlier")
    named = [{n for n, texts in at.items() if any(": loss: " in t for t in texts)} for at in (at_a, at_b)]
    assert {4, 5} <= named[0]  # the NAK, and what it made A send again
    assert named[1] == {n - 1 for n in named[0]}  # the server's lack one in front of them
    for source in (client, server):
        with open_capture(source) as before, open_capture(tmp_path / "told" / source.name) as after:
            assert [f for b in after for f in b.frames()] == [f for b in before for f in b.frames()]


def test_several_captures_are_written_to_a_folder_one_file_each(tmp_path: Path) -> None:
    client, server = two_places(tmp_path)
    assert "each to a file of its own; name a folder" in error(run(client, server, tmp_path / "out.pcapng"))
    (tmp_path / "taken").touch()
    assert "name a folder for them" in error(run(client, server, tmp_path / "taken"))
    assert "name a folder for them" in error(run(client, server, "-"))
    assert "there is no folder" in error(run(client, server, tmp_path / "no" / "out"))
    assert "this is the file that is read" in error(run(client, server, tmp_path))
    assert "twice, which is not possible with standard input" in error(run(client, "-", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    same = [client.rename(tmp_path / "a" / "x.pcapng"), server.rename(tmp_path / "b" / "x.pcapng")]
    assert run(*same, tmp_path / "out").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x-1.pcapng", "x-2.pcapng"]


def test_wrong_use_is_said_in_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    source = Story(LOSS).write(tmp_path / "x.pcapng")
    before = source.read_bytes()
    assert "this is the file that is read" in error(run(source, source))
    assert source.read_bytes() == before
    assert "there is no folder" in error(run(source, tmp_path / "no" / "out.pcapng"))
    assert "this is a folder" in error(run(source, tmp_path))
    assert "there is no such file" in error(run(tmp_path / "absent", tmp_path / "out"))
    assert "twice, which is not possible with standard input" in error(run("-", tmp_path / "out"))
    empty = tmp_path / "empty.pcapng"
    PcapngWriter(empty).close()
    assert "No RoCE v2 packets: nothing to annotate." in error(run(empty, tmp_path / "out"))
    nothing = tmp_path / "nothing"
    nothing.touch()
    assert "the file is empty" in error(run(nothing, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [("annotate", "{}", "-"), ("slice", "{}", "-", "--redact")])
def test_standard_output_takes_the_capture_and_says_when_it_is_full(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    source = Story(LOSS).write(tmp_path / "x.pcapng")
    program = "from rocekit.cli import main\nmain()"
    words = [sys.executable, "-c", program, *(word.replace("{}", str(source)) for word in command)]
    done = subprocess.run(words, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    (tmp_path / "out.pcapng").write_bytes(done.stdout)
    with open_capture(tmp_path / "out.pcapng") as reader:
        assert sum(len(batch) for batch in reader) == 7
    assert not (tmp_path / "-").exists()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "rocekit: error: standard output: cannot be written: No space left on device\n"
    )


def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    assert "No space left on device" in error(run(Story(LOSS).write(tmp_path / "x.pcapng"), full))
