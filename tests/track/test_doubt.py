"""Where two reasons for sending again fit, an event says so, and names only what the capture shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from amount import runs
from story import Story

from rocekit import wire
from rocekit.analysis import analyze
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.explanation.transfer import explain
from rocekit.packets import Packets
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.testbed.replay import compare
from rocekit.soft.wires.faults import at_random
from rocekit.track.events import Event
from rocekit.track.transfers import Transfer
from rocekit.wire import OPCODES, OWN_RESPONSE
from rocekit.wire.psn import HALF, MASK

WEATHER: tuple[dict[str, float], ...] = (
    {"drop": 0.1},
    {"drop": 0.05, "delay": 0.1},
    {"drop": 0.05, "reorder": 0.1, "duplicate": 0.05},
    {"drop": 0.25},
)


def answers(packets: Packets, transfer: Transfer, event: Event) -> list[tuple[int, int | None]]:
    """What the capture shows the requester to have been told before a go-back: how far behind the PSN that
    came again, and the syndrome of an acknowledgement.
    """
    to = packets.addresses.index(str(transfer.requester["ip"]))
    rows = (packets.dst == to) & (packets.dest_qpn == transfer.requester["qpn"])
    found = []
    for i in (rows & (packets.frame < event.frame)).nonzero()[0].tolist():
        opcode = OPCODES[int(packets.opcode[i])]
        if opcode.response:
            ahead = (int(packets.psn[i]) - event.psn + HALF & MASK) - HALF
            found.append((ahead, int(packets.syndrome[i]) if opcode.operation == "ACK" else None))
    return found


def is_shown(packets: Packets, transfer: Transfer, event: Event) -> bool:
    """Whether the capture has what an event's doubt names."""
    told = answers(packets, transfer, event)
    if event.doubt in ("nak", "rnr"):
        kind = wire.NAK if event.doubt == "nak" else wire.RNR_NAK
        return any(p <= 0 and s is not None and wire.syndrome_kind(s) == kind for p, s in told)
    if event.doubt == "implied_nak":
        return any(p >= 0 for p, _ in told) or transfer.operation in OWN_RESPONSE
    code = transfer.connection.negotiated[transfer.side].ack_timeout
    assert code is not None
    timeout_ns = wire.local_ack_timeout_ns(code)
    assert timeout_ns is not None
    first_ns = min(int(packets.time_ns[0]), transfer.first_ns)
    return event.time_ns - first_ns >= timeout_ns * 7 // 8


def test_a_doubt_names_only_what_the_capture_shows_and_the_truth_is_among_it(
    tmp_path: Path,
) -> None:
    capture = tmp_path / "x.pcapng"
    seeds = runs(300)
    doubts, wrong = 0, []
    for seed in range(seeds):
        faults = at_random(WEATHER[seed % len(WEATHER)])
        journal = tmp_path / "x.journal.jsonl"
        result = run(random_program(seed), faults, seed, capture=capture, journal=journal)
        transfers = analyze(capture).transfers
        wrong += [f"seed {seed}: {words}" for words in compare(result, transfers).differences]
        found = [(t, e) for t in transfers for e in t.events if e.kind == "repeat" and e.opens and e.doubt]
        if not found:
            continue
        with open_capture(capture) as reader:
            decoder = Decoder()
            packets = Packets.concat([decoder.decode(batch) for batch in reader])
        for transfer, event in found:
            doubts += 1
            if not is_shown(packets, transfer, event):
                wrong.append(f"seed {seed}: {transfer}: {event}")
    assert doubts > seeds // 15
    assert not wrong, "\n".join(wrong)


TOLD_LATE = "a RC_SEND_ONLY 5 64\n+{}us\nb {} 5\n{}a RC_SEND_ONLY 5 64\nb ACK 5"


@pytest.mark.parametrize(
    ("late_us", "refused", "wait", "said"),
    [
        (
            67_108,
            "NAK",
            "",
            "after the NAK or a timeout (67.11 ms after it was last sent): both are possible",
        ),
        (
            66_468,
            "RNR",
            "+639us\n",
            "after the RNR NAK (640 µs before) or a timeout (67.11 ms after it was last sent): both are "
            "possible",
        ),
    ],
)
def test_an_explanation_names_the_other_reason(
    tmp_path: Path, late_us: int, refused: str, wait: str, said: str
) -> None:
    text = TOLD_LATE.format(late_us, refused, wait)
    analysis = Story().connect(5, 900).lines(text).analyze(tmp_path)
    (step,) = [s for s in explain(analysis.transfers[0], analysis).steps if s.what.endswith("again")]
    assert said in step.detail


def test_a_nak_that_nobody_saw_is_no_other_reason(tmp_path: Path) -> None:
    """The timer runs out, late; there is nothing else that it could have been."""
    text = "a RC_SEND_ONLY 5 64\n+80ms\na RC_SEND_ONLY 5 64\nb ACK 5"
    (transfer,) = Story().connect(5, 900).lines(text).analyze(tmp_path).transfers
    (event,) = transfer.events
    assert (event.cause, event.doubt) == ("timeout", None)
