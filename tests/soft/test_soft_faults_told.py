"""Injected faults are told in the journal and in the capture, and an analysis is held to them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from amount import runs

from rocekit import analyze
from rocekit.journal import read_journal
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import Post, Program, QpSetup
from rocekit.soft.wires.faults import TYPES, Fault

DROPPED = (2, 11, 20)


def _faulty(folder: Path, faults: tuple[Fault, ...], seed: int = 0, first_psn: int = 0) -> Path:
    program = Program(
        (QpSetup(a_psn=first_psn),), tuple(Post(opcode="RDMA_WRITE", length=8192) for _ in range(4))
    )
    capture = folder / f"{seed}.pcapng"
    run(program, faults, seed, capture=capture, journal=folder / f"{seed}.journal.jsonl")
    return capture


def _told(capture: Path) -> list[tuple[str, int, int]]:
    """(type, time, PSN) of each fault that the journal tells."""
    journal = read_journal(capture.with_suffix(".journal.jsonl"))
    found = [e for e in journal.events if e.event == "fault_injected"]
    return [(e.fields["type"], e.time_ns, e.fields["psn"]) for e in found]


def _comments(capture: Path) -> list[tuple[str, int]]:
    """(comment, time) of each packet that has one: pcapng's enhanced packet blocks, option 1."""
    data, at, found = capture.read_bytes(), 0, []
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 6:
            _, high, low, caplen, _ = struct.unpack_from("<IIIII", data, at + 8)
            option = at + 28 + -(-caplen // 4) * 4
            while option < at + length - 4:
                code, size = struct.unpack_from("<HH", data, option)
                if code == 1:
                    found.append((data[option + 4 : option + 4 + size].decode(), high << 32 | low))
                option += 4 + -(-size // 4) * 4
        at += length
    return found


@pytest.mark.parametrize("kind", TYPES)
def test_each_kind_of_fault_is_in_journal_and_capture(kind: str, tmp_path: Path) -> None:
    capture = _faulty(tmp_path, (Fault(kind, psn=3),))
    ((told, time_ns, psn),) = _told(capture)
    ((comment, at_ns),) = _comments(capture)
    assert (told, psn, at_ns) == (kind, 2, time_ns)
    assert comment.startswith(f"fault: {kind}")


def test_a_run_without_faults_tells_none(tmp_path: Path) -> None:
    capture = _faulty(tmp_path, ())
    assert (_told(capture), _comments(capture)) == ([], [])


@pytest.mark.parametrize("seed", range(runs(8)))
def test_what_an_analysis_calls_lost_is_what_was_dropped(seed: int, tmp_path: Path) -> None:
    faults = tuple(Fault("drop", psn=(psn + seed) % 30 + 1) for psn in DROPPED)
    capture = _faulty(tmp_path, faults, seed, first_psn=0xFFFFF0)
    found = analyze(capture).findings
    losses = [f for f in found if f.rule in ("loss", "tail-loss")]
    said = {psn for f in losses for psn in f.evidence["psns"]}
    assert said == {psn for _, _, psn in _told(capture)}
    assert len(said) == len(DROPPED)
