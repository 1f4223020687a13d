"""One sentence a cause: every output says of a repeat the same words, and as sure as the packets are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from story import Story

import rocekit
from rocekit.explanation.event_steps import event_step
from rocekit.explanation.packet_words import describe
from rocekit.explanation.packets import packet_stories
from rocekit.explanation.transfer import explain
from rocekit.findings.cause_words import repeat_cause
from rocekit.report.collector import Collector
from rocekit.report.document import document
from rocekit.report.happenings import happenings
from rocekit.report.lane_columns import build_lanes

CAPTURES = Path(__file__).parents[2] / "pcaps"
FIELD = Path(__file__).parents[3] / "shared" / "captures" / "field"
NAMES = (
    "atomic-response-loss.pcap",
    "blast-sr-corruption.pcap",
    "blast-sr-loss.pcap",
    "blast-sr-reordering.pcap",
    "blast-sr-rnr.pcap",
    "failures-each.pcap",
    "ib_send_bw-rnr.pcap",
    "ib_write_bw-4qp-loss.pcap",
    "ping-read-response-loss.pcap",
    "ping-write-dead.pcap",
    "ping-write-loss-behind.pcap",
    "ping-write-loss.pcapng",
    "ping-write-reordering.pcap",
)


def repeats(analysis: rocekit.Analysis) -> list[tuple[rocekit.Transfer, rocekit.Event, str]]:
    """Every repeat with its clause."""
    return [
        (t, e, repeat_cause(e, t.connection, t.side, t))
        for t in analysis.transfers
        for e in t.events
        if e.kind == "repeat"
    ]


def check(path: Path) -> None:
    collector = Collector()
    analysis = rocekit.analyze(path, watch=collector)
    found = repeats(analysis)
    assert found
    stories = packet_stories(analysis)
    lines = list(describe(stories))
    meta, _ = document(analysis, build_lanes(collector, analysis))
    drawn = {(h.frame, h.psn): h.detail for h in happenings(analysis)}
    page = {what + detail for what, detail, *_ in meta["happenings"]["words"]}
    clauses = {}
    for transfer, event, clause in found:
        assert f" {clause}, " in event_step(transfer, event).detail
        assert f" {clause}, " in str(explain(transfer, analysis))
        assert any(f", {clause}, " in words for words in page)
        assert f", {clause}, " in drawn[event.frame, event.psn]
        of_page = meta["stories"][str(transfer.id)]["steps"]
        assert any(f", {clause}, " in detail for _, _, detail, _ in of_page)
        rows = [r for r in np.flatnonzero(stories.event >= 0) if stories.events[stories.event[r]] is event]
        assert len(rows) == event.count
        for row in rows:
            assert f", {clause};" in lines[row] or f", {clause} (" in lines[row]
        clauses[event.frame] = clause
    named = 0
    for finding in analysis.findings:
        for case in finding.evidence.get("cases", ()):
            if "repeat_cause" in case:
                named += 1
                assert case["repeat_cause"] == clauses[case["repeat_frame"]]
    assert named


@pytest.mark.parametrize("name", NAMES)
def test_every_output_says_the_same_of_a_repeat(name: str) -> None:
    check(CAPTURES / name)


@pytest.mark.parametrize("name", ["A1-write-mid-loss.va.pcap.gz", "A1-write-mid-loss.vb.pcap.gz"])
def test_every_output_says_the_same_of_a_repeat_in_the_field(name: str) -> None:
    if not (FIELD / name).exists():
        pytest.skip("no captures of the field here")
    check(FIELD / name)


NAK = """
a RC_SEND_ONLY 5 64
a RC_SEND_ONLY 6 64
b NAK 5
a RC_SEND_ONLY 5 64
a RC_SEND_ONLY 6 64
b ACK 6
"""
ALONE = "a RC_SEND_ONLY 4 4\nb ACK 4\na RC_SEND_ONLY 5 64\n{}a RC_SEND_ONLY 5 64\nb ACK 5"


@pytest.mark.parametrize(
    ("connect", "text", "clause"),
    [
        (False, NAK, "after the NAK"),
        (True, NAK, "after the NAK"),
        (False, ALONE.format("b RNR 5 timer=14\n+2ms\n"), "2.001 ms after the RNR NAK"),
        (True, ALONE.format("+67200us\n"), "after a timeout (67.20 ms after its last request)"),
        (False, ALONE.format("+67200us\n"), "probably after a timeout (67.20 ms after its last request)"),
        (True, ALONE.format("+800ms\n"), "probably after a timeout (800.0 ms after its last request)"),
        (
            True,
            ALONE.format("+20ms\n"),
            "20.00 ms after its last request, sooner than its timeout (67.11 ms): "
            "a NAK that is not in the capture, or a timer that started before or is shorter than negotiated",
        ),
        (
            False,
            ALONE.format("+300us\n"),
            "probably after a NAK that is not in the capture: too soon for a timeout",
        ),
    ],
)
def test_how_sure_a_cause_is_stands_in_its_words(
    tmp_path: Path, connect: bool, text: str, clause: str
) -> None:
    story = Story().connect(4, 900) if connect and " 4 4" in text else Story()
    if connect and " 4 4" not in text:
        story = Story().connect(5, 900)
    found = repeats(story.lines(text).analyze(tmp_path))
    assert found[0][2] == clause


@pytest.mark.parametrize(("ms", "label"), [(20, "silence 20.00 ms"), (68, "timeout 68.00 ms")])
def test_a_label_calls_only_a_wait_as_long_as_the_timeout_so(tmp_path: Path, ms: int, label: str) -> None:
    analysis = Story().connect(4, 900).lines(ALONE.format(f"+{ms}ms\n")).analyze(tmp_path)
    (drawn,) = [h for h in happenings(analysis) if h.kind != "cm"]
    assert (drawn.kind, drawn.label) == ("timeout", label)


def test_a_nak_that_was_obeyed_long_ago_is_not_named_as_the_cause() -> None:
    """Frame 93 goes back 104 ms after the last packet; the NAK in frame 71 was obeyed by frame 72."""
    stories = packet_stories(rocekit.analyze(CAPTURES / "ping-write-loss-behind.pcap"))
    lines = list(describe(stories))
    assert "again (2nd), after the NAK (frame 71);" in lines[71]
    assert (
        "again (2nd), 103.7 ms after its last request, sooner than its timeout (268.4 ms): a NAK that is not "
        "in the capture, or a timer that started before or is shorter than negotiated;"
    ) in lines[92]
