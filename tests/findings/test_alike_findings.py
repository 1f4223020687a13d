"""The same finding on many connections: one in text, each in JSON and with ``--all``."""

from __future__ import annotations

from pathlib import Path

import pytest
from alike import analyzed, losses, many_connections
from capture_bytes import Frame, pcap
from talk import START_NS, Talk

from rocekit.analysis import Analysis, analyze
from rocekit.findings.alike import FEW, FEW_OF_NONE, AlikeFindings, gathered
from rocekit.report.text import summary
from rocekit.wire.build import build_frame, build_mad


@pytest.fixture(scope="module")
def many() -> Analysis:
    return analyzed(many_connections(40))


def test_the_same_loss_on_many_connections_is_one_finding_in_text(many: Analysis) -> None:
    lines = summary(many).splitlines()
    (title,) = [line for line in lines if " loss" in line and "warning" in line]
    assert title.strip() == (
        "warning loss on 40 connections between 10.9.0.1 and 10.9.0.2: at least 40 packets lost, "
        "200 packets sent again, 105 µs of delay each"
    )
    assert "          connections 0, 1, 2, 3, 4, 5 … (40 connections)" in lines
    assert "41 findings, alike ones summed up (--all lists each)" in lines
    assert sum("Place of the drops" in line for line in lines) == 1


def test_each_is_in_json_and_in_the_whole_list(many: Analysis) -> None:
    assert sum(f["rule"] == "loss" for f in many.to_dict()["findings"]) == 40
    whole = summary(many, transfers=None)
    assert whole.count("Place of the drops") == 40
    assert "summed up" not in whole


def test_a_few_stay_single() -> None:
    found = analyzed(many_connections(FEW)).findings
    assert not any(isinstance(f, AlikeFindings) for f in gathered(found))


def test_the_worst_is_named() -> None:
    whole = many_connections(9)
    t = Talk(qa=0x2000, qb=0xA000)
    t.now, t.ident, t.frames = whole.now, whole.ident, whole.frames
    losses(3, t)
    found = analyzed(t)
    (alike,) = [f for f in gathered(found.findings) if isinstance(f, AlikeFindings)]
    assert alike.worst.connection is not None
    assert alike.worst.connection.id == 9
    assert "worst: At least 3 packets lost on 10.9.0.1 QP 0x2000" in summary(found)
    assert "105 µs to 315 µs of delay each" in summary(found)


def test_another_place_of_the_loss_is_another_finding() -> None:
    """On one connection of ten, the lost packet is in the capture: it was lost behind it."""
    whole = many_connections(9)
    t = Talk(qa=0x2000, qb=0xA000)
    t.now, t.ident, t.frames = whole.now, whole.ident, whole.frames
    t.send(1)
    t.ack(1)
    t.send(2, 8)
    t.nak(5)
    t.wait(100_000)
    t.send(2, 8, only=range(5, 10))
    t.ack(9)
    found = gathered([f for f in analyzed(t).findings if f.rule == "loss"])
    assert sorted(len(f.findings) if isinstance(f, AlikeFindings) else 1 for f in found) == [1, 9]


def test_findings_of_no_connection_are_one_where_they_are_many(tmp_path: Path) -> None:
    """A host that asks without end: each REQ is a finding, and of no connection."""

    def asked(count: int) -> Analysis:
        frames = [
            Frame(
                build_frame(
                    "UD_SEND_ONLY", src="10.9.0.1", dst="10.9.0.2", dest_qpn=1, psn=n,
                    payload=build_mad("REQ", n, local_comm_id=n + 1, local_qpn=n + 2),
                ),
                START_NS + n * 1_000_000,
            )
            for n in range(count)
        ]  # fmt: skip
        frames.append(
            Frame(build_frame("RC_SEND_ONLY", src="10.9.0.1", dst="10.9.0.3", dest_qpn=7), START_NS + 10**10)
        )
        path = tmp_path / "asked.pcap"
        path.write_bytes(pcap(frames, unit="ns"))
        return analyze(path)

    few, many = asked(FEW_OF_NONE), asked(FEW_OF_NONE + 1)
    assert not any(isinstance(f, AlikeFindings) for f in gathered(few.findings))
    told = summary(many)
    assert f"cm-unanswered {FEW_OF_NONE + 1} times\n" in told
    assert "          one of them: The capture has no answer from 10.9.0.2 to 10.9.0.1's REQ" in told
    (alike,) = [f for f in gathered(many.findings) if isinstance(f, AlikeFindings)]
    assert alike.title() == f"{FEW_OF_NONE + 1} times"  # the head of its card in a report
    assert summary(many, transfers=None).count("has no answer") == FEW_OF_NONE + 1
