"""Lumina's event examples (SIGCOMM'23), with soft endpoints in the place of its testbed: ten packets, hit on
purpose.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit.analysis import Analysis, analyze
from rocekit.findings import Finding
from rocekit.soft.testbed import ProgramRun, check_run, run
from rocekit.soft.testbed.program import Post, Program, QpSetup, Receive
from rocekit.soft.wires.faults import Fault

PACKETS, MTU = 10, 1024
FIRST = 0xFFFFFB  # the PSN wraps in the middle of the message


def go(
    tmp_path: Path, *faults: Fault, opcode: str = "RDMA_WRITE", tap: str = "sent"
) -> tuple[ProgramRun, Analysis]:
    """One message of ten packets from a to b."""
    program = Program(
        (QpSetup(path_mtu=MTU, a_psn=FIRST, timeout=8),),
        (Post(opcode=opcode, length=PACKETS * MTU),),
        (Receive(length=PACKETS * MTU),),
    )
    capture = tmp_path / "x.pcapng"
    done = run(program, faults, 1, capture=capture, journal=tmp_path / "x.journal.jsonl", tap=tap)
    assert check_run(done) == []
    return done, analyze(capture)


def only(analysis: Analysis, rule: str) -> Finding:
    above = [f for f in analysis.findings if f.severity != "info"]
    assert [f.rule for f in above] == [rule], [str(f) for f in above]
    return above[0]


def psn(number: int) -> int:
    """The number-th PSN, counted from 1 as Lumina does."""
    return (FIRST + number - 1) & 0xFFFFFF


def sent_again(done: ProgramRun) -> int:
    """How many packets the requester knows it repeated."""
    return sum(s.round > 0 for t in done.transfers() for s in t.request.requests)


def drop(number: int, iteration: int = 1, of: str = "request") -> Fault:
    return Fault("drop", 1, number, iteration, of)


@pytest.mark.parametrize("tap", ["sent", "delivered"])
@pytest.mark.parametrize("number", [1, 5, 9])
@pytest.mark.parametrize("opcode", ["RDMA_WRITE", "SEND"])
def test_a_drop_inside_the_message_costs_go_back_n(
    tmp_path: Path, number: int, tap: str, opcode: str
) -> None:
    done, analysis = go(tmp_path, drop(number), tap=tap, opcode=opcode)
    found = only(analysis, "loss")
    assert found.evidence["psns"] == [psn(number)]
    assert found.evidence["repeated_packets"] == sent_again(done)
    assert found.evidence["nak_seen"] == 1


@pytest.mark.parametrize("tap", ["sent", "delivered"])
def test_a_drop_of_the_last_packet_costs_a_timeout(tmp_path: Path, tap: str) -> None:
    _, analysis = go(tmp_path, drop(PACKETS), tap=tap)
    found = only(analysis, "tail-loss")
    assert found.evidence["psns"] == [psn(PACKETS)]
    # 4.096 µs × 2^8, kept exactly by soft endpoints.
    assert found.evidence["waited_max_ns"] == pytest.approx(4096 * 2**8, rel=0.02)


def test_a_drop_of_the_repeat_as_well_is_one_story(tmp_path: Path) -> None:
    _, analysis = go(tmp_path, drop(5), drop(5, 2))
    found = only(analysis, "loss")
    assert found.evidence["count"] == 1
    assert found.evidence["psns"] == [psn(5)]
    assert found.evidence["most_transmissions"] == 3
    assert found.evidence["added_ns"] > 4096 * 2**8


def test_a_drop_of_the_last_packet_and_of_its_repeat_costs_two_timeouts(tmp_path: Path) -> None:
    done, analysis = go(tmp_path, drop(PACKETS), drop(PACKETS, 2))
    found = only(analysis, "tail-loss")
    assert set(found.evidence["psns"]) == {psn(PACKETS)}
    assert found.evidence["repeated_packets"] == sent_again(done)
    assert [t.timeouts for t in analysis.transfers] == [2]


def test_two_drops_are_two_losses(tmp_path: Path) -> None:
    """The second hits the repeat: the first copy of PSN 7 came behind the gap and was dropped anyway."""
    _, analysis = go(tmp_path, drop(3), drop(7, 2))
    found = only(analysis, "loss")
    assert found.evidence["psns"] == [psn(3), psn(7)]


def test_a_dropped_read_response_is_requested_again(tmp_path: Path) -> None:
    _, analysis = go(tmp_path, drop(5, of="response"), opcode="RDMA_READ")
    found = only(analysis, "implied-nak")
    assert found.evidence["psns"] == [psn(5)]


def test_a_bit_error_is_a_loss_with_a_known_cause(tmp_path: Path) -> None:
    done, analysis = go(tmp_path, Fault("bit-error", 1, 5), tap="delivered")
    found = only(analysis, "icrc-bad")
    assert found.evidence["psns"] == [psn(5)]
    assert found.evidence["repeated_packets"] == sent_again(done)


def test_a_bit_error_in_the_last_packet_is_found_by_its_icrc_though_it_costs_a_timeout(
    tmp_path: Path,
) -> None:
    _, analysis = go(tmp_path, Fault("bit-error", 1, PACKETS), tap="delivered")
    found = only(analysis, "icrc-bad")
    assert found.evidence["psns"] == [psn(PACKETS)]
    assert [t.timeouts for t in analysis.transfers] == [1]


def test_marks_on_every_packet_draw_a_cnp_and_are_no_finding(tmp_path: Path) -> None:
    """All ten arrive within the minimum time between two CNPs."""
    _, analysis = go(
        tmp_path, *(Fault("ecn", 1, number) for number in range(1, PACKETS + 1)), tap="delivered"
    )
    assert [f.rule for f in analysis.findings if f.severity != "info"] == []
    assert analysis.connections[0].ce_marked == PACKETS
    assert analysis.connections[0].cnps == 1


def test_an_ecn_mark_draws_a_cnp_and_is_no_finding(tmp_path: Path) -> None:
    _, analysis = go(tmp_path, Fault("ecn", 1, 5), tap="delivered")
    assert analysis.findings == []
    assert analysis.connections[0].ce_marked == 1
    assert analysis.connections[0].cnps == 1


def test_nothing_done_is_nothing_found(tmp_path: Path) -> None:
    _, analysis = go(tmp_path)
    assert analysis.findings == []
