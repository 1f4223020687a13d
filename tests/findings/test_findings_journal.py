"""Cases that only the programs' journals decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from story import Story
from test_findings_lumina import only

from rocekit.analysis import Analysis, analyze
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import Post, Program, QpSetup, Receive
from rocekit.soft.wires.faults import Fault

US, MS = 1_000, 1_000_000


def sends(
    folder: Path, fault: Fault, *, journal: bool = True, ahead_ns: int = 0, one_way: bool = False
) -> Analysis:
    """Ten SENDs of one packet each, captured where they are sent; b's clock is ahead."""
    posts = [Post(at_ns=n * 50 * US) for n in range(10)]
    receives = [Receive(count=10)]
    if not one_way:  # what b asks bounds its clock from both sides
        posts += [Post(side="b", at_ns=n * 50 * US + 20 * US) for n in range(3)]
        receives += [Receive(side="a", count=3)]
    program = Program((QpSetup(timeout=10),), tuple(posts), tuple(receives))
    capture, record = folder / "x.pcapng", folder / "x.journal.jsonl"
    run(program, (fault,), 1, capture=capture, journal=record if journal else None)
    if journal and ahead_ns:
        lines = [json.loads(line) for line in record.read_text().splitlines()]
        for line in lines:
            line["time_ns"] += ahead_ns * (line.get("host") == "b")
        record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return analyze(capture)


class TestMessageOrItsAck:
    REQUEST = Fault("drop", 1, 10)
    ACK = Fault("drop", 1, 10, 1, "ack")

    @pytest.mark.parametrize("ahead_ms", [0, 300, -300])
    @pytest.mark.parametrize("one_way", [False, True])
    def test_a_receive_completed_in_time_proves_that_the_ack_was_lost(
        self, tmp_path: Path, ahead_ms: int, one_way: bool
    ) -> None:
        found = only(sends(tmp_path, self.ACK, ahead_ns=ahead_ms * MS, one_way=one_way), "ack-loss")
        assert found.evidence["cases"][0]["psn"] == 9

    @pytest.mark.parametrize("ahead_ms", [0, 300, -300])
    @pytest.mark.parametrize("one_way", [False, True])
    def test_a_receive_completed_after_the_repeat_proves_that_the_message_was_lost(
        self, tmp_path: Path, ahead_ms: int, one_way: bool
    ) -> None:
        found = only(sends(tmp_path, self.REQUEST, ahead_ns=ahead_ms * MS, one_way=one_way), "tail-loss")
        assert found.evidence["cases"][0]["received_before_repeat"] is False
        assert found.evidence["or_acknowledgement_lost"] == 0

    def test_without_journal_it_stays_open(self, tmp_path: Path) -> None:
        found = only(sends(tmp_path, self.REQUEST, journal=False), "tail-loss")
        assert found.evidence["or_acknowledgement_lost"] == 1
        assert "received_before_repeat" not in found.evidence["cases"][0]


def test_a_device_that_ends_a_work_request_by_itself_is_named(tmp_path: Path) -> None:
    """LOC_PROT_ERR: no packet of it is sent, so that only the journal shows it."""
    story = Story("A created\nA wr 1 SEND 64\na RC_SEND_ONLY 5 64 ackreq=1\nb ACK 5\nA wc 1 SUCCESS")
    story.lines("A wr 2 SEND 64\nA wr 3 SEND 64\nA wc 2 LOC_PROT_ERR\nA wc 3 WR_FLUSH_ERR")
    (found,) = (f for f in story.analyze(tmp_path).findings if f.rule == "local-error")
    assert "ended WR 2 (SEND) of QP 0x11 with LOC_PROT_ERR: its memory is not registered" in found.title
    assert found.title.endswith("; 1 other WR of the queue flushed")
    assert found.connection is not None
