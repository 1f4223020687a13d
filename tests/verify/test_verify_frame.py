"""One frame as tshark shows all of it, rocekit's values beside; and an analysis's packets as pyshark's."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from handmade import Net, batch_of, ethernet, transport
from places import PCAPS

import rocekit
from rocekit.capture import open_capture
from rocekit.commands.verify import command, frame_text
from rocekit.errors import CaptureError, RocekitError
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.verify import verify
from rocekit.verify.captured import CapturedPackets
from rocekit.verify.frame import compare_frame
from rocekit.verify.pdml import frame_filters
from rocekit.wire import OPCODE_NAMES

pytestmark = pytest.mark.usefixtures("tshark")
pytest.importorskip("pyshark")

LOSS = PCAPS / "ping-write-loss-behind.pcap"


def made(tmp_path: Path, *frames: bytes) -> Path:
    path = tmp_path / "made.pcapng"
    with PcapngWriter(path) as writer:
        writer.write_batch(batch_of(list(frames)))
    return path


@pytest.mark.parametrize("name", ["rping-clean.pcap", "ping-sr-ipv6-clean.pcap", "atomic-clean.pcap"])
def test_a_frame_compares_the_values_that_the_whole_comparison_does(name: str, tmp_path: Path) -> None:
    """Both ask tshark in different ways: its fields as a table, and its tree."""
    with open_capture(PCAPS / name) as reader:
        frames = [bytes(frame) for batch in reader for frame in batch.frames()]
    for frame in (1, 4, 7):
        whole, tree = verify(made(tmp_path, frames[frame - 1])), compare_frame(PCAPS / name, frame)
        assert tree.comparison.values == whole.values > 15
        assert (tree.comparison.total, tree.comparison.explained) == (whole.total, whole.explained) == (0, {})
        beside = [one for line in tree.lines for one in line.ours]
        assert len(beside) == whole.values
        assert all(one.agrees for one in beside)


def test_each_line_that_tshark_shows_is_there() -> None:
    shown = subprocess.run(
        ["tshark", "-n", "-r", LOSS, "-Y", "frame.number==25", "-V"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    theirs = [line.strip() for line in shown.splitlines() if line.strip()]
    ours = {line.text for line in compare_frame(LOSS, 25).lines}
    # -V shortens what stands in brackets, and PDML says of generated fields nothing else.
    missing = [line for line in theirs if line not in ours and not line.startswith("[")]
    assert missing == []
    assert len(theirs) > 50


def test_a_difference_is_marked_beside_tsharks_line(tmp_path: Path) -> None:
    """tshark reads an opcode of the XRC transport as another's."""
    body = transport(OPCODE_NAMES["XRC_SEND_ONLY"], b"abcd", dest_qpn=17, psn=41, xrc_srqn=5)
    done = CliRunner().invoke(command, [str(made(tmp_path, ethernet(Net().wrap(body)))), "--frame", "1"])
    assert done.exit_code == 0, done.output
    assert "≠" in done.output
    assert "tshark takes XRC opcodes for others" in done.output
    assert "no disagreement" in done.output


def test_a_frame_that_is_no_roce_packet_is_shown_and_said_to_be_none(tmp_path: Path) -> None:
    path = made(tmp_path, ethernet(bytes(40), 0x88B5))
    done = CliRunner().invoke(command, [str(path), "--frame", "1"])
    assert done.exit_code == 0
    assert "Ethernet II" in done.output
    assert "rocekit: no RoCE packet" in done.output


def test_on_a_narrow_terminal_a_value_stands_beside_its_line_or_below_it() -> None:
    lines = click.unstyle(frame_text(compare_frame(LOSS, 25), 80)).splitlines()
    assert max(map(len, lines)) <= 80
    column = lines[1].index("rocekit")
    beside = [line for line in lines if " = ip_id " in line or " = opcode " in line]
    assert [line.index("=", column - 1) for line in beside] == [column, column]
    assert lines[lines.index(beside[1]) - 1].strip() == "Opcode: Reliable Connection (RC) - Acknowledge (17)"


def test_a_frame_that_is_not_there_is_an_error_that_says_how_many_there_are() -> None:
    with pytest.raises(RocekitError, match="no frame 1000: there are 236"):
        compare_frame(LOSS, 1000)


def test_json_has_the_tree_and_rocekits_values() -> None:
    done = CliRunner().invoke(command, [str(LOSS), "--frame", "25", "--format", "json"])
    document = json.loads(done.output)
    psn = next(line for line in document["tree"] if line["field"] == "infiniband.bth.psn")
    assert [(one["name"], one["value"], one["agrees"]) for one in psn["ours"]] == [("psn", 16688311, True)]
    assert document["disagreements"] == 0
    assert document["not_compared"]["icrc_state"] == "valid"


def test_chosen_packets_are_pysharks_with_their_story() -> None:
    a = rocekit.analyze(LOSS)
    naks = list(a.packets.where("AETH and syndrome >= 0x60").pyshark())
    assert [int(p.number) for p in naks] == [25, 48, 71, 123, 146, 198, 221]
    assert [int(p.infiniband.bth_psn) for p in naks][:2] == [16688311, 16688321]
    assert {p.rocekit.role for p in naks} == {"nak"}
    assert {p.rocekit.finding.rule for p in naks} == {"loss"}
    assert naks[-2].rocekit.transfer is a.transfers[16]
    again = list(a.packets.where("frame in (199, 200)").pyshark())
    assert [(p.rocekit.round, p.rocekit.cause, p.rocekit.transfer.id) for p in again] == [(2, "nak", 16)] * 2


def test_every_packet_has_the_psn_that_pyshark_reads() -> None:
    packets = rocekit.analyze(PCAPS / "ping-read-loss.pcap").packets
    read = list(packets.pyshark())
    assert [int(p.infiniband.bth_psn) for p in read] == packets.psn.tolist()
    assert [int(p.number) for p in read] == packets.frame.tolist()


def test_packets_of_several_captures_name_their_file(tmp_path: Path) -> None:
    other = tmp_path / "second.pcap"
    shutil.copy(LOSS, other)
    packets = rocekit.analyze(LOSS, other).packets
    read = [p.rocekit.frame for p in packets.where("frame == 25").pyshark()]
    assert read == ["0:25", "1:25"]


def test_it_works_where_an_event_loop_runs() -> None:
    """As in a notebook, where pyshark's own captures fail."""

    async def cell() -> list[int]:
        return [int(p.number) for p in rocekit.analyze(LOSS).packets.where("frame == 25").pyshark()]

    assert asyncio.run(cell()) == [25]


def test_a_capture_that_tshark_reads_only_in_part_raises(tmp_path: Path) -> None:
    part = tmp_path / "part.pcap"
    part.write_bytes(LOSS.read_bytes())
    packets = rocekit.analyze(part).packets
    part.write_bytes(LOSS.read_bytes()[:20_000])
    assert isinstance(packets, CapturedPackets)
    with pytest.raises(CaptureError, match="tshark gave"):
        list(packets.pyshark())


def test_many_frames_are_asked_for_in_words_that_linux_takes() -> None:
    every = list(range(1, 300_000, 2))
    filters = list(frame_filters(every))
    assert max(len(words) for words, _ in filters) < 128 * 1024
    assert sum(words.count(",") + 1 for words, _ in filters) == len(every)
    assert filters[-1][1] == every[-1]
    assert list(frame_filters([1, 2, 3, 7])) == [("frame.number in {1..3,7}", 7)]
