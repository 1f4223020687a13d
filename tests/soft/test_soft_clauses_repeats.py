"""What an RC requester sends, and sends again (IBA Vol. 1: 9.7.2, 9.7.5.2, 9.7.6).

The responder is a plain peer that shares no code with rocekit (tests/tools/plain_peer.py).
"""

from __future__ import annotations

from functools import partial

import plain_peer as p
import pytest
from clause_bench import (
    FULL,
    MEMORY,
    MS,
    MTU,
    PEER_QPN,
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


# -- what is sent


@pytest.mark.parametrize(
    ("opcode", "length", "kinds"),
    [
        ("SEND", 0, [p.SEND_ONLY]),
        ("SEND", MTU, [p.SEND_ONLY]),
        ("SEND", MTU + 1, [p.SEND_FIRST, p.SEND_LAST]),
        ("SEND_WITH_IMM", 2 * MTU + 1, [p.SEND_FIRST, p.SEND_MIDDLE, p.SEND_LAST_IMM]),
        ("SEND_WITH_INV", 1, [p.SEND_ONLY_INV]),
        ("RDMA_WRITE", 0, [p.WRITE_ONLY]),
        ("RDMA_WRITE", 2 * MTU, [p.WRITE_FIRST, p.WRITE_LAST]),
        ("RDMA_WRITE_WITH_IMM", 1, [p.WRITE_ONLY_IMM]),
        ("RDMA_WRITE_WITH_IMM", MTU + 1, [p.WRITE_FIRST, p.WRITE_LAST_IMM]),
        ("RDMA_READ", 5 * MTU, [p.READ_REQUEST]),
        ("ATOMIC_FETCH_AND_ADD", 8, [p.FETCH_ADD]),
        ("ATOMIC_CMP_AND_SWP", 8, [p.CMP_SWAP]),
        ("ATOMIC_WRITE", 8, [p.ATOMIC_WRITE]),
    ],
)
def test_a_request_has_the_packets_that_9_7_2_gives_it(opcode: str, length: int, kinds: list[int]) -> None:
    b = Bench()
    b.fill(0x8000, (FULL * 8)[:length])
    seen = b.post(opcode, length)
    assert _kinds(seen) == kinds
    assert [s.psn for s in seen] == [b.sq_psn + n for n in range(len(kinds))]
    assert seen[-1].ackreq
    assert {s.qpn for s in seen} == {PEER_QPN}
    assert {s.pkey for s in seen} == {0xFFFF}
    if kinds[0] not in (p.READ_REQUEST, p.FETCH_ADD, p.CMP_SWAP):
        assert b"".join(s.payload for s in seen) == (FULL * 8)[:length]
        assert seen[-1].pad == -length % 4
    if kinds[0] in (p.WRITE_FIRST, p.WRITE_ONLY, p.WRITE_ONLY_IMM, p.READ_REQUEST):
        assert (seen[0].va, seen[0].rkey, seen[0].length) == (0x5000, 0x77, length)


@clause("9.7.2", "the PSN after a READ is behind its responses")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 3 * MTU)
    assert [s.psn for s in b.post("RDMA_WRITE", 4)] == [b.sq_psn + 3]


@clause("9.7.2", "own PSNs wrap", sq_psn=0xFFFFFF)
def _(b: Bench) -> None:
    assert [s.psn for s in b.post("SEND", 2 * MTU)] == [0xFFFFFF, 0]
    b.answer(p.ACKNOWLEDGE, 1, OK)
    assert b.statuses() == [(1, "SUCCESS")]


@clause("12.7.29", "no more READs at a time than the initiator depth", max_rd_atomic=2)
def _(b: Bench) -> None:
    for n in range(3):
        b.post("RDMA_READ", 4, n)
    assert _kinds(b.answer(p.READ_ONLY, 0, OK, b"data")) == [p.READ_REQUEST]


@clause("10.8.3.3", "a fenced request waits for the READ before it")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 4, 1)
    assert b.post("SEND", 4, 2, fenced=True) == []
    assert _kinds(b.answer(p.READ_ONLY, 0, OK, b"data")) == [p.SEND_ONLY]


# -- 9.7.5.2.5 to 9.7.5.2.8: NAKs


@clause("9.7.5.2.5", "a NAK of a PSN goes back to it, and acknowledges what is before it")
def _(b: Bench) -> None:
    for n in range(4):
        b.post("SEND", wr_id=n)
    again = b.ack(2, p.NAK_PSN, 2)
    assert [s.psn for s in again] == [b.sq_psn + 2, b.sq_psn + 3]
    assert b.statuses() == [(0, "SUCCESS"), (1, "SUCCESS")]


@clause("9.7.5.2.5", "a NAK inside a message goes back to that packet")
def _(b: Bench) -> None:
    b.post("SEND", 4 * MTU)
    assert _kinds(b.ack(2, p.NAK_PSN, 0)) == [p.SEND_MIDDLE, p.SEND_LAST]


@clause("9.7.5.2.5", "the same NAK again does not go back again")
def _(b: Bench) -> None:
    b.post("SEND", 4 * MTU)
    b.ack(2, p.NAK_PSN, 0)
    b.silent(b.ack(2, p.NAK_PSN, 0))


for syndrome, status in (
    (p.NAK_INVALID, "REM_INV_REQ_ERR"), (p.NAK_ACCESS, "REM_ACCESS_ERR"), (p.NAK_OPERATION, "REM_OP_ERR"),
):  # fmt: skip

    def _fatal(syndrome: int, status: str, b: Bench) -> None:
        for n in range(3):
            b.post("SEND", wr_id=n)
        assert b.ack(1, syndrome, 1) == []
        assert b.statuses() == [(0, "SUCCESS"), (1, status), (2, "WR_FLUSH_ERR")]
        assert b.qp.state == "ERR"

    clause.add(
        "9.7.5.2.6",
        f"NAK {syndrome:#x} ends its request with {status}, and the QP",
        partial(_fatal, syndrome, status),
    )


@clause("9.7.5.2.6", "a fatal NAK at a READ's PSN ends the READ")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 2 * MTU)
    b.ack(0, p.NAK_ACCESS, 0)
    assert b.statuses() == [(1, "REM_ACCESS_ERR")]


def _rnr(code: int, us: int, b: Bench) -> None:
    b.post("SEND")
    b.silent(b.ack(0, p.RNR | code, 0))
    b.silent(b.later(us * 1000 - 1))
    assert _kinds(b.later(1)) == [p.SEND_ONLY]


#: Table "Encoding for RNR NAK Timer Field" (9.7.5.2.8).
for code, us in ((0, 655_360), (1, 10), (2, 20), (5, 60), (12, 640), (16, 2560), (31, 491_520)):
    clause.add("9.7.5.2.8", f"RNR code {code} waits {us:,} µs", partial(_rnr, code, us))


@clause("9.7.5.2.8", "while it waits for the receiver, nothing else is sent")
def _(b: Bench) -> None:
    b.post("SEND", wr_id=1)
    b.ack(0, p.RNR | 12, 0)
    assert b.post("SEND", wr_id=2) == []
    assert b.later(30 * MS) != []


@clause("9.7.5.2.8", "rnr_retry 7 never gives up", rnr_retry=7)
def _(b: Bench) -> None:
    b.post("SEND")
    for _ in range(40):
        b.ack(0, p.RNR | 1, 0)
        assert _kinds(b.later(10_000)) == [p.SEND_ONLY]


for retries in (0, 1, 3):

    def _rnr_limit(retries: int, b: Bench) -> None:
        b.post("SEND")
        for _ in range(retries):
            b.ack(0, p.RNR | 1, 0)
            assert _kinds(b.later(10_000)) == [p.SEND_ONLY]
        b.ack(0, p.RNR | 1, 0)
        assert b.statuses() == [(1, "RNR_RETRY_EXC_ERR")]

    clause.add(
        "9.7.5.2.8",
        f"rnr_retry {retries}: so many repeats, and no more",
        partial(_rnr_limit, retries),
        rnr_retry=retries,
    )

# -- 9.7.6: the timer, and how often

for retries in (0, 1, 3, 7):

    def _timeouts(retries: int, b: Bench) -> None:
        b.post("SEND", 2 * MTU)
        for _ in range(retries):
            b.silent(b.later(TIMEOUT - 1))
            assert _kinds(b.later(1)) == [p.SEND_FIRST, p.SEND_LAST]
        assert b.later(TIMEOUT) == []
        assert b.statuses() == [(1, "RETRY_EXC_ERR")]
        assert b.qp.state == "ERR"

    clause.add(
        "9.7.6.1.3",
        f"retry_cnt {retries}: so many repeats after timeouts, and no more",
        partial(_timeouts, retries),
        retry_cnt=retries,
    )


@clause("9.7.6.1.3", "retry_cnt counts NAKs and timeouts together", retry_cnt=1)
def _(b: Bench) -> None:
    b.post("SEND", 2 * MTU)
    assert _kinds(b.ack(0, p.NAK_PSN, 0)) == [p.SEND_FIRST, p.SEND_LAST]
    b.later(TIMEOUT)
    assert b.statuses() == [(1, "RETRY_EXC_ERR")]


@clause("9.7.6.1.3", "progress restores the retries", retry_cnt=1)
def _(b: Bench) -> None:
    b.post("SEND", 3 * MTU)
    for n in range(2):
        assert b.later(TIMEOUT) != []
        b.ack(n)
    assert b.later(TIMEOUT) != []
    b.ack(2)
    assert b.statuses() == [(1, "SUCCESS")]


@clause("9.7.6.1.3", "timeout 0 waits for ever", timeout=0)
def _(b: Bench) -> None:
    b.post("SEND")
    assert b.later(100_000 * MS) == []


@clause("9.7.6.1.3", "progress restarts the timer")
def _(b: Bench) -> None:
    b.post("SEND", wr_id=1)
    b.post("SEND", wr_id=2)
    b.later(TIMEOUT - 1)
    b.ack(0)
    b.silent(b.later(TIMEOUT - 1))
    assert _kinds(b.later(1)) == [p.SEND_ONLY]


@clause("9.7.6.1.3", "when all is acknowledged, no timer runs")
def _(b: Bench) -> None:
    b.post("SEND")
    b.ack(0)
    b.silent(b.later(100 * TIMEOUT))


@clause("9.7.6.1.3", "the timer does not run before an acknowledgement was asked for")
def _(b: Bench) -> None:
    b.post_only("SEND", 3 * MTU)
    (first,) = b.sent(1)
    assert not first.ackreq
    b.wait_unsent(3 * TIMEOUT)
    assert b.device.counters["timeouts"] == 0
    assert _kinds(b.sent()) == [p.SEND_MIDDLE, p.SEND_LAST]
    assert _kinds(b.later(TIMEOUT)) == [p.SEND_FIRST, p.SEND_MIDDLE, p.SEND_LAST]


@clause("9.7.6.1.3", "the timer does not end while own packets wait to be sent")
def _(b: Bench) -> None:
    for n in range(3):
        b.post_only("SEND", 4, n)
    (first,) = b.sent(1)
    assert first.ackreq
    b.wait_unsent(3 * TIMEOUT)
    assert b.device.counters["timeouts"] == 0
    assert [s.psn for s in b.sent()] == [b.sq_psn + 1, b.sq_psn + 2]
    b.silent(b.later(TIMEOUT - 1))
    assert _kinds(b.later(1)) == [p.SEND_ONLY] * 3


@clause("9.7.6.1.3", "an RNR wait has no ACK timeout")
def _(b: Bench) -> None:
    b.post("SEND")
    b.ack(0, p.RNR | 0, 0)  # 655 ms, ten times the timeout
    b.silent(b.later(655 * MS))
    assert b.device.counters["timeouts"] == 0


@clause("9.7.6.1.3", "a READ without response is asked for again from its missing part")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 3 * MTU)
    b.answer(p.READ_FIRST, 0, OK, FULL)
    (again,) = b.later(TIMEOUT)
    assert (again.psn, again.va, again.length) == (b.sq_psn + 1, 0x5000 + MTU, 2 * MTU)


@clause("9.7.5.2", "an acknowledgement is asked for inside a long message, before the window is full")
def _(b: Bench) -> None:
    seen = b.post("SEND", 200 * MTU, at=0)
    assert len(seen) < 200
    asked = [n for n, s in enumerate(seen) if s.ackreq]
    assert asked
    assert b.ack(asked[-1]) != []


# -- 9.7.7.2: credits


@clause("9.7.7.2.5", "without credit one SEND goes out, and the next with the credit", flow_control=True)
def _(b: Bench) -> None:
    b.post("SEND", wr_id=1)
    b.ack(0, 0, 1)  # no receives are left
    assert _kinds(b.post("SEND", wr_id=2)) == [p.SEND_ONLY]
    assert b.post("SEND", wr_id=3) == []
    assert _kinds(b.ack(1, 1, 2)) == [p.SEND_ONLY]


@clause("9.7.7.2.5", "a WRITE needs no credit", flow_control=True)
def _(b: Bench) -> None:
    b.post("SEND", wr_id=1)
    b.ack(0, 0, 1)
    assert _kinds(b.post("RDMA_WRITE", 4, 2) + b.post("RDMA_WRITE", 4, 3)) == [p.WRITE_ONLY] * 2


# -- local errors


@clause("11.6.2", "a wrong L_Key ends the request with LOC_PROT_ERR after those before it")
def _(b: Bench) -> None:
    b.post("SEND", wr_id=1)
    b.post("SEND", 8, 2, at=MEMORY)
    assert b.statuses() == []
    b.ack(0)
    assert b.statuses() == [(1, "SUCCESS"), (2, "LOC_PROT_ERR")]


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_the_requester_sends_what_the_specification_says(bench: dict[str, object], case: Case) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
