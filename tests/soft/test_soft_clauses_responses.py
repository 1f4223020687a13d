"""What an RC requester does with responses (IBA Vol. 1: 9.7.5.2, 9.9.2).

The responder is a plain peer that shares no code with rocekit (tests/tools/plain_peer.py).
"""

from __future__ import annotations

from functools import partial

import plain_peer as p
import pytest
from clause_bench import (
    FULL,
    MTU,
    Bench,
    Case,
    Clauses,
)
from plain_peer import Seen, aeth

clause = Clauses()
#: 4.096 µs × 2^14, the local ACK timeout of the bench.
TIMEOUT = 67_108_864
OK = aeth(p.ACK_UNLIMITED, 1)


def _kinds(seen: list[Seen]) -> list[int]:
    return [s.operation for s in seen]


# -- 9.7.5.2.1: acknowledgements


@clause("9.7.5.2.1", "an ACK completes its request")
def _(b: Bench) -> None:
    b.post("SEND")
    b.ack(0)
    assert b.statuses() == [(1, "SUCCESS")]


@clause("9.7.5.2.1", "one ACK completes all requests up to its PSN, in order")
def _(b: Bench) -> None:
    for n in range(4):
        b.post("SEND", wr_id=n)
    b.ack(2)
    assert b.statuses() == [(0, "SUCCESS"), (1, "SUCCESS"), (2, "SUCCESS")]


@clause("9.7.5.2.1", "an ACK inside a message completes nothing yet")
def _(b: Bench) -> None:
    b.post("SEND", 3 * MTU)
    b.ack(1)
    assert b.statuses() == []
    b.ack(2)
    assert b.statuses() == [(1, "SUCCESS")]


@clause("9.7.5.2.2", "an ACK of a PSN never sent is dropped")
def _(b: Bench) -> None:
    b.post("SEND")
    b.silent(b.ack(1))
    b.silent(b.ack(1000))
    assert b.statuses() == []


@clause("9.7.5.2.2", "an ACK received before is dropped")
def _(b: Bench) -> None:
    b.post("SEND", wr_id=1)
    b.ack(0)
    b.post("SEND", wr_id=2)
    b.silent(b.ack(0))
    assert b.statuses() == [(1, "SUCCESS")]


@clause("9.7.5.2.2", "an ACK without any request is dropped")
def _(b: Bench) -> None:
    b.silent(b.ack(0))
    b.silent(b.ack(-1))


def _no_ack(operation: int, headers: bytes, payload: bytes, b: Bench) -> None:
    b.post("SEND")
    b.answer(operation, 0, headers, payload)
    assert (1, "SUCCESS") not in b.statuses()


clause.add(
    "9.7.5.2", "an ACK with payload acknowledges nothing", partial(_no_ack, p.ACKNOWLEDGE, OK, b"data")
)
for syndrome in (0x40, 0x5F, 0x65, 0x7F, 0xFF):
    clause.add(
        "9.7.5.2.1", f"reserved syndrome {syndrome:#04x} acknowledges nothing and refuses nothing",
        partial(_no_ack, p.ACKNOWLEDGE, aeth(syndrome), b""),
    )  # fmt: skip
clause.add(
    "9.9.2", "a READ response to a SEND is a bad response", partial(_no_ack, p.READ_ONLY, OK, b"data")
)  # fmt: skip


@clause("9.7.5.2", "an ACK with payload lets the request go on: the right one completes it")
def _(b: Bench) -> None:
    b.post("SEND")
    b.silent(b.answer(p.ACKNOWLEDGE, 0, OK, b"data"))
    b.ack(0)
    assert b.statuses() == [(1, "SUCCESS")]


# -- 9.9.2: READs


@clause("9.4.4", "the responses of a READ are written and complete it")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 2 * MTU + 3)
    b.answer(p.READ_FIRST, 0, OK, FULL)
    b.answer(p.READ_MIDDLE, 1, b"", FULL[::-1])
    assert b.statuses() == []
    b.answer(p.READ_LAST, 2, OK, b"end")
    assert b.statuses() == [(1, "SUCCESS")]
    assert b.memory(0x8000, 2 * MTU + 4) == FULL + FULL[::-1] + b"end\0"


@clause("9.4.4", "a READ of no bytes ends with an empty ONLY")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 0)
    b.answer(p.READ_ONLY, 0, OK)
    assert b.statuses() == [(1, "SUCCESS")]


def _bad_read(
    responses: list[tuple[int, int, bytes, bytes]],
    b: Bench,
    *,
    length: int = 2 * MTU + 4,
    status: str = "BAD_RESP_ERR",
) -> None:
    """These responses do not complete the READ, and the last of them ends it."""
    b.post("RDMA_READ", length)
    for operation, offset, headers, payload in responses:
        b.answer(operation, offset, headers, payload)
    assert b.statuses() == [(1, status)]
    assert b.qp.state == "ERR"


_F, _M = (p.READ_FIRST, 0, OK, FULL), (p.READ_MIDDLE, 1, b"", FULL)
for name, responses in {
    "MIDDLE in the place of FIRST": [(p.READ_MIDDLE, 0, b"", FULL)],
    "LAST in the place of FIRST": [(p.READ_LAST, 0, OK, FULL)],
    "ONLY in the place of FIRST": [(p.READ_ONLY, 0, OK, FULL)],
    "FIRST in the place of MIDDLE": [_F, (p.READ_FIRST, 1, OK, FULL)],
    "LAST in the place of MIDDLE": [_F, (p.READ_LAST, 1, OK, FULL)],
    "ONLY in the place of MIDDLE": [_F, (p.READ_ONLY, 1, OK, FULL)],
    "MIDDLE in the place of LAST": [_F, _M, (p.READ_MIDDLE, 2, b"", b"data")],
    "FIRST in the place of LAST": [_F, _M, (p.READ_FIRST, 2, OK, b"data")],
    "ONLY in the place of LAST": [_F, _M, (p.READ_ONLY, 2, OK, b"data")],
    "FIRST with a NAK in its AETH": [(p.READ_FIRST, 0, aeth(p.NAK_ACCESS), FULL)],
    "FIRST with an RNR NAK in its AETH": [(p.READ_FIRST, 0, aeth(p.RNR | 1), FULL)],
    "LAST with a NAK in its AETH": [_F, _M, (p.READ_LAST, 2, aeth(p.NAK_INVALID), b"data")],
    "an atomic's result": [(p.ATOMIC_ACK, 0, OK + bytes(8), b"")],
}.items():
    clause.add("9.9.2", f"READ of three packets: {name} is a bad response", partial(_bad_read, responses))
for name, responses in {
    "FIRST that is short": [(p.READ_FIRST, 0, OK, FULL[:-4])],
    "MIDDLE that is short": [_F, (p.READ_MIDDLE, 1, b"", FULL[:4])],
    "LAST that is short": [_F, _M, (p.READ_LAST, 2, OK, b"")],
    "LAST that is long": [_F, _M, (p.READ_LAST, 2, OK, b"too long")],
}.items():
    clause.add(
        "9.9.2",
        f"READ of three packets: {name} is a length error",
        partial(_bad_read, responses, status="LOC_LEN_ERR"),
    )
clause.add(
    "9.9.2",
    "READ of one packet: ONLY whose pad leaves less is a length error",
    partial(_bad_read, [(p.READ_ONLY, 0, OK, b"da")], length=4, status="LOC_LEN_ERR"),
)
for name, response in {
    "ONLY with a NAK in its AETH": (p.READ_ONLY, 0, aeth(p.NAK_PSN), b"data"),
    "FIRST": (p.READ_FIRST, 0, OK, b"data"),
    "LAST": (p.READ_LAST, 0, OK, b"data"),
    "MIDDLE": (p.READ_MIDDLE, 0, b"", b"data"),
}.items():
    clause.add(
        "9.9.2", f"READ of one packet: {name} is a bad response", partial(_bad_read, [response], length=4)
    )


def _bad_data_not_written(b: Bench) -> None:
    b.fill(0x8000, bytes(8))
    b.post("RDMA_READ", 8)
    b.answer(p.READ_ONLY, 0, aeth(p.NAK_ACCESS), bytes([255] * 8))
    assert b.memory(0x8000, 8) == bytes(8)


clause.add("9.9.2", "data beside a NAK is not written", _bad_data_not_written)


@clause("9.9.2", "a READ response that is missing is asked for again, from there on")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 3 * MTU)
    b.answer(p.READ_FIRST, 0, OK, FULL)
    (again,) = b.answer(p.READ_LAST, 2, OK, FULL)
    assert (again.operation, again.psn, again.va, again.length) == (
        p.READ_REQUEST,
        b.sq_psn + 1,
        0x5000 + MTU,
        2 * MTU,
    )
    b.answer(p.READ_FIRST, 1, OK, FULL)
    b.answer(p.READ_LAST, 2, OK, FULL)
    assert b.statuses() == [(1, "SUCCESS")]


@clause("9.9.2", "after it was asked for again, the late MIDDLE of the first response is taken too")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 3 * MTU)
    b.answer(p.READ_FIRST, 0, OK, FULL)
    b.answer(p.READ_LAST, 2, OK, FULL)
    b.answer(p.READ_MIDDLE, 1, b"", FULL)
    b.answer(p.READ_LAST, 2, OK, FULL)
    assert b.statuses() == [(1, "SUCCESS")]


@clause("9.9.2", "a READ response that came twice is taken once")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 2 * MTU)
    b.answer(p.READ_FIRST, 0, OK, FULL)
    b.silent(b.answer(p.READ_FIRST, 0, OK, bytes(MTU)))
    b.answer(p.READ_LAST, 1, OK, FULL)
    assert b.memory(0x8000, MTU) == FULL


@clause("9.9.2", "an ACK behind a READ without response is an implied NAK of the READ")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 4, 1)
    b.post("SEND", 4, 2)
    assert _kinds(b.ack(1)) == [p.READ_REQUEST, p.SEND_ONLY]
    assert b.statuses() == []


@clause("9.9.2", "a READ response acknowledges the SEND before it")
def _(b: Bench) -> None:
    b.post("SEND", 4, 1)
    b.post("RDMA_READ", 4, 2)
    b.answer(p.READ_ONLY, 1, OK, b"data")
    assert b.statuses() == [(1, "SUCCESS"), (2, "SUCCESS")]


@clause("9.4.5", "an atomic's result is written and completes it")
def _(b: Bench) -> None:
    b.post("ATOMIC_FETCH_AND_ADD", 8)
    b.answer(p.ATOMIC_ACK, 0, OK + (7).to_bytes(8, "big"))
    assert b.statuses() == [(1, "SUCCESS")]
    assert b.memory(0x8000, 8) == (7).to_bytes(8, "little")


for name, result in {
    "with a NAK in its AETH": (p.ATOMIC_ACK, aeth(p.NAK_ACCESS) + bytes(8), b""),
    "that is a READ result": (p.READ_ONLY, OK, bytes(8)),
}.items():

    def _bad_atomic(result: tuple[int, bytes, bytes], b: Bench) -> None:
        operation, headers, payload = result
        b.post("ATOMIC_FETCH_AND_ADD", 8)
        b.answer(operation, 0, headers, payload)
        assert b.statuses() == [(1, "BAD_RESP_ERR")]

    clause.add("9.9.2", f"an atomic's result {name} is a bad result", partial(_bad_atomic, result))


@clause("9.9.2", "an atomic's result with payload is not taken")
def _(b: Bench) -> None:
    b.post("ATOMIC_FETCH_AND_ADD", 8)
    b.answer(p.ATOMIC_ACK, 0, OK + bytes(8), b"data")
    assert (1, "SUCCESS") not in b.statuses()


@clause("9.9.2", "a plain ACK at an atomic's PSN does not complete it")
def _(b: Bench) -> None:
    b.post("ATOMIC_FETCH_AND_ADD", 8)
    assert _kinds(b.ack(0)) == [p.FETCH_ADD]
    assert b.statuses() == []


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_the_requester_does_what_the_specification_says(bench: dict[str, object], case: Case) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
