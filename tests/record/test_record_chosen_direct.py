"""The claim about queues that are followed by the bytes of records: lines and counts are the long way's."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from test_record_direct import AH, OTHER_AH, lines_of

from rocekit.journal.redaction import Redaction
from rocekit.record import ring
from rocekit.record.lines.chosen_lines import ChosenLines
from rocekit.record.lines.selection import RecordFilter
from rocekit.record.losses import Loss
from rocekit.record.process import Process

SRQ = 77
QPS = range(1, 8)
"""1 to 6 are made in the recording, 5 and 6 with a shared receive queue; 7 was made before."""


class LongWay(ChosenLines):
    """The same without the short way."""

    def direct(self, raw: bytes) -> str | None:
        return None


def made_qp(number: int) -> bytes:
    kind, srq = (4 if number in (2, 5) else 2), (SRQ if number in (5, 6) else 0)
    body = ring.QP_BODY.pack(kind, 1, 1, 1, 1, 0, srq, number == 3, 0, 0, 1)
    raw = ring.HEADER.pack(ring.QP_CREATED, 2, 0, 0, number, 1, 1) + body[:32] + bytes(16) + body[32:]
    return raw.ljust(128, b"\0")


def maker(kind: type[ChosenLines], choice: RecordFilter, redaction: Redaction | None = None) -> ChosenLines:
    process = Process("a", 7, devices={0: "rxe0"})
    process.handles |= {AH: ("10.9.0.1", "10.9.0.2"), OTHER_AH: (None, "fd00:9::2")}
    return kind(choice, process, redaction)


def send(dice: random.Random, at: int, number: int, wr_id: int) -> bytes:
    special = dice.choice((0, 0, 0, ring.SEND_UD, ring.SEND_ATOMIC))
    opcode, items = dice.choice((0, 2, 2, 2, 4, 5, 8, 9, 40)), dice.choice((1, 1, 1, 2)) + bool(special)
    flags = special | dice.choice((0, 2, 2, 2))
    body = ring.SEND_BODY.pack(
        wr_id, 0x7000, 0xABD, 0x123, 8, opcode, flags, items, dice.random() < 0.01 and 12
    )
    before = dice.choice((at, at, ring.NO_PSN, ring.OVERLAPPED if dice.random() < 0.1 else at))
    first = ring.SGE.pack(dice.choice((AH, OTHER_AH)), 8, 5)
    more = before.to_bytes(8, "little") + first + ring.SGE.pack(0x2000, 8, 6)
    head = ring.HEADER.pack(ring.SEND, 2, 0, dice.choice((0, 3)), number, at, at)
    return (head + body + bytes(8) + more).ljust(128, b"\0")


def receive(dice: random.Random, at: int, number: int, wr_id: int, srq: int) -> bytes:
    head = ring.HEADER.pack(ring.RECV, 1, 0, 0, number, at, at)
    body = ring.RECV_BODY.pack(wr_id, srq, 1, dice.random() < 0.01 and 12, 0)
    return (head + body + ring.SGE.pack(0x3000, 64, 7)).ljust(64, b"\0")


def completion(at: int, number: int, wr_id: int, opcode: int, status: int) -> bytes:
    head = ring.HEADER.pack(ring.WC, 1, 0, 0, number, at, at)
    return (head + ring.WC_BODY.pack(wr_id, 8, 0, 0x88, 0, 0, status, opcode)).ljust(64, b"\0")


def talk(dice: random.Random, count: int) -> Iterator[bytes | Loss | None]:
    """What queues do: mostly in order, few failures; sometimes records are lost, or a QP is made again."""
    sends: dict[int, list[tuple[int, bool]]] = {number: [] for number in QPS}
    receives: dict[int, list[int]] = {number: [] for number in (*QPS, SRQ)}
    yield from map(made_qp, QPS[:-1])
    for at in range(10, count):
        number, what, wr_id = dice.choice(QPS), dice.random(), dice.choice((1, 2, at, at))
        shared = SRQ if number in (5, 6) and dice.random() < 0.98 else 0
        place = shared or number
        if what < 0.3:
            raw = send(dice, at, number, wr_id)
            sends[number].append((wr_id, bool(raw[61] & 2) or number == 3))
            yield raw
        elif what < 0.5:
            receives[place].append(wr_id)
            yield receive(dice, at, 0 if shared else number, wr_id, shared)
        elif what < 0.7 and receives[place]:
            # Of a shared queue not always the oldest comes first.
            k = dice.randrange(len(receives[place])) if shared and dice.random() < 0.3 else 0
            ended = receives[place].pop(k)
            yield completion(at, number, ended, 128, dice.random() < 0.02 and 5)
        elif what < 0.98 and sends[number]:
            ended, signaled = sends[number].pop(0)
            if signaled or dice.random() < 0.02:
                yield completion(at, number, ended, 0, dice.random() < 0.02 and 5)
        elif what < 0.985:
            yield completion(at, number, 999, dice.choice((0, 128)), 0)
        elif what < 0.9855:
            yield dice.choice((None, Loss(0, number, False, 1, 0, 0), Loss(0, SRQ, True, 0, 1, 0)))
        elif what < 0.987 and number < QPS[-1]:
            sends[number].clear()
            yield made_qp(number)


CHOICES = [
    RecordFilter(summary=True),
    RecordFilter(every=7),
    RecordFilter(opcodes=frozenset({"SEND", "RECV"})),
    RecordFilter(qps=frozenset({2, 3, 5}), summary=True),
    RecordFilter(every=3, errors=2),
]


@pytest.mark.parametrize("redacted", [False, True])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_what_is_followed_by_its_bytes_is_what_is_followed_the_long_way(
    choice: RecordFilter, redacted: bool
) -> None:
    ways = [
        maker(kind, choice, Redaction(b"k" * 32) if redacted else None) for kind in (ChosenLines, LongWay)
    ]
    short, long = ways
    direct = failures = 0
    totals: Counter[str] = Counter()
    for seed in range(3):
        for event in talk(random.Random(seed), 2500):
            if not isinstance(event, bytes):
                for one in ways:
                    one.lose(event)
                continue
            line = short.direct(event)
            direct += line is not None
            found = lines_of(short, event) if line is None else [line] if line else []
            assert found == lines_of(long, event)
            failures += any('"status":"LOC_QP_OP_ERR"' in one or "WR_FLUSH" in one for one in found)
        told = [list(map(without_time, one.left_out())) for one in ways]
        assert told[0] == told[1]
        for event_of in told[0]:
            totals.update(event_of.get("totals", {}))
    assert short.left_out_records == long.left_out_records
    assert failures > 5
    assert direct > 500 or choice.errors
    if choice.summary:
        assert {"SEND", "bytes", "completions", "timed", "failed", "refused"} <= {
            k for k, v in totals.items() if v
        }


def without_time(line: str) -> dict[str, Any]:
    return {
        key: value for key, value in json.loads(line).items() if key not in ("time_ns", "mono_ns", "since_ns")
    }
