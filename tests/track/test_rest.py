"""Connections at rest are told of as if they had stayed awake."""

from __future__ import annotations

import ast
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from places import PCAPS
from talk import Talk

import rocekit
from rocekit.analysis import Analysis, conclude
from rocekit.capture import open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder
from rocekit.explanation.results import CaptureSummary
from rocekit.flows.observer import Observer
from rocekit.live.letting_go import let_go
from rocekit.report.text import summary as text_of
from rocekit.track.rest.numbers import NumberReader, NumberWriter
from rocekit.track.rest.resting import REST_AFTER_NS, Rests, rest
from rocekit.track.rest.sides import PackedSide
from rocekit.track.tracker import Tracker
from rocekit.track.transfers import Transfer

LATER_NS = 1 << 62


def followed(
    source: Path | Sequence[Frame], *, rests: bool, batch: int, plain: int = 20, forget_every: int = 0
) -> tuple[Analysis, list[Transfer], int]:
    """A capture followed as a live view does; gives what ended, and how often a side rested."""
    ended: list[Transfer] = []
    decoder, tracker, observer = Decoder(), Tracker(on_end=ended.append, plain=plain), Observer()
    summary = CaptureSummary(
        files=["x"], counts=decoder.counts, pauses=decoder.pauses, witnesses=decoder.witnesses, live=True
    )
    taken = rested = 0
    stream = source if isinstance(source, Path) else io.BytesIO(pcap(source, unit="ns"))
    with open_capture(stream, batch_frames=batch) as capture:
        for part in capture:
            packets = decoder.decode(part)
            summary.sampler.feed(part, packets)
            observer.messages.feed(packets)
            observer.feed(packets)
            tracker.feed(packets)
            taken += 1
            if forget_every and taken % forget_every == 0:
                tracker.forget()
            if rests:
                rest(tracker, LATER_NS)
                rested += sum(isinstance(side, PackedSide) for side in tracker._sides)
    tracker.finish()
    return conclude(tracker, observer, summary, None, None), ended, rested


def told(analysis: Analysis) -> tuple[str, str]:
    """Document and text."""
    return json.dumps(analysis.to_dict(), indent=1), text_of(analysis, transfers=None)


def rows(ended: Sequence[Transfer]) -> list[str]:
    return [json.dumps(transfer.to_dict()) for transfer in ended]


@pytest.mark.parametrize("path", sorted(PCAPS.glob("*.pcap"))[::6], ids=lambda path: path.name)
def test_the_result_is_the_same_with_rest_after_each_packet(path: Path) -> None:
    awake, ended, _ = followed(path, rests=False, batch=1)
    rested, ended_too, _ = followed(path, rests=True, batch=1)
    assert told(rested) == told(awake)
    assert rows(ended_too) == rows(ended)


@pytest.mark.parametrize("seed", range(4))
def test_the_result_is_the_same_for_all_operations_with_losses(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    path = tmp_path / "x.pcap"
    loss = draw.choice((0.0, 0.0005, 0.02))
    traffic = Traffic(
        packets=800,
        operations=OPERATIONS,
        sizes=(0, 100, 4_000),
        loss=loss,
        pairs=draw.choice((2, 9)),
        seed=seed,
    )
    generate(path, traffic)
    batch, forget_every, plain = draw.choice((1, 3, 17)), draw.choice((0, 7)), draw.choice((0, 5, 10_000))
    awake, ended, _ = followed(path, rests=False, batch=batch, plain=plain, forget_every=forget_every)
    rested, ended_too, count = followed(path, rests=True, batch=batch, plain=plain, forget_every=forget_every)
    assert told(rested) == told(awake)
    assert rows(ended_too) == rows(ended)
    assert count > 20


@pytest.mark.parametrize("name", ["mesh-loss.pcap", "ib_write_bw-4qp-loss.pcap", "ping-read-loss.pcap"])
def test_those_at_rest_get_new_numbers_as_others_do(name: str) -> None:
    """A live view that lets connections go numbers those that stay anew."""

    def ends(*, rests: bool) -> tuple[list[tuple[int, int, str, int, int]], int]:
        ended: list[Transfer] = []
        decoder, tracker, rested = Decoder(), Tracker(on_end=ended.append, plain=10_000), 0
        with open_capture(PCAPS / name, batch_frames=20) as capture:
            for part in capture:
                tracker.feed(decoder.decode(part))
                if rests:
                    rest(tracker, LATER_NS)
                    rested += sum(isinstance(side, PackedSide) for side in tracker._sides)
                if all(flow.connection is not None for flow in tracker._flows.values()):
                    let_go(tracker, decoder, ())
        tracker.finish()
        of = [(t.first_frame, t.last_frame, t.status, t.bytes, t.retransmitted_packets) for t in ended]
        return of, rested

    awake, _ = ends(rests=False)
    resting, rested = ends(rests=True)
    assert resting == awake
    assert rested > 0


def talk(exchanges: int) -> list[Frame]:
    """A connection with so many SENDs and ACKs."""
    said = Talk()
    for n in range(exchanges):
        said.send(n)
        said.packet("RC_ACKNOWLEDGE", n, by="b", syndrome=0x1F, msn=n + 1)
    return said.frames


def test_a_live_view_lets_rest_what_is_not_used_for_ten_seconds() -> None:
    frames = talk(30)
    decoder, tracker, rests = Decoder(), Tracker(plain=0), Rests()
    with open_capture(io.BytesIO(pcap(frames, unit="ns")), batch_frames=len(frames)) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
    (connection,) = tracker.connections
    last_ns = connection.last_ns or 0

    def resting() -> int:
        return sum(isinstance(side, PackedSide) for side in tracker._sides)

    rests.look(tracker, last_ns)
    rests.look(tracker, last_ns + REST_AFTER_NS)  # just that long
    assert resting() == 0
    rests.look(tracker, last_ns + REST_AFTER_NS + 1)  # too soon after the last look
    assert resting() == 0
    rests.look(tracker, last_ns + 3 * REST_AFTER_NS)
    assert resting() == 1
    assert all(flow.clean is None for flow in tracker._flows.values())
    progress = connection.progress[0]
    assert progress is not None
    assert progress.acked - progress.begin == 30  # what rules and views read is there


def test_thousands_of_messages_at_rest_take_tens_of_bytes_each() -> None:
    decoder, tracker = Decoder(), Tracker(plain=0)
    with open_capture(io.BytesIO(pcap(talk(1_500), unit="ns"))) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
    tracker.forget()
    rest(tracker, LATER_NS)
    (packed,) = (side for side in tracker._sides if side is not None)
    assert isinstance(packed, PackedSide)
    assert packed.objects is None
    assert len(packed.data) < 1_500 * 40


def test_numbers_come_back() -> None:
    draw = random.Random(5)
    numbers = [draw.getrandbits(draw.randrange(63)) * draw.choice((-1, 1)) for _ in range(500)]
    numbers += [0, 1, -1, (1 << 63) - 1, -(1 << 63)]
    out = NumberWriter()
    for number in numbers:
        out.put(number)
        out.put_ns(number)
    out.put((1 << 64) - 2 - (1 << 64))  # as an address of 64 bits is written where C has it
    data = NumberReader(out.written())
    assert [(data.take(), data.take_ns()) for _ in numbers] == [(number, number) for number in numbers]
    assert data.take_unsigned() == (1 << 64) - 2


def test_every_field_of_a_transfer_is_packed() -> None:
    """One that is forgotten here would have its first value again after a rest."""
    folder = Path(rocekit.__file__).parent / "track"
    (of,) = (
        node
        for node in ast.parse((folder / "transfers.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Transfer"
    )
    (begin,) = (node for node in of.body if isinstance(node, ast.FunctionDef) and node.name == "set_up")
    fields = {
        node.attr
        for node in ast.walk(begin)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert {"id", "events", "maybe_several", "particulars"} <= fields
    packing = (folder / "rest" / "sides.py").read_text()
    assert {name for name in fields if f"transfer.{name}" not in packing} == {"connection", "side"}


@pytest.mark.parametrize("lane", [True, False])
@pytest.mark.parametrize(("operation", "asks"), [("READ", True), ("WRITE", False), ("SEND", False)])
def test_a_ledger_knows_whether_its_side_asked_for_responses(
    tmp_path: Path, operation: str, asks: bool, *, lane: bool
) -> None:
    """Beside the state machine, in it, and after a rest: else no cause would be sought among its READs."""
    path = tmp_path / "x.pcap"
    generate(path, Traffic(packets=400, operations=(operation,), sizes=(3_000,), pairs=2))
    decoder, tracker, rested = Decoder(), Tracker(plain=10_000, clean_lane=lane), 0
    with open_capture(path, batch_frames=90) as capture:
        for part in capture:
            tracker.feed(decoder.decode(part))
            rest(tracker, LATER_NS)
            rested += sum(isinstance(side, PackedSide) for side in tracker._sides)
    sides = [tracker._awake(connection, side) for connection in tracker.connections for side in (0, 1)]
    assert {side.ledger.asks for side in sides if side is not None and side.ledger.window} == {asks}
    assert rested
