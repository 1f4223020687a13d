"""A summary that keeps few transfers says the same as one that keeps them all."""

from __future__ import annotations

import io
from pathlib import Path
from struct import unpack_from

import pytest
from capture_bytes import pcap
from talk import Talk

from rocekit import Analysis, analyze
from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.report.text import SHOWN_TRANSFERS
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random
from rocekit.track.ledger import WINDOW
from rocekit.track.outcomes import OUTSTANDING
from rocekit.track.rest.resting import rest
from rocekit.track.tracker import Tracker


def _same(path: Path) -> tuple[Analysis, Analysis]:
    """The analyses that keep all and few, after a look whether their reports are one."""
    every, few = analyze(path, journals=[]), analyze(path, journals=[], plain=SHOWN_TRANSFERS)
    assert str(few) == str(every)
    whole, short = every.to_dict(), few.to_dict()
    assert short["findings"] == whole["findings"]
    assert short["connections"] == whole["connections"]
    known = {t["id"]: t for t in whole["transfers"]}
    assert all(known[t["id"]] == t for t in short["transfers"])
    assert [t.id for t in few.transfers] == sorted(t.id for t in few.transfers)
    return every, few


@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_what_leaves_the_window_is_counted_and_gone(tmp_path: Path, loss: float) -> None:
    """More messages a direction than late repeats are looked for in, so that most are dropped on the way."""
    path = tmp_path / "x.pcap"
    messages = generate(
        path,
        Traffic(
            packets=10 * WINDOW, pairs=1, operations=OPERATIONS, sizes=(0, 64, 3000), loss=loss, ecn=0.01
        ),
    ).messages
    every, few = _same(path)
    assert len(every.transfers) == messages
    troubled = sum(not t.clean for t in every.transfers)
    assert troubled <= len(few.transfers) <= troubled + SHOWN_TRANSFERS + 8
    assert few.left_out.total() + len(few.transfers) == messages
    assert {t.id for t in few.transfers} >= {t.id for t in every.transfers if not t.clean}


@pytest.mark.parametrize("seed", range(30))
def test_random_talks_are_summed_up_alike(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.pcapng"
    run(random_program(seed), at_random({"drop": 0.05} if seed % 3 else {}), seed, capture=path)
    _same(path)


@pytest.mark.parametrize("seed", range(12))
def test_forgetting_in_the_middle_of_messages_loses_no_bytes(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.pcapng"
    run(random_program(seed), at_random({"drop": 0.05} if seed % 3 else {}), seed, capture=path)

    def sizes(*, forgets: bool) -> list[int]:
        decoder, tracker = Decoder(), Tracker(plain=0)
        with open_capture(path, batch_frames=3) as capture:
            for batch in capture:
                tracker.feed(decoder.decode(batch))
                if forgets:
                    tracker.forget()
        tracker.finish()
        return [connection.bytes for connection in tracker.connections]

    assert sizes(forgets=True) == sizes(forgets=False)


@pytest.mark.parametrize("rests", [False, True], ids=["awake", "at rest meanwhile"])
def test_bytes_are_counted_up_to_each_time_that_all_is_forgotten(rests: bool) -> None:
    """Responses of a READ whose request and end are not in the capture."""
    said = Talk()
    for n in range(20):
        said.send(n)
        said.packet("RC_ACKNOWLEDGE", n, by="b", syndrome=0x1F, msn=n + 1)
    asked = len(said.frames)
    for n in range(30):
        opcode = "RC_RDMA_READ_RESPONSE_MIDDLE" if n else "RC_RDMA_READ_RESPONSE_FIRST"
        said.packet(opcode, 20 + n, by="b", payload=bytes(1024))
    decoder, tracker, before = Decoder(), Tracker(plain=0), -1
    with open_capture(io.BytesIO(pcap(said.frames)), batch_frames=4) as capture:
        for seen, batch in enumerate(capture, 1):
            tracker.feed(decoder.decode(batch))
            tracker.forget()
            if rests:
                rest(tracker, 1 << 62)
            if 4 * seen == asked:
                before = tracker.connections[0].bytes
            elif before >= 0:
                assert tracker.connections[0].bytes == before + 1024 * min(30, 4 * seen - asked)
    tracker.finish()
    assert tracker.connections[0].bytes == before + 1024 * 30


def test_captures_of_others_are_summed_up_alike(others: Path) -> None:
    for path in sorted(others.glob("*.pcap")):
        _same(path)


def test_our_own_captures_are_summed_up_alike(pcaps: Path) -> None:
    for path in sorted(pcaps.glob("*.pcap*")):
        _same(path)


def _one_direction(path: Path, to: Path) -> None:
    """Leave in a capture only what the host that sends first sends."""
    data = path.read_bytes()
    parts, at, own = [data[:24]], 24, None
    while at < len(data):
        (length,) = unpack_from("<I", data, at + 8)
        src = data[at + 16 + 26 : at + 16 + 30]  # behind the Ethernet header, in IPv4's
        own = own or src
        if src == own:
            parts.append(data[at : at + 16 + length])
        at += 16 + length
    to.write_bytes(b"".join(parts))


@pytest.mark.parametrize("operation", ["SEND", "READ"])
def test_what_nobody_answers_is_dropped_once_its_answer_must_have_come(
    tmp_path: Path, operation: str
) -> None:
    """A requester has so many PSNs outstanding at the most: one that went on was answered, unseen."""
    both, one = tmp_path / "both.pcap", tmp_path / "one.pcap"
    packets = 2 * OUTSTANDING + 20 * WINDOW
    traffic = Traffic(
        packets=packets, pairs=1, both_directions=False, operations=(operation,), sizes=(0, 64, 300)
    )
    generate(both, traffic)
    _one_direction(both, one)
    every, few = _same(one)
    assert {t.status for t in every.transfers} == {"unacknowledged"}
    assert few.left_out["unacknowledged"] + len(few.transfers) == len(every.transfers)
    assert len(few.transfers) < OUTSTANDING + 3 * WINDOW + 2 * SHOWN_TRANSFERS < len(every.transfers)
    assert few.transfers[0].id == 0  # with what PSN a direction began tells something


def test_a_transfer_that_was_not_kept_is_refused_and_one_that_was_explained(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=3000, sizes=(64,), pairs=1))
    analysis = analyze(path, plain=1)
    kept = {t.id for t in analysis.transfers}
    dropped = next(n for n in range(1000) if n not in kept)
    with pytest.raises(ValueError, match="was not kept"):
        analysis.explain(dropped)
    assert analysis.explain(max(kept)).steps
    with pytest.raises(ValueError, match="no transfer"):
        analysis.explain(10**6)
    with pytest.raises(ValueError, match="all transfers"):
        analysis.statistics()


def test_a_journal_needs_every_transfer(tmp_path: Path) -> None:
    path, journal = tmp_path / "x.pcapng", tmp_path / "x.journal.jsonl"
    run(random_program(3), at_random({}), 3, capture=path, journal=journal)
    analysis = analyze(path, plain=0)
    assert analysis.journal is not None
    assert not analysis.left_out
