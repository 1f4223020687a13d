"""Requests that a NAK names and that were not lost: they arrived behind others, as real rxe showed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import pcap
from talk import MS, US, Talk, named, of_rule, only, settled

import rocekit

ANSWERS = {"READ": "responses", "FETCH_ADD": "atomic_answer"}


def ask(talk: Talk, psn: int, operation: str) -> None:
    talk.read(psn, 1) if operation == "READ" else talk.atomic(psn)


def answer(talk: Talk, psn: int, operation: str) -> None:
    talk.responses(psn, 1) if operation == "READ" else talk.atomic_answer(psn)


def refused(operation: str, *, late: bool, identified: bool = True, before: int = 6) -> Talk:
    """Behind some answered ones 101 gets a NAK, and is sent again; ``late``: it is answered twice."""
    talk = settled(Talk(mtu=1024), 99 - before)
    if not identified:
        talk.common = {"identification": 0}
    for psn in range(100 - before, 100):
        ask(talk, psn, operation)
        talk.wait(50 * US)
        answer(talk, psn, operation)
    for psn in (100, 101, 102):
        ask(talk, psn, operation)
    talk.wait(50 * US)
    answer(talk, 100, operation)
    talk.nak(101)
    for psn in (101, 102):
        ask(talk, psn, operation)
    talk.wait(50 * US)
    for psn in (101, 102):
        answer(talk, psn, operation)
    talk.wait(2 * MS)
    if late:
        answer(talk, 101, operation)
    return talk


@pytest.mark.parametrize("operation", ANSWERS)
def test_more_answers_than_copies_since_the_nak_prove_that_the_copy_before_arrived(operation: str) -> None:
    """Requests between two rxe devices, one in ten of them 3 ms late: 11 claims of a loss, and none was."""
    found = only(refused(operation, late=True).findings(), "reordering")
    assert found.evidence["psns"] == [101]
    assert "probably" not in found.title
    assert only(refused(operation, late=False).findings(), "loss").evidence["psns"] == [101]


@pytest.mark.parametrize("operation", ANSWERS)
def test_of_few_messages_the_second_answer_may_be_to_a_copy_of_the_network(operation: str) -> None:
    found = only(refused(operation, late=True, before=0).findings(), "reordering")
    assert "probably" in found.title


def test_where_the_capture_misses_packets_it_may_have_missed_a_copy() -> None:
    """It lacks the first of two go-backs: then two answers are to two copies."""
    talk = refused("FETCH_ADD", late=True)
    for psn in range(103, 106):
        talk.atomic(psn)
    talk.frames.pop(-2)  # acknowledged all the same
    talk.wait(50 * US)
    for psn in (103, 104, 105):
        talk.atomic_answer(psn)
    assert "probably" in of_rule(talk.findings(), "reordering")[0].title


@pytest.mark.parametrize("operation", ANSWERS)
def test_without_identification_the_second_answer_may_be_a_copy(operation: str) -> None:
    found = only(refused(operation, late=True, identified=False).findings(), "reordering")
    assert "probably" in found.title


@pytest.mark.parametrize("operation", ANSWERS)
def test_where_the_network_makes_copies_a_second_answer_proves_nothing(operation: str) -> None:
    """A request that was sent once is answered twice as well."""
    talk = refused(operation, late=True)
    ask(talk, 103, operation)
    talk.wait(50 * US)
    for _ in range(2):
        answer(talk, 103, operation)
    assert of_rule(talk.findings(), "loss")


def test_a_copy_that_was_sent_since_the_nak_has_an_answer_of_its_own() -> None:
    """101 is lost once, and its answer is lost behind the capture: three copies, two answers."""
    talk = refused("FETCH_ADD", late=False)
    talk.wait(80 * MS)
    for psn in (101, 102):
        talk.atomic(psn)
    talk.wait(50 * US)
    for psn in (101, 102):
        talk.atomic_answer(psn)
    assert of_rule(talk.findings(), "loss")[0].evidence["psns"] == [101]


def stamped_in_another_order(tmp_path: Path) -> Path:
    """The file has 101 behind 102, its time is before, and a NAK names it; two ACKs change places as well."""
    talk = settled(Talk(), 99)
    talk.send(100, 8, only=[100])
    frames = len(talk.frames)
    talk.send(100, 8, only=[101, 102])
    talk.nak(101)
    talk.send(100, 8, only=range(101, 108))
    acks = len(talk.frames)
    talk.ack(105)
    talk.ack(107)
    for first in (frames, acks):
        talk.frames[first : first + 2] = talk.frames[first : first + 2][::-1]
    path = tmp_path / "stamped.pcap"
    path.write_bytes(pcap(talk.frames, unit="ns"))
    return path


def test_a_nak_for_what_the_file_has_behind_a_later_packet_names_no_loss(tmp_path: Path) -> None:
    """Times decide, as the responder's own run back; but it saw that one in the order of the file."""
    analysis = rocekit.analyze(stamped_in_another_order(tmp_path))
    assert analysis.capture.orders[0].by == "time"
    found = only([f for f in analysis.findings if f.severity != "info"], "reordering")
    assert found.evidence["psns"] == [101]
    assert "probably" in found.title


@pytest.mark.parametrize("identified", [True, False])
def test_the_first_packet_of_a_go_back_whose_rest_was_lost_is_not_late(identified: bool) -> None:
    """101 is lost; of 101 and 102, sent again, 102 is lost; after the timeout both come once more."""
    talk = settled(Talk(), 89)
    if not identified:
        talk.common = {"identification": 0}
    talk.send(90, 10)  # identifications that rise show later which packets were sent again
    talk.ack(99)
    talk.send(100, 3, only=[100, 102])
    talk.nak(101)
    talk.wait(70 * US)
    talk.send(100, 3, only=[101])
    talk.wait(260 * MS)
    talk.send(100, 3, only=[101, 102])
    talk.ack(102)
    findings = talk.findings()
    assert named(findings) == ["loss"]
    found = of_rule(findings, "loss")[0]
    assert found.evidence["psns"] == [101]
    assert ("probably" in found.title) != identified


@pytest.mark.parametrize("moved", [False, True])
def test_what_the_file_has_behind_its_repeat_was_only_probably_lost_before_a_silence(
    tmp_path: Path, moved: bool
) -> None:
    """The last two of four were stamped when they came, and taken from another queue behind the repeat."""
    talk = settled(Talk(), 99)
    talk.send(100, 4, only=[100, 101])
    before = len(talk.frames)
    talk.send(100, 4, only=[102, 103])
    talk.wait(40 * MS)
    talk.send(100, 4)
    for psn in (101, 101, 101, 103):
        talk.ack(psn)
    frames = list(talk.frames)
    if moved:
        frames += [frames.pop(before), frames.pop(before)]
    path = tmp_path / "stamped.pcap"
    path.write_bytes(pcap(frames, unit="ns"))
    analysis = rocekit.analyze(path)
    assert [order.by for order in analysis.capture.orders.values()] == (["time"] if moved else [])
    found = only(analysis.findings, "tail-loss")
    assert ("PSN 102 was probably lost" in found.title) == moved
    assert found.evidence.get("or_overtaken", 0) == moved
    assert ("The host may have taken it that late" in found.advice) == moved
