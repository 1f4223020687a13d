"""What a report is drawn from: every packet in its place, and what the tracker judged of it."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from flushed import dead_with_flushed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rocekit
from rocekit.analysis import Analysis
from rocekit.cli import rocekit as cli
from rocekit.report.collector import CE, DUPLICATE, LOST, RESPONSE, Collector
from rocekit.report.document import document
from rocekit.report.happenings import happenings
from rocekit.report.lane_columns import build_lanes
from rocekit.report.lanes import Lanes
from rocekit.report.pack import pack, planes, unpack, unpack_planes
from rocekit.report.page import page

Drawn = tuple[Analysis, Lanes]


def drawn(*paths: Path) -> Drawn:
    collector = Collector()
    analysis = rocekit.analyze(*paths, watch=collector)
    return analysis, build_lanes(collector, analysis)


@pytest.fixture(scope="module")
def every(pcaps: Path) -> dict[str, Drawn]:
    """All captures of the repository."""
    return {path.name: drawn(path) for path in sorted(pcaps.glob("*.pcap*"))}


def each(every: dict[str, Drawn]) -> list[tuple[str, Analysis, Lanes]]:
    return [(name, analysis, lanes) for name, (analysis, lanes) in every.items()]


def test_every_packet_of_a_connection_has_its_place(every: dict[str, Drawn]) -> None:
    for name, analysis, lanes in each(every):
        for c in analysis.connections:
            own = int(lanes.first[2 * c.id + 2] - lanes.first[2 * c.id])
            marked = int((lanes.marks.lane >> 1 == c.id).sum())
            assert own + marked == c.packets + c.bad_icrc_count, name


def test_rounds_are_what_the_tracker_counts_as_sent_again(every: dict[str, Drawn]) -> None:
    """Two ways to the same number: the tracker goes packet by packet, the columns know no order of events."""
    seen = 0
    for name, analysis, lanes in each(every):
        for c in analysis.connections:
            rows = slice(int(lanes.first[2 * c.id]), int(lanes.first[2 * c.id + 2]))
            assert int((lanes.round[rows] > 1).sum()) == c.retransmitted_packets, name
            seen += c.retransmitted_packets
    assert seen > 100


def test_psns_are_unwrapped_as_in_transfers(every: dict[str, Drawn]) -> None:
    for name, analysis, lanes in each(every):
        for t in analysis.transfers:
            rows = lanes.rows(2 * t.connection.id + t.side)
            place = int(np.searchsorted(lanes.frame[rows], t.first_frame))
            assert lanes.frame[rows][place] == t.first_frame, name
            assert t.first_psn <= lanes.psn[rows][place] <= t.last_psn, (name, t)


def test_a_clean_capture_ends_with_nothing_outstanding(every: dict[str, Drawn]) -> None:
    checked = 0
    for name, analysis, lanes in each(every):
        if "clean" not in name or not all(c.transport == "RC" for c in analysis.connections):
            continue
        for number in range(len(lanes.first) - 1):
            rows = lanes.rows(number)
            if rows.start < rows.stop:
                assert lanes.outstanding[rows][-1] == 0, name
                assert lanes.outstanding_bytes[rows][-1] == 0, name
                checked += 1
    assert checked > 10


def test_outstanding_bytes_are_those_of_the_messages_under_way(every: dict[str, Drawn]) -> None:
    analysis, lanes = every["ping-read-clean.pcap"]
    assert int(lanes.outstanding.max()) == 8  # one READ at a time, of eight responses
    assert int(lanes.outstanding_bytes.max()) == 8192
    assert {t.bytes for t in analysis.transfers} == {8192}


def test_a_missing_response_keeps_its_read_outstanding(every: dict[str, Drawn]) -> None:
    """Later responses arrived, but a READ counts up to the first hole: only its repeat lets it go on."""
    analysis, lanes = every["ping-read-response-loss.pcap"]
    transfer = next(t for t in analysis.transfers if t.met("response_hole"))
    hole = next(e for e in transfer.events if e.kind == "response_hole")
    rows = lanes.lane(2 * transfer.connection.id + transfer.side)
    again = next(e for e in transfer.events if e.kind == "repeat")
    waiting = (rows.time_ns >= hole.time_ns) & (rows.time_ns < again.time_ns)
    assert waiting.any()
    assert (rows.acked[waiting] <= hole.psn).all()
    assert (rows.outstanding[waiting] >= transfer.last_psn + 1 - hole.psn).all()


def test_round_trips_are_those_of_packets_sent_once(every: dict[str, Drawn]) -> None:
    for name, analysis, lanes in each(every):
        told = lanes.rtt_ns >= 0
        assert (lanes.flags[told] & RESPONSE).all(), name
        span = (analysis.capture.last_ns or 0) - (analysis.capture.first_ns or 0)
        assert (lanes.rtt_ns <= span).all(), name
    lanes = every["rping-clean.pcap"][1]
    assert int((lanes.rtt_ns >= 0).sum()) == 30  # every operation is one packet and its answer


def test_what_a_nak_names_did_not_arrive_unless_it_was_turned_away(every: dict[str, Drawn]) -> None:
    """Behind the capture seven packets drew a NAK; where receives were missing nothing was lost at all."""
    analysis, lanes = every["ping-write-loss-behind.pcap"]
    lost = lanes.flags & LOST != 0
    assert int(lost.sum()) == analysis.connections[0].naks == 7
    assert (lanes.round[lost] == 1).all()
    again = lanes.psn[lanes.round == 2]
    assert set(lanes.psn[lost].tolist()) <= set(again.tolist())
    turned, others = every["blast-sr-rnr.pcap"]
    assert turned.connections[0].naks == 9
    assert not (others.flags & LOST).any()


def test_copies_made_by_the_network_are_not_called_repeats(every: dict[str, Drawn]) -> None:
    analysis, lanes = every["ping-write-duplication.pcap"]
    copies = lanes.flags & DUPLICATE != 0
    assert int(copies.sum()) == sum(c.duplicates for c in analysis.connections) > 0
    assert (lanes.round[copies] == 1).all()


def test_everything_that_befell_is_drawn(every: dict[str, Drawn]) -> None:
    for name, analysis, _ in each(every):
        found = happenings(analysis)
        own = [
            h for h in found if h.kind not in ("cm", "failed", "missed", "jump") and h.transfer is not None
        ]
        assert len(own) == sum(len(t.events) for t in analysis.transfers), name
        assert [h.time_ns for h in found] == sorted(h.time_ns for h in found)
        for h in found:
            assert h.from_ns <= h.time_ns <= h.until_ns


def test_work_requests_that_sent_nothing_are_drawn_from_their_posting_to_their_end(
    every: dict[str, Drawn],
) -> None:
    """The journals tell: of each WR an outcome, and of the capture which of them have a packet."""
    outcomes: Counter[str] = Counter()
    for name, analysis, _ in each(every):
        drawn = [h for h in happenings(analysis) if h.kind == "unsent"]
        journal = analysis.journal
        if journal is None:
            assert not drawn
            continue
        assert len(drawn) == len([wr for wr in journal.unmatched if journal.place(wr.qp)]), name
        for h in drawn:
            connection, side = analysis.connections[h.lane // 2], h.lane % 2
            own = [t for t in analysis.transfers if t.connection is connection and t.side == side]
            assert not any(t.first_psn <= h.psn <= t.last_psn and t.first_ns < h.from_ns for t in own), name
            assert h.until_ns == h.time_ns >= h.from_ns
            outcomes[h.what.rpartition(", ")[2]] += 1
            if h.what.endswith("post failed"):
                assert h.detail == "post failed: EINVAL"
    assert outcomes == {"post failed": 4, "WR_FLUSH_ERR": 2, "LOC_QP_OP_ERR": 1}


def test_what_a_dead_qp_flushed_stands_behind_what_it_sent(pcaps: Path, tmp_path: Path) -> None:
    analysis = rocekit.analyze(dead_with_flushed(pcaps, tmp_path, 3))
    found = [h for h in happenings(analysis) if h.kind == "unsent"]
    (transfer,) = analysis.transfers
    # WRITEs of 2,048 bytes at a path MTU of 1,024 take two PSNs each.
    assert [h.psn - transfer.last_psn for h in found] == [1, 3, 5]
    assert [h.what for h in found] == [
        f"WR {n} RDMA_WRITE 2,048 bytes, WR_FLUSH_ERR" for n in (1000, 1001, 1002)
    ]
    assert transfer.wr is not None
    assert transfer.wc is not None
    assert [h.from_ns - transfer.wr.posted_ns for h in found] == [1_000_000, 2_000_000, 3_000_000]
    assert [h.time_ns - transfer.wc.polled_ns for h in found] == [1000, 1001, 1002]


def test_a_timeout_shows_its_silence_and_how_it_is_computed(every: dict[str, Drawn]) -> None:
    found = [h for h in happenings(every["ping-write-dead.pcap"][0]) if h.kind == "timeout"]
    assert len(found) == 3
    for h in found:
        assert "4.096 µs × 2^14 = 67.11 ms" in h.detail
        assert h.time_ns - h.from_ns > 67_000_000


def test_an_rnr_nak_shows_the_wait_it_asks_for(every: dict[str, Drawn]) -> None:
    found = [h for h in happenings(every["blast-sr-rnr.pcap"][0]) if h.kind == "rnr"]
    assert len(found) == 9
    assert {h.until_ns - h.time_ns for h in found} == {640_000}


def test_several_captures_of_one_traffic_are_drawn_once(pcaps: Path, tmp_path: Path) -> None:
    source = pcaps / "ping-write-clean.pcap"
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(source.read_bytes())
    assert len(drawn(source, copy)[1]) == len(drawn(source)[1])


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "x.pcap"
    arguments = [
        "--packets",
        "50000",
        "--loss",
        "0.002",
        "--ecn",
        "0.005",
        "--snaplen",
        "128",
        "--pairs",
        "2",
    ]
    assert CliRunner().invoke(cli, ["generate", str(path), *arguments]).exit_code == 0
    return path


def test_marks_and_congestion_notifications_are_all_there(generated: Path) -> None:
    analysis, lanes = drawn(generated)
    marked = int((lanes.flags & CE != 0).sum())
    assert marked == sum(c.ce_marked for c in analysis.connections) > 0
    assert int((lanes.marks.kind == 0).sum()) == sum(c.cnps for c in analysis.connections) > 0


def test_thinning_keeps_whatever_is_not_plain(generated: Path) -> None:
    lanes = drawn(generated)[1]
    thin = lanes.thinned(15_000)
    assert len(thin) < 20_000
    assert thin.packets.sum() == len(lanes)
    assert thin.bytes.sum() == lanes.bytes.sum()
    assert apart(thin) == apart(lanes)
    assert thin.outstanding.max() == lanes.outstanding.max()
    for number in range(len(lanes.first) - 1):
        rows = thin.rows(number)
        assert (np.diff(thin.time_ns[rows]) >= 0).all()
        assert (np.diff(thin.acked[rows]) >= 0).all()
        own = lanes.rows(number)
        assert set(thin.frame[rows].tolist()) <= set(lanes.frame[own].tolist())


def apart(lanes: Lanes) -> list[list[int]]:
    """Frames of what was sent again, marked or doubled, refused."""
    wanted = lanes.round > 1, lanes.flags & (CE | DUPLICATE) != 0, lanes.syndrome >> 5 != 0
    return [sorted(lanes.frame[rows].tolist()) for rows in wanted]


def test_a_million_packets_take_ten_megabytes(generated: Path) -> None:
    """By what each packet adds: the page itself is the same for all captures."""
    analysis, lanes = drawn(generated)
    meta, columns = document(analysis, lanes)
    whole = len(page("x", meta, columns))
    empty = len(page("x", {}, {}))
    assert (whole - empty) / len(lanes) * 1_000_000 + empty < 10_000_000


COLUMNS = hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(-(2**62), 2**62 - 1))


@given(COLUMNS)
def test_columns_come_out_as_they_went_in(values: np.ndarray) -> None:
    rows = planes(values)
    assert rows.shape[1] == len(values)
    assert unpack_planes(rows.tobytes(), len(rows), len(values)).tolist() == values.tolist()


@given(st.dictionaries(st.text(max_size=5), COLUMNS, max_size=3), st.text())
def test_documents_come_out_as_they_went_in(columns: dict[str, np.ndarray], words: str) -> None:
    meta, again = unpack(pack({"words": words}, columns))
    assert meta == {"words": words}
    assert {k: v.tolist() for k, v in again.items()} == {k: v.tolist() for k, v in columns.items()}


def test_a_page_is_the_same_without_isal(pcaps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta, columns = document(*drawn(pcaps / "blast-sr-rnr.pcap"))
    monkeypatch.setattr("rocekit.report.pack.compressobj", zlib.compressobj)
    again, numbers = unpack(pack(meta, columns))
    assert again == json.loads(json.dumps(meta))
    assert {k: v.tolist() for k, v in numbers.items()} == {k: v.tolist() for k, v in columns.items()}


def test_it_does_not_matter_how_many_lanes_are_made_at_a_time(
    every: dict[str, Drawn], pcaps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocekit.report.lane_columns._BLOCK", 1)
    for name, _, lanes in each(every):
        alone = drawn(pcaps / name)[1]
        for column in fields(Lanes):
            if column.name != "marks":
                one, other = getattr(lanes, column.name), getattr(alone, column.name)
                assert np.array_equal(one, other), (name, column.name)


def test_nothing_of_a_capture_becomes_markup(pcaps: Path) -> None:
    analysis, lanes = drawn(pcaps / "blast-sr-rnr.pcap")
    meta, columns = document(analysis, lanes)
    meta["capture"]["files"] = ["</script><script>alert(1)</script>"]
    text = page("</title><script>alert(2)</script>", meta, columns)
    assert "alert(" not in text.replace("&lt;/title&gt;&lt;script&gt;alert(2)&lt;/script&gt;", "")


def test_a_page_names_no_address_to_load_from(pcaps: Path) -> None:
    text = page("x", *document(*drawn(pcaps / "ping-write-clean.pcap")))
    loads = re.findall(
        r"""(?:src|href)\s*=\s*["']?(?!#|data:)[^"'\s>]+""",
        re.sub(r"<script>.*?</script>", "", text, flags=re.S),
    )
    assert loads == []
    assert "default-src 'none'" in text


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_the_command_writes_a_page_and_says_what_is_in_it(pcaps: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    code, said = run("report", pcaps / "blast-sr-rnr.pcap", "-o", out)
    assert code == 0
    assert said == f"{out}: 99 RoCE packets, 1 connection, 1 finding\n"
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    "output",
    [
        lambda folder, _: folder,
        lambda folder, _: folder / "none" / "r.html",
        lambda _, capture: capture,
    ],
    ids=["a folder", "in no folder", "the capture itself"],
)
def test_an_output_that_cannot_be_is_one_line(
    output: Callable[[Path, Path], Path], pcaps: Path, tmp_path: Path
) -> None:
    capture = tmp_path / "x.html"  # a name that fits a page
    capture.write_bytes((pcaps / "rping-clean.pcap").read_bytes())
    code, said = run("report", capture, "-o", output(tmp_path, capture))
    assert code == 1
    assert len(said.strip().splitlines()) == 1
    assert "Traceback" not in said
    assert capture.read_bytes() == (pcaps / "rping-clean.pcap").read_bytes()


def test_without_an_output_the_command_line_is_wrong(pcaps: Path) -> None:
    assert run("report", pcaps / "rping-clean.pcap")[0] == 2


def test_an_empty_capture_makes_a_page_that_says_so(pcaps: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pcap"
    empty.write_bytes((pcaps / "rping-clean.pcap").read_bytes()[:24])
    out = tmp_path / "r.html"
    code, said = run("report", empty, "-o", out)
    assert code == 0
    assert "r.html: No RoCE v2 packets: nothing to judge. The capture has no frames." in said
    assert out.stat().st_size > 100_000


def test_a_damaged_capture_is_drawn_as_far_as_it_goes(pcaps: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes((pcaps / "ping-write-clean.pcap").read_bytes()[:20_000])
    out = tmp_path / "r.html"
    code, said = run("report", cut, "-o", out)
    assert code == 1
    assert "what could be read is reported" in said
    meta, _ = unpack(re.search(r'<script id="data" type="text/plain">(.*?)</script>', out.read_text())[1])  # type: ignore[index]
    assert meta["capture"]["damage"]
