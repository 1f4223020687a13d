"""What an RC responder does with requests: order, opcodes, NAKs (IBA Vol. 1: 9.7.4, 9.9.3).

A plain peer that shares no code with rocekit asks (tests/tools/plain_peer.py).
"""

from __future__ import annotations

from functools import partial

import plain_peer as p
import pytest
from clause_bench import (
    FULL,
    MTU,
    RIGHTS,
    STARTS,
    Bench,
    Case,
    Clauses,
)
from plain_peer import aeth, atomic, reth, word

clause = Clauses()


# -- 9.7.4.1.1: the PSN


def _in_order(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0, msn=1)
    assert b.statuses() == [(0, "SUCCESS")]


for first in (0, 1, 0x7FFFFF, 0x800000, 0xFFFFFE, 0xFFFFFF):
    clause.add("9.7.4.1.1", f"the expected PSN {first:#x} is executed", _in_order, receives=1, rq_psn=first)


def _wraps(b: Bench) -> None:
    for n in range(4):
        b.acknowledged(b.ask(p.SEND_ONLY, n, payload=b"data"), n, msn=n + 1)
    assert [wr_id for wr_id, _ in b.statuses()] == [0, 1, 2, 3]


clause.add("9.7.2", "PSNs go on from 0xFFFFFF to 0", _wraps, receives=4, rq_psn=0xFFFFFE)


def _read_over_the_wrap(b: Bench) -> None:
    b.fill(0, FULL * 3)
    seen = b.ask(p.READ_REQUEST, 0, b.at(3 * MTU))
    assert [s.psn for s in seen] == [0xFFFFFF, 0, 1]
    b.acknowledged(b.ask(p.WRITE_ONLY, 3, b.at(0)), 3, msn=2)


clause.add("9.7.2", "a READ's responses wrap", _read_over_the_wrap, rq_psn=0xFFFFFF)


def _ahead(ahead: int, b: Bench) -> None:
    seen = b.ask(p.SEND_ONLY, ahead, payload=b"data")
    b.refused(seen, 0, p.NAK_PSN, dead=False)
    assert b.statuses() == []


for ahead in (1, 2, 1000, (1 << 23) - 1):
    clause.add(
        "9.7.5.1.1", f"a request {ahead:,} PSNs ahead draws a NAK of the expected one",
        partial(_ahead, ahead),
        receives=1,
    )  # fmt: skip


def _behind(behind: int, b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY, -behind, payload=b"data"), -1, msn=0)
    assert b.statuses() == []


for behind in (1, 2, 1000, 1 << 23):
    clause.add(
        "9.7.1", f"a request {behind:,} PSNs behind is a duplicate", partial(_behind, behind), receives=1
    )  # fmt: skip


@clause("9.7.5.1.1", "one NAK until the gap is closed, and another for the next gap", receives=8)
def _(b: Bench) -> None:
    b.refused(b.ask(p.SEND_ONLY, 1, payload=b"data"), 0, p.NAK_PSN, dead=False)
    for n in (2, 3, 1):
        b.silent(b.ask(p.SEND_ONLY, n, payload=b"data"))
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)
    b.refused(b.ask(p.SEND_ONLY, 3, payload=b"data"), 1, p.NAK_PSN, dead=False)


@clause("9.7.5.1.1", "a NAK acknowledges nothing that was not executed: MSN stays", receives=1)
def _(b: Bench) -> None:
    assert b.ask(p.SEND_ONLY, 5, payload=b"data")[0].msn == 0


@clause("9.7.5.1.2", "without AckReq no ACK is owed", receives=2)
def _(b: Bench) -> None:
    b.silent(b.ask(p.SEND_ONLY, 0, payload=b"data", ackreq=False))
    b.acknowledged(b.ask(p.SEND_ONLY, 1, payload=b"data"), 1, msn=2)


@clause("9.7.5.1.2", "several requests that came together get one ACK, of the last", receives=3)
def _(b: Bench) -> None:
    seen = b.put(*(b.request(p.SEND_ONLY, n, payload=b"data") for n in range(3)))
    b.acknowledged(seen, 2, msn=3)


@clause("9.7.5.1.2", "an ACK in the middle of a message does not count the message", receives=1)
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_FIRST, 0, payload=FULL), 0, msn=0)
    b.acknowledged(b.ask(p.SEND_LAST, 1, payload=b"data"), 1, msn=1)


@clause("9.7.7.1", "the MSN counts SENDs, WRITEs, READs and atomics alike", receives=1)
def _(b: Bench) -> None:
    msns = [
        b.ask(p.SEND_ONLY, 0, payload=b"data")[0].msn,
        b.ask(p.WRITE_ONLY, 1, b.at(4), b"data")[0].msn,
        b.ask(p.READ_REQUEST, 2, b.at(4))[0].msn,
        b.ask(p.FETCH_ADD, 3, atomic(b.va, b.rkey, 1))[0].msn,
    ]
    assert msns == [1, 2, 3, 4]


@clause("9.7.5.1.2", "an ACK does not overtake the READ response before it")
def _(b: Bench) -> None:
    seen = b.put(b.request(p.READ_REQUEST, 0, b.at(2 * MTU)), b.request(p.WRITE_ONLY, 2, b.at(4), b"data"))
    assert [(s.operation, s.psn) for s in seen] == [
        (p.READ_FIRST, b.psn(0)),
        (p.READ_LAST, b.psn(1)),
        (p.ACKNOWLEDGE, b.psn(2)),
    ]


# -- 9.7.4.1: which packet may follow which


_GOES_ON = {
    p.SEND_MIDDLE: "SEND MIDDLE", p.SEND_LAST: "SEND LAST", p.SEND_LAST_IMM: "SEND LAST with immediate",
    p.SEND_LAST_INV: "SEND LAST with invalidate", p.WRITE_MIDDLE: "WRITE MIDDLE", p.WRITE_LAST: "WRITE LAST",
    p.WRITE_LAST_IMM: "WRITE LAST with immediate",
}  # fmt: skip
_OF_SEND = {p.SEND_MIDDLE, p.SEND_LAST, p.SEND_LAST_IMM, p.SEND_LAST_INV}


def _legal(before: int | None, operation: int, b: Bench) -> None:
    if before is not None:
        b.put(b.right(before, 0))
    seen = b.put(b.right(operation, int(before is not None)))
    assert b.qp.state == "RTS"
    assert len(seen) == 1
    assert seen[0].syndrome == p.ACK_UNLIMITED


def _illegal(before: int | None, operation: int, b: Bench) -> None:
    offset = int(before is not None)
    if before is not None:
        b.put(b.right(before, 0))
    content = b.memory(0, 64)
    b.refused(b.put(b.right(operation, offset)), offset, p.NAK_INVALID)
    assert b.memory(0, 64) == content
    assert "SUCCESS" not in [status for _, status in b.statuses()]
    assert "QP_REQ_ERR" in b.events()


for operation, name in STARTS.items():
    clause.add("9.7.4.1", f"{name} may begin a message", partial(_legal, None, operation), receives=2)
    for before in (p.SEND_FIRST, p.WRITE_FIRST):
        clause.add(
            "9.7.4.1", f"{name} may not stand inside a {STARTS[before][:-6]}",
            partial(_illegal, before, operation), receives=2,
        )  # fmt: skip
for operation, name in _GOES_ON.items():
    clause.add("9.7.4.1", f"{name} may not begin a message", partial(_illegal, None, operation), receives=2)
    own, other = (p.SEND_FIRST, p.WRITE_FIRST) if operation in _OF_SEND else (p.WRITE_FIRST, p.SEND_FIRST)
    if operation != p.WRITE_LAST and operation != p.WRITE_LAST_IMM:  # their lengths have cases of their own
        clause.add(
            "9.7.4.1", f"{name} may follow {STARTS[own]}", partial(_legal, own, operation), receives=2
        )  # fmt: skip
    clause.add(
        "9.7.4.1", f"{name} may not follow {STARTS[other]}", partial(_illegal, other, operation), receives=2
    )  # fmt: skip


# -- 9.7.4.1: opcodes that there are, and that are allowed


def _reserved(operation: int, b: Bench) -> None:
    b.refused(b.ask(operation, 0, payload=bytes(16)), 0, p.NAK_INVALID)


def _reserved_ahead(operation: int, b: Bench) -> None:
    b.refused(b.ask(operation, 3, payload=bytes(16)), 0, p.NAK_PSN, dead=False)


def _reserved_behind(operation: int, b: Bench) -> None:
    b.silent(b.ask(operation, -1, payload=bytes(16)))


for operation in p.RESERVED:
    clause.add(
        "9.7.4.1", f"reserved opcode {operation:#x} at the expected PSN: NAK invalid request",
        partial(_reserved, operation),
    )  # fmt: skip
clause.add(
    "9.7.4.1.1", "of a reserved opcode ahead of its turn the PSN decides", partial(_reserved_ahead, 0x1E)
)
clause.add("9.7.5.1.3", "a reserved opcode behind is dropped", partial(_reserved_behind, 0x1E))


@clause("9.7.4.1", "a reserved opcode inside a message ends it", receives=1)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL)
    b.refused(b.ask(0x18, 1, payload=b"data"), 1, p.NAK_INVALID)


def _right_missing(operation: int, b: Bench) -> None:
    content = b.memory(0, 64)
    b.refused(b.put(b.right(operation, 0)), 0, p.NAK_INVALID)
    assert b.memory(0, 64) == content


for operation, right in (
    (p.WRITE_ONLY, "REMOTE_WRITE"), (p.READ_REQUEST, "REMOTE_READ"), (p.FETCH_ADD, "REMOTE_ATOMIC"),
    (p.CMP_SWAP, "REMOTE_ATOMIC"), (p.ATOMIC_WRITE, "REMOTE_WRITE"), (p.FLUSH, "FLUSH_GLOBAL"),
):  # fmt: skip
    clause.add(
        "9.7.4.1", f"{STARTS[operation]} on a QP without {right}: NAK invalid request",
        partial(_right_missing, operation), access=tuple(r for r in RIGHTS if r != right),
    )  # fmt: skip


@clause("9.7.4.1", "a WRITE of no bytes needs the QP's right too", access=("LOCAL_WRITE",))
def _(b: Bench) -> None:
    b.refused(b.ask(p.WRITE_ONLY, 0, reth(0, 0, 0)), 0, p.NAK_INVALID)


@clause("9.7.4.1.4", "a READ where the responder has no resources: NAK invalid request", max_dest_rd_atomic=0)
def _(b: Bench) -> None:
    b.refused(b.ask(p.READ_REQUEST, 0, b.at(4)), 0, p.NAK_INVALID)


@clause("9.7.4.1.4", "more READs outstanding than agreed: NAK invalid request", max_dest_rd_atomic=2)
def _(b: Bench) -> None:
    seen = b.put(*(b.request(p.READ_REQUEST, n, b.at(4)) for n in range(3)))
    assert [(s.operation, s.syndrome) for s in seen][-1] == (p.ACKNOWLEDGE, p.NAK_INVALID)
    assert b.qp.state == "ERR"


# -- what a SEND, a WRITE and a READ do


@clause("9.4.1", "a SEND of three packets arrives as one message", receives=1)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL, ackreq=False)
    b.ask(p.SEND_MIDDLE, 1, payload=FULL[::-1], ackreq=False)
    b.acknowledged(b.ask(p.SEND_LAST_IMM, 2, word(0xABCD), b"end"), 2, msn=1)
    (wc,) = b.completions()
    assert (wc.byte_len, wc.imm) == (2 * MTU + 3, 0xABCD)
    assert b.memory(0, 2 * MTU + 3) == FULL + FULL[::-1] + b"end"


@clause("9.4.2", "a WRITE with immediate takes a receive and tells its length", receives=1)
def _(b: Bench) -> None:
    b.ask(p.WRITE_FIRST, 0, b.at(MTU + 4, 4096), FULL)
    b.acknowledged(b.ask(p.WRITE_LAST_IMM, 1, word(3), b"data"), 1)
    (wc,) = b.completions()
    assert (wc.opcode, wc.imm, wc.byte_len) == ("RECV_RDMA_WITH_IMM", 3, MTU + 4)


@clause("9.2", "a solicited SEND is told as one", receives=1)
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data", solicited=True)
    assert b.completions()[0].solicited


@clause(
    "9.4.1.1.3", "SEND with invalidate invalidates the key: the next WRITE with it is refused", receives=1
)
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY_INV, 0, word(b.rkey), b""), 0)
    b.refused(b.ask(p.WRITE_ONLY, 1, b.at(4), b"data"), 1, p.NAK_ACCESS)


for packets in (1, 2, 3, 5):

    def _read(packets: int, b: Bench) -> None:
        size = packets * MTU - 3
        b.fill(0, (FULL * packets)[:size])
        seen = b.ask(p.READ_REQUEST, 0, b.at(size))
        want = (
            [p.READ_ONLY] if packets == 1 else [p.READ_FIRST, *[p.READ_MIDDLE] * (packets - 2), p.READ_LAST]
        )
        assert [s.operation for s in seen] == want
        assert [s.psn for s in seen] == [b.psn(n) for n in range(packets)]
        assert b"".join(s.payload for s in seen) == (FULL * packets)[:size]
        assert seen[-1].pad == 3
        assert {s.msn for s in seen} <= {None, 1}
        b.acknowledged(b.ask(p.WRITE_ONLY, packets, b.at(0)), packets, msn=2)

    clause.add("9.4.4", f"a READ of {packets} packets takes so many PSNs", partial(_read, packets))


# -- 9.7.5.2.8: the receiver is not ready


for operation, name in ((p.SEND_ONLY, "SEND"), (p.WRITE_ONLY_IMM, "WRITE with immediate")):

    def _not_ready(operation: int, b: Bench) -> None:
        content = b.memory(0, 8)
        b.refused(b.put(b.right(operation, 0)), 0, p.RNR | 12, dead=False)
        assert b.memory(0, 8) == content
        b.receive(5)
        assert b.put(b.right(operation, 0))[0].syndrome == p.ACK_UNLIMITED
        assert b.statuses() == [(5, "SUCCESS")]

    clause.add(
        "9.7.5.1.4",
        f"a {name} without a receive draws an RNR NAK and may come again",
        partial(_not_ready, operation),
    )


@clause("9.7.5.1.4", "after an RNR NAK what follows is dropped without a NAK")
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data")
    for n in (1, 2):
        b.silent(b.ask(p.SEND_ONLY, n, payload=b"data"))


@clause("9.7.5.1.4", "the RNR NAK carries the QP's timer", min_rnr_timer=31)
def _(b: Bench) -> None:
    assert b.ask(p.SEND_ONLY, 0, payload=b"data")[0].syndrome == p.RNR | 31


@clause("9.7.5.1.4", "a WRITE without immediate needs no receive")
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.WRITE_ONLY, 0, b.at(4), b"data"), 0)


@clause("9.7.5.1.4", "only the LAST of a WRITE with immediate needs the receive")
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.WRITE_FIRST, 0, b.at(MTU + 4), FULL), 0, msn=0)
    b.refused(b.ask(p.WRITE_LAST_IMM, 1, word(1), b"data"), 1, p.RNR | 12, dead=False)
    b.receive(3)
    b.acknowledged(b.ask(p.WRITE_LAST_IMM, 1, word(1), b"data"), 1, msn=1)


# -- 9.7.7.2: credits


@clause("9.7.7.2.1", "without end-to-end flow control the credit field says so", receives=3)
def _(b: Bench) -> None:
    assert b.ask(p.SEND_ONLY, 0, payload=b"data")[0].syndrome == p.ACK_UNLIMITED


@clause(
    "9.7.7.2.1",
    "with flow control an ACK tells how many receives are left, rounded down",
    receives=9,
    flow_control=True,
)
def _(b: Bench) -> None:
    codes = [b.ask(p.SEND_ONLY, n, payload=b"data")[0].syndrome for n in range(9)]
    # Counts 8, 7, 6 … 0 have the codes 6 (8), 5 (6), 5, 4 (4), 4, 3, 2, 1, 0.
    assert codes == [6, 5, 5, 4, 4, 3, 2, 1, 0]


@clause(
    "9.7.7.2.4",
    "a receive that is posted when there were none is told at once",
    receives=1,
    flow_control=True,
)
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data")
    b.receive(9)
    (seen,) = b.sent()
    assert (seen.operation, seen.psn, seen.syndrome) == (p.ACKNOWLEDGE, b.psn(0), 1)


@clause(
    "9.7.7.2", "a QP with a shared receive queue tells no credits", shared=True, receives=2, flow_control=True
)
def _(b: Bench) -> None:
    assert b.ask(p.SEND_ONLY, 0, payload=b"data")[0].syndrome == p.ACK_UNLIMITED


# -- what ends a QP


@clause("9.9.3.1", "after a fatal NAK nothing is executed any more", receives=2)
def _(b: Bench) -> None:
    b.ask(p.SEND_MIDDLE, 0, payload=FULL)
    assert b.ask(p.SEND_ONLY, 0, payload=b"data") == []
    assert [status for _, status in b.statuses()] == ["WR_FLUSH_ERR"] * 2


@clause("9.9.3.1", "a fatal NAK ends the receive of the message it stood in", receives=1)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL)
    b.ask(p.WRITE_ONLY, 1, b.at(4), b"data")
    ((wr_id, status),) = b.statuses()
    assert wr_id == 0
    assert status != "SUCCESS"


@clause("10.3.1", "a QP in RTR receives", state="RTR", receives=1)
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)


@clause("9.7.5.2", "a response to a QP in RTR is dropped", state="RTR")
def _(b: Bench) -> None:
    b.silent(b.answer(p.ACKNOWLEDGE, 0, aeth(p.ACK_UNLIMITED)))


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_the_responder_does_what_the_specification_says(bench: dict[str, object], case: Case) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
