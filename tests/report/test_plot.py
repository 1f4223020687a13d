"""Pictures for tickets and papers: of the kind that they are named, and with all that happened in them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from flushed import dead_with_flushed

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.report.collector import Collector
from rocekit.report.ladder import ladder
from rocekit.report.lane_columns import build_lanes

pytest.importorskip("matplotlib", reason="no matplotlib (pip install 'rocekit[plot]')")


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    return result.exit_code, result.output


def words_of(svg: Path) -> str:
    """The text in a picture."""
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text()))


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_a_picture_is_of_the_kind_that_it_is_named(
    pcaps: Path, tmp_path: Path, suffix: str, magic: bytes
) -> None:
    out = tmp_path / f"x.{suffix}"
    code, said = run("plot", pcaps / "blast-sr-rnr.pcap", "-o", out, "--dpi", "50")
    assert (code, said) == (0, f"{out}: connection 0, requests of side a\n")
    assert out.read_bytes().startswith(magic)


def test_all_that_happened_stands_in_the_picture(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    assert run("plot", pcaps / "blast-sr-rnr.pcap", "-o", out)[0] == 0
    words = words_of(out)
    for wanted in (
        *(
            "blast-sr-rnr.pcap · connection 0 RC · requests of 10.9.0.1 QP 0x16 → 10.9.0.2 QP 0x16",
            "4th or later",
        ),
        *("NAK", "RNR NAK (wait shaded)", "acknowledged up to", "WR 9 SEND", "outstanding PSNs"),
        *("ACK round trip", "goodput, each byte once", "11559901"),
    ):
        assert wanted in words


def test_a_timeout_is_written_out(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    assert run("plot", pcaps / "ping-read-response-loss.pcap", "-o", out, "--graph", "psn")[0] == 0
    assert "timeout or missing response 337.0 ms" in words_of(out)
    assert "(4.096 µs × 2^16 = 268.4 ms)" in words_of(out)
    assert "outstanding PSNs" not in words_of(out)


def test_work_requests_that_sent_nothing_are_in_the_picture(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    assert run("plot", pcaps / "wr-list-clean.pcap", "-o", out, "--graph", "psn")[0] == 0
    assert "WR without packets" in words_of(out)
    assert "WR 6 SEND 33,280 bytes, post failed" in words_of(out)
    flushed = dead_with_flushed(pcaps, tmp_path, 300)
    assert run("plot", flushed, "-o", out, "--graph", "psn")[0] == 0
    assert "WR 1000 RDMA_WRITE 2,048 bytes, WR_FLUSH_ERR" in words_of(out)
    assert "WR 1299 RDMA_WRITE 2,048 bytes, WR_FLUSH_ERR and 297 more" in words_of(out)
    assert "2256525" in words_of(out)  # PSNs on the axis are still those of the packets


def test_the_same_capture_gives_the_same_picture(pcaps: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "1.svg", tmp_path / "2.svg"]
    for out in outs:
        assert run("plot", pcaps / "rping-clean.pcap", "--graph", "psn", "-o", out)[0] == 0
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_part_of_the_time_can_be_chosen(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    chosen = ("--graph", "psn", "--from", "182ms", "--to", "184.2ms")
    assert run("plot", pcaps / "ping-write-loss-behind.pcap", *chosen, "-o", out)[0] == 0
    assert "WR 1 RDMA_WRITE" in words_of(out)
    assert "WR 8" not in words_of(out)
    assert run("plot", pcaps / "ping-write-loss-behind.pcap", "--transfer", "16", "-o", out)[0] == 0
    assert "WR 8 RDMA_WRITE" in words_of(out)
    assert "WR 1 " not in words_of(out)


def test_a_ladder_is_drawn(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    code, _ = run("plot", pcaps / "ping-read-response-loss.pcap", "--graph", "ladder", "-o", out)
    assert code == 0
    words = words_of(out)
    for wanted in (
        "READ_REQUEST",
        "not in the capture",
        "287.9 ms without a packet",
        "2nd time",
        "WC polled",
    ):
        assert wanted in words


def test_a_ladder_tells_what_was_lost_and_what_only_turned_away(pcaps: Path) -> None:
    for name, number, lost in (("ping-write-loss-behind.pcap", 16, [16688369]), ("blast-sr-rnr.pcap", 6, [])):
        collector = Collector()
        analysis = rocekit.analyze(pcaps / name, watch=collector)
        transfer = analysis.transfers[number]
        lanes = build_lanes(collector, analysis).lane(2 * transfer.connection.id + transfer.side)
        rungs = ladder(analysis, lanes, transfer)
        assert [r.first_psn for r in rungs if r.lost] == lost
        assert [r.time_ns for r in rungs] == sorted(r.time_ns for r in rungs)
        assert sum(r.count for r in rungs if r.round > 1) == transfer.retransmitted_packets


def test_a_long_ladder_is_folded(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    arguments = ("--packets", "3000", "--size", "1048576", "--pairs", "1", "--one-way", "--snaplen", "128")
    assert run("generate", path, *arguments)[0] == 0
    collector = Collector()
    analysis = rocekit.analyze(path, watch=collector)
    transfer = analysis.transfers[0]
    rungs = ladder(analysis, build_lanes(collector, analysis).lane(transfer.side), transfer)
    assert transfer.packets == 1024
    assert len(rungs) < 10
    assert sum(r.count for r in rungs if not r.ack) == 1024
    assert sum(r.bytes for r in rungs) == transfer.bytes


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-o", "x.jpeg"), 2, "the name must end in .png, .svg or .pdf"),
        (("-o", "x.png", "--connection", "7"), 1, "no connection 7: there are 1, counted from 0"),
        (("-o", "x.png", "--transfer", "99"), 1, "no transfer 99: there are 30, counted from 0"),
        (("-o", "x.png", "--graph", "ladder", "--graph", "psn"), 2, "a ladder cannot be combined"),
        (("-o", "x.png", "--from", "2s", "--to", "1s"), 1, "--from must be before --to"),
        (("-o", "x.png", "--from", "noon"), 2, "is not a time"),
        (("-o", "nowhere/x.png"), 1, "there is no folder nowhere"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_is_wrong(
    pcaps: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    got, said = run("plot", pcaps / "rping-clean.pcap", *arguments)
    assert got == code
    assert words in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_side_that_asked_nothing(pcaps: Path, tmp_path: Path) -> None:
    code, said = run("plot", pcaps / "blast-sr-rnr.pcap", "--side", "b", "-o", tmp_path / "x.png")
    assert (code, said.strip()) == (
        1,
        "rocekit: error: connection 0 has no packets of side b: try the other --side",
    )


def test_an_empty_capture(pcaps: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes((pcaps / "rping-clean.pcap").read_bytes()[:24])
    code, said = run("plot", empty, "-o", tmp_path / "x.png")
    assert code == 1
    assert "empty.pcap: No RoCE v2 packets: nothing to draw. The capture has no frames." in said


def test_a_capture_that_is_cut_behind_its_first_request_is_drawn(pcaps: Path, tmp_path: Path) -> None:
    cut, out = tmp_path / "cut.pcap", tmp_path / "x.svg"
    cut.write_bytes((pcaps / "ping-write-loss-behind.pcap").read_bytes()[:3000])
    said = run("plot", cut, "-o", out)[1]
    assert "nothing between these times" not in said
    assert "10.9.0.1 QP 0x14" in words_of(out)
    assert "payload, " not in words_of(out)  # one packet has no rate
    assert run("plot", pcaps / "ping-write-loss-behind.pcap", "-o", out)[0] == 0
    assert "payload, " in words_of(out)


def test_without_matplotlib_it_says_how_to_get_it(pcaps: Path, tmp_path: Path) -> None:
    arguments = ["plot", str(pcaps / "rping-clean.pcap"), "-o", str(tmp_path / "x.png")]
    program = "import sys; sys.modules['matplotlib'] = None\nfrom rocekit.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    how = f"{sys.executable} -m pip install 'rocekit[plot]'"
    assert done.stderr == f"rocekit: error: plot needs matplotlib: {how}\n"


@pytest.mark.parametrize("graph", [(), ("--graph", "ladder", "--transfer", "0")], ids=["graphs", "ladder"])
def test_a_name_with_dollars_and_markup_is_text_in_a_picture(
    pcaps: Path, tmp_path: Path, graph: tuple[str, ...]
) -> None:
    name = "a$\\frac{b$<script>alert(1)<\u2215script>\x1b[2J&amp;.pcap"
    (tmp_path / name).write_bytes((pcaps / "ping-write-loss-behind.pcap").read_bytes())
    for suffix in ("svg", "png"):
        code, said = run("plot", tmp_path / name, "-o", tmp_path / f"x.{suffix}", *graph)
        assert code == 0, said
    drawn = ElementTree.parse(tmp_path / "x.svg")
    kinds = {element.tag.rpartition("}")[2] for element in drawn.iter()}
    assert not kinds & {"script", "foreignObject", "a", "image"}
    if not graph:
        shown = name.replace("\x1b", "\\x1b")
        assert any((element.text or "").startswith(shown) for element in drawn.iter())
