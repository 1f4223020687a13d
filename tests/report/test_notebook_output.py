"""What notebooks get: HTML of results, pictures, data frames."""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
from pathlib import Path

import pytest
from places import PCAPS
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

import rocekit
from rocekit.analysis import Analysis
from rocekit.errors import RocekitError
from rocekit.layers import BTH
from rocekit.report import drawings
from rocekit.wire.notebook_html import block, html_table

LOSS = PCAPS / "ping-write-loss-behind.pcap"
pytest.importorskip("matplotlib")
PICTURE = "data:image/svg+xml;base64,"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return rocekit.analyze(LOSS)


def test_packets_are_a_table_with_the_story_of_each(analysis: Analysis) -> None:
    shown = analysis.packets.where("frame in (198, 199)")._repr_html_()
    assert "<h4>2 packets</h4>" in shown
    assert "RC_ACKNOWLEDGE" in shown
    assert "PSN 16688369 again (2nd), after the NAK (frame 198)" in shown
    every = analysis.packets._repr_html_()
    assert every.count("<tr") == 1 + 20
    assert "and 216 more" in every


def test_a_table_of_packets_names_those_of_several_captures_and_unknown_opcodes(tmp_path: Path) -> None:
    other = tmp_path / "x.pcap"
    other.write_bytes(LOSS.read_bytes())
    assert "<h4>472 packets</h4>" in rocekit.analyze(LOSS, other).packets._repr_html_()
    hand = tmp_path / "y.pcap"
    packet = Ether() / IP(src="10.9.0.1", dst="10.9.0.2") / UDP(sport=49152) / BTH(opcode=0xDF, dest_qpn=17)
    wrpcap(str(hand), [packet])
    assert "<td>0xdf</td>" in rocekit.analyze(hand).packets._repr_html_()


def test_an_analysis_shows_findings_first_then_a_picture_and_tables(analysis: Analysis) -> None:
    shown = analysis._repr_html_()
    parts = (
        "2 findings",
        "tail-loss",
        PICTURE,
        "1 connection",
        "20 transfers",
        "and 10 more",
        "Capture point",
    )
    places = [shown.index(part) for part in parts]
    assert places == sorted(places)


def test_an_explanation_shows_its_steps_its_ladder_and_its_psns(analysis: Analysis) -> None:
    for explained in (analysis.explain(16), rocekit.explain(analysis.transfers[16], analysis)):
        shown = explained._repr_html_()
        assert shown.count(PICTURE) == 2
        assert "did not arrive: NAK PSN sequence error, frame 198" in shown
        assert shown.count('<tr class="trouble">') == 2


def test_a_finding_shows_its_packets(analysis: Analysis) -> None:
    shown = analysis.findings[0]._repr_html_()
    assert PICTURE in shown
    assert "connection 0" in shown
    assert analysis.findings[0].advice.split(" (")[0] in shown


def test_tables_stay_tables_when_filtered_or_sliced(analysis: Analysis) -> None:
    troubled = analysis.transfers.where(naks=1)
    assert len(troubled) == 7
    assert "7 transfers" in troubled._repr_html_()
    assert "3 transfers" in troubled[:3]._repr_html_()
    assert "5 CM messages" in analysis.cm._repr_html_()
    assert "1 connection" in analysis.connections._repr_html_()


def test_of_many_records_the_first_are_shown_and_the_rest_counted() -> None:
    transfers = rocekit.analyze(PCAPS / "blast-write-clean.pcap").transfers
    shown = transfers._repr_html_()
    assert shown.count("<tr>") == min(len(transfers), 20) + 1
    assert ("more: to_polars()" in shown) == (len(transfers) > 20)


def test_nothing_of_a_capture_becomes_markup() -> None:
    shown = block(html_table(("a",), [("<script>alert(1)</script>",)]))
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


def test_data_frames_have_the_columns_of_the_export_and_exact_times(analysis: Analysis) -> None:
    pytest.importorskip("polars")
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    from rocekit.report.export import tables

    every = tables(analysis, ["transfers", "connections", "findings", "packets"])
    for name in ("transfers", "connections", "findings"):
        assert getattr(analysis, name).to_polars().equals(every[name])
    assert analysis.packets.to_polars().equals(every["packets"])
    dead = rocekit.analyze(PCAPS / "ping-write-dead.pcap").transfers
    frame = dead.to_pandas()
    assert frame["acked_ns"].isna().all()
    assert frame["first_ns"].tolist() == [t.first_ns for t in dead]
    naks = analysis.packets.where("AETH and syndrome >= 0x60").to_pandas()
    assert naks["frame"].tolist() == [25, 48, 71, 123, 146, 198, 221]
    assert set(analysis.cm.to_polars()["message"]) == {"REQ", "REP", "RTU", "DREQ", "DREP"}


def test_a_picture_and_a_page_are_saved(analysis: Analysis, tmp_path: Path) -> None:
    analysis.plot("psn", transfer=16).save(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    page = analysis.report(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text() == page.text
    assert page._repr_html_().startswith("<iframe")
    with pytest.raises(RocekitError, match="this is the file that is read"):
        analysis.report(LOSS)
    with pytest.raises(ValueError, match="must end in"):
        analysis.plot("psn").save(tmp_path / "x.txt")


def test_what_cannot_be_drawn_is_said(analysis: Analysis) -> None:
    with pytest.raises(RocekitError, match="no transfer 99"):
        analysis.plot(transfer=99)
    with pytest.raises(ValueError, match="no graph sequence"):
        analysis.plot("sequence")
    with pytest.raises(RocekitError, match="belongs to connection 0"):
        rocekit.analyze(PCAPS / "mesh-soft.pcapng").plot("ladder", connection=1, transfer=0)


def test_without_matplotlib_the_words_are_shown_and_why_there_is_no_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drawings, "find_spec", lambda name: None)
    shown = rocekit.analyze(LOSS).findings[0]._repr_html_()
    assert PICTURE not in shown
    assert "No picture: plot needs matplotlib" in shown
    assert importlib.util.find_spec("matplotlib") is not None


def test_standard_input_is_shown_without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOSS.read_bytes())))
    analysis = rocekit.analyze("-")
    shown = analysis._repr_html_()
    assert "tail-loss" in shown
    assert "No picture: standard input cannot be read again" in shown


def test_a_finding_goes_to_other_processes_without_its_analysis(analysis: Analysis) -> None:
    finding = analysis.findings[0]
    sent = finding.__getstate__()
    assert sent["in_notebook"] is None
    assert {name: sent[name] for name in ("rule", "frames")} == {"rule": "loss", "frames": finding.frames}
    bare = pickle.loads(pickle.dumps(rocekit.Finding("loss", "warning", "x", None, None, (), {}, "")))
    assert bare.in_notebook is None
    assert "warning: loss: x" in bare._repr_html_()


def test_a_wrong_name_says_what_was_meant(analysis: Analysis) -> None:
    with pytest.raises(ValueError, match="no operation 'WRIT': did you mean WRITE"):
        analysis.transfers.where(operation="WRIT")
    with pytest.raises(ValueError, match="'RC_SEND_ONYL' is no opcode; did you mean RC_SEND_ONLY"):
        BTH(opcode="RC_SEND_ONYL")
    assert BTH(opcode="RC_SEND_ONLY").opcode == BTH(opcode=4).opcode
