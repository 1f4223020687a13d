"""Shared receive queues, memory windows, atomics, solicited events, path MTUs, CNPs, SQD (IBA Vol. 1).

A plain peer that shares no code with rocekit asks (tests/tools/plain_peer.py).
"""

from __future__ import annotations

import itertools
from functools import partial

import plain_peer as p
import pytest
from clause_bench import FULL, MEMORY, MS, MTU, Bench, Case, Clauses
from plain_peer import aeth, atomic, reth, word

from rocekit.errors import VerbsError
from rocekit.soft import PostError, RecvWR, SendWR, Sge
from rocekit.soft.engine.memory import MR
from rocekit.soft.engine.windows import Binding, next_key

clause = Clauses()


# -- shared receive queues


@clause(
    "10.2.9", "a shared receive queue gives its requests in the order of posting", shared=True, receives=3
)
def _(b: Bench) -> None:
    for n in range(3):
        b.acknowledged(b.ask(p.SEND_ONLY, n, payload=b"data"), n)
    assert b.statuses() == [(0, "SUCCESS"), (1, "SUCCESS"), (2, "SUCCESS")]


@clause(
    "9.7.5.1.4",
    "an empty shared receive queue draws an RNR NAK, and a request posted there helps",
    shared=True,
)
def _(b: Bench) -> None:
    b.refused(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0, p.RNR | 12, dead=False)
    b.receive(7)
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)
    assert b.statuses() == [(7, "SUCCESS")]


@clause(
    "10.2.9.1",
    "fewer requests than the limit: one event, and none again before it is set anew",
    shared=True,
    receives=5,
)
def _(b: Bench) -> None:
    b.qp.rq.arm(4)
    told = []
    for n in range(4):
        b.ask(p.SEND_ONLY, n, payload=b"data")
        told.append(b.events().count("SRQ_LIMIT_REACHED"))
    assert told == [0, 1, 0, 0]


@clause(
    "10.3.1.7",
    "an error flushes the request that the QP took, leaves the others, and tells the last one",
    shared=True,
    receives=3,
)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL, ackreq=False)
    b.device.modify_qp(b.qp, b.now, state="ERR")
    assert b.statuses() == [(0, "WR_FLUSH_ERR")]
    assert len(b.qp.rq) == 2
    assert "QP_LAST_WQE_REACHED" in b.events()


@clause(
    "9.7.4.1.7",
    "a message longer than the shared request: NAK invalid request, LOC_LEN_ERR",
    shared=True,
    receives=1,
    receive_bytes=8,
)
def _(b: Bench) -> None:
    b.refused(b.ask(p.SEND_ONLY, 0, payload=b"nine bytes"), 0, p.NAK_INVALID)
    assert b.statuses() == [(0, "LOC_LEN_ERR")]


@clause("10.2.9", "a receive on the QP's own queue is refused where it has a shared one", shared=True)
def _(b: Bench) -> None:
    with pytest.raises(PostError, match="shared"):
        b.device.post_recv(b.qp, RecvWR(1), b.now)


# -- memory windows


def _region(b: Bench, *rights: str) -> MR:
    given = rights or ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND")
    return b.device.reg_mr(b.pd, b.va, MEMORY, given)


def _bound(b: Bench, kind: int, offset: int = 64, length: int = 64, *rights: str) -> int:
    """A window of that type over some bytes of the memory; its key."""
    mr = _region(b)
    mw = b.device.alloc_mw(b.pd, kind)
    binding = Binding.to(
        mw, mr, b.va + offset, length, rights or ("REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
    )
    if kind == 1:
        key = b.device.bind_mw(b.qp, 70, binding, b.now)
    else:
        key = next_key(mw.rkey)
        b.device.post_send(b.qp, SendWR(70, "BIND_MW", rkey=key, binding=binding), b.now)
    b.silent(b.sent())
    assert b.statuses() == [(70, "SUCCESS")]
    return key


def _inside(kind: int, b: Bench) -> None:
    key = _bound(b, kind)
    b.acknowledged(b.ask(p.WRITE_ONLY, 0, reth(b.va + 64, key, 64), bytes(range(64))), 0)
    assert b.memory(64, 64) == bytes(range(64))
    (seen,) = b.ask(p.READ_REQUEST, 1, reth(b.va + 124, key, 4))
    assert seen.payload == bytes(range(60, 64))
    b.fill(72, bytes(8))
    (seen,) = b.ask(p.FETCH_ADD, 2, atomic(b.va + 120, key, 1))
    assert seen.operation == p.ATOMIC_ACK


def _outside(kind: int, offset: int, length: int, b: Bench) -> None:
    key = _bound(b, kind)
    before = b.memory(0, 256)
    b.refused(b.ask(p.WRITE_ONLY, 0, reth(b.va + offset, key, length), bytes(length)), 0, p.NAK_ACCESS)
    assert b.memory(0, 256) == before


def _not_given(kind: int, operation: int, b: Bench) -> None:
    key = _bound(b, kind, 64, 64, "REMOTE_READ" if operation != p.READ_REQUEST else "REMOTE_WRITE")
    headers = atomic(b.va + 64, key, 1) if operation == p.FETCH_ADD else reth(b.va + 64, key, 4)
    payload = b"data" if operation == p.WRITE_ONLY else b""
    b.refused(b.ask(operation, 0, headers, payload), 0, p.NAK_ACCESS)


def _old_variant(kind: int, b: Bench) -> None:
    key = _bound(b, kind)
    old = key & ~0xFF | (key - 1) & 0xFF
    b.refused(b.ask(p.WRITE_ONLY, 0, reth(b.va + 64, old, 4), b"data"), 0, p.NAK_ACCESS)


for kind in (1, 2):
    clause.add(
        "10.6.7.2.3", f"type {kind}: the peer reaches its bytes, to the last one", partial(_inside, kind)
    )
    for offset, length, what in (
        (63, 4, "begins before it"),
        (125, 4, "ends behind it"),
        (128, 4, "lies behind it"),
    ):
        clause.add(
            "10.6.7.2.3", f"type {kind}: what {what} is refused", partial(_outside, kind, offset, length)
        )
    for operation, name in ((p.WRITE_ONLY, "WRITE"), (p.READ_REQUEST, "READ"), (p.FETCH_ADD, "FETCH ADD")):
        clause.add(
            "10.6.7.2.3",
            f"type {kind}: a {name} that it does not allow is refused",
            partial(_not_given, kind, operation),
        )
    clause.add(
        "10.6.7.2.2", f"type {kind}: the key before the binding is refused", partial(_old_variant, kind)
    )


@clause("10.6.7.2.5", "type 2: the peer's SEND with invalidate ends the key", receives=1)
def _(b: Bench) -> None:
    key = _bound(b, 2)
    b.acknowledged(b.ask(p.SEND_ONLY_INV, 0, word(key), b"data"), 0)
    (wc,) = b.completions()
    assert (wc.status, wc.invalidated_rkey) == ("SUCCESS", key)
    b.refused(b.ask(p.WRITE_ONLY, 1, reth(b.va + 64, key, 4), b"data"), 1, p.NAK_ACCESS)


@clause("10.6.7.2.5", "type 2: the program's own LOCAL_INV ends the key, too")
def _(b: Bench) -> None:
    key = _bound(b, 2)
    b.silent(b.post("LOCAL_INV", 0, invalidate_rkey=key))
    assert b.statuses() == [(1, "SUCCESS")]
    b.refused(b.ask(p.WRITE_ONLY, 0, reth(b.va + 64, key, 4), b"data"), 0, p.NAK_ACCESS)


def _wrong_invalidation(which: str, b: Bench) -> None:
    key = _bound(b, 1) if which == "a window of type 1" else _bound(b, 2)
    if which == "a key that nothing has":
        key ^= 0xFF00_0000
    if which == "the key before the binding":
        key = key & ~0xFF | (key - 1) & 0xFF
    b.ask(p.SEND_ONLY_INV, 0, word(key), b"data")
    assert b.statuses()[0] == (0, "REM_INV_REQ_ERR")
    assert b.qp.state == "ERR"


for which in ("a window of type 1", "a key that nothing has", "the key before the binding"):
    clause.add(
        "11.6.2",
        f"SEND with invalidate of {which}: the receive ends with REM_INV_REQ_ERR",
        partial(_wrong_invalidation, which),
        receives=1,
    )


@clause("10.6.7.2.5", "type 2: a window of another QP is not this peer's to invalidate or to use", receives=1)
def _(b: Bench) -> None:
    key = _bound(b, 2)
    other = b.device.create_qp(b.pd, "RC", b.cq)
    b.device.modify_qp(other, b.now, state="INIT", access=["REMOTE_WRITE"])
    attributes = {"dest_ip": "10.9.0.1", "dest_qpn": 5, "path_mtu": MTU, "rq_psn": 0}
    b.device.modify_qp(other, b.now, state="RTR", max_dest_rd_atomic=1, min_rnr_timer=1, **attributes)
    seen = b.put(p.packet(p.WRITE_ONLY, 0, other.qpn, reth(b.va + 64, key, 4), b"data", ackreq=True))
    assert [s.syndrome for s in seen] == [p.NAK_ACCESS]
    assert other.state == "ERR"


@clause("10.6.7.2.1", "a window bound to part of a region does not change the region's own key")
def _(b: Bench) -> None:
    _bound(b, 2)
    b.acknowledged(b.ask(p.WRITE_ONLY, 0, b.at(4), b"data"), 0)


@clause("10.6.7.2.6", "deregistration of a region with a bound window is refused")
def _(b: Bench) -> None:
    mr = _region(b)
    mw = b.device.alloc_mw(b.pd, 2)
    binding = Binding.to(mw, mr, b.va, 64, ("REMOTE_WRITE",))
    b.device.post_send(b.qp, SendWR(70, "BIND_MW", rkey=next_key(mw.rkey), binding=binding), b.now)
    b.sent()
    with pytest.raises(VerbsError, match="bound"):
        b.device.dereg_mr(mr)


# -- atomics where a region ends, and where they are not aligned


def _atomic_at(operation: int, offset: int, expected: int | None, b: Bench) -> None:
    mr = b.device.reg_mr(b.pd, b.va + 64, 32, ("LOCAL_WRITE", "REMOTE_ATOMIC", "REMOTE_WRITE"))
    before = b.memory(0, 256)
    headers, payload = atomic(b.va + offset, mr.rkey, 1), b""
    if operation == p.ATOMIC_WRITE:
        headers, payload = reth(b.va + offset, mr.rkey, 8), b"8 bytes!"
    seen = b.ask(operation, 0, headers, payload)
    if expected is None:
        assert seen[0].operation == (p.READ_ONLY if operation == p.ATOMIC_WRITE else p.ATOMIC_ACK)
    else:
        b.refused(seen, 0, expected)
        assert b.memory(0, 256) == before


for operation, name in (
    (p.FETCH_ADD, "FETCH ADD"),
    (p.CMP_SWAP, "COMPARE SWAP"),
    (p.ATOMIC_WRITE, "ATOMIC WRITE"),
):
    for offset, expected, what in (
        (64, None, "the first 8 bytes of a region"), (88, None, "the last 8 bytes of a region"),
        (56, p.NAK_ACCESS, "8 bytes before a region"), (96, p.NAK_ACCESS, "8 bytes behind a region"),
        (65, p.NAK_INVALID, "1 byte past alignment"), (68, p.NAK_INVALID, "4 bytes past alignment"),
        (71, p.NAK_INVALID, "7 bytes past alignment"),
    ):  # fmt: skip
        clause.add("9.4.5.1", f"{name} of {what}", partial(_atomic_at, operation, offset, expected))


# -- solicited events


def _solicits(operation: int, asked: str, expected: bool, b: Bench) -> None:
    b.device.request_notify(b.cq, solicited_only=asked == "solicited")
    headers = {p.WRITE_ONLY_IMM: b.at(4) + word(1), p.SEND_ONLY_IMM: word(1), p.SEND_ONLY_INV: word(b.rkey)}
    b.ask(operation, 0, headers.get(operation, b""), b"data", solicited=expected)
    assert ("COMPLETION" in b.events()) == (expected or asked == "any")


for operation, name in (
    (p.SEND_ONLY, "SEND"), (p.SEND_ONLY_IMM, "SEND with immediate"),
    (p.SEND_ONLY_INV, "SEND with invalidate"), (p.WRITE_ONLY_IMM, "WRITE with immediate"),
):  # fmt: skip
    for asked in ("solicited", "any"):
        for expected in (True, False):
            clause.add(
                "11.4.2.2", f"{asked} completions asked for, {name} {'with' if expected else 'without'} SE",
                partial(_solicits, operation, asked, expected), receives=1,
            )  # fmt: skip


@clause("9.2", "SE counts in the last packet of a message only", receives=2)
def _(b: Bench) -> None:
    b.device.request_notify(b.cq, solicited_only=True)
    b.ask(p.SEND_FIRST, 0, payload=FULL, solicited=True)
    b.ask(p.SEND_LAST, 1, payload=b"data")
    assert "COMPLETION" not in b.events()
    b.ask(p.SEND_FIRST, 2, payload=FULL)
    b.ask(p.SEND_LAST, 3, payload=b"data", solicited=True)
    assert "COMPLETION" in b.events()


@clause("9.2", "SE of a WRITE without immediate tells nobody", receives=1)
def _(b: Bench) -> None:
    b.device.request_notify(b.cq)
    b.ask(p.WRITE_ONLY, 0, b.at(4), b"data", solicited=True)
    assert "COMPLETION" not in b.events()


@clause("11.4.2.2", "a failed completion counts as solicited", receives=1)
def _(b: Bench) -> None:
    b.device.request_notify(b.cq, solicited_only=True)
    b.ask(p.SEND_MIDDLE, 0, payload=FULL)
    assert "COMPLETION" in b.events()


def _sends_se(opcode: str, length: int, bits: list[bool], b: Bench) -> None:
    assert [s.solicited for s in b.post(opcode, length, solicited=True)] == bits


for opcode, length, bits in (
    ("SEND", 8, [True]), ("SEND", 2 * MTU + 8, [False, False, True]), ("SEND_WITH_IMM", 8, [True]),
    ("SEND_WITH_INV", 8, [True]), ("RDMA_WRITE_WITH_IMM", MTU + 8, [False, True]),
    ("RDMA_WRITE", 8, [False]), ("RDMA_WRITE", MTU + 8, [False, False]), ("RDMA_READ", 8, [False]),
    ("ATOMIC_FETCH_AND_ADD", 8, [False]), ("ATOMIC_CMP_AND_SWP", 8, [False]), ("ATOMIC_WRITE", 8, [False]),
):  # fmt: skip
    clause.add(
        "9.2", f"a solicited {opcode} of {length} bytes sets SE where it has a meaning",
        partial(_sends_se, opcode, length, bits),
    )  # fmt: skip


# -- two ends with different path MTUs; this one's is 1024


@clause("9.7.4.1.6", "a peer with a path MTU of 512: its FIRST is refused as invalid", receives=1)
def _(b: Bench) -> None:
    b.refused(b.ask(p.SEND_FIRST, 0, payload=FULL[:512]), 0, p.NAK_INVALID)
    assert b.statuses() == [(0, "WR_FLUSH_ERR")]


@clause("9.7.4.1.6", "a peer with a path MTU of 2048: its FIRST is refused as invalid", receives=1)
def _(b: Bench) -> None:
    b.refused(b.ask(p.WRITE_FIRST, 0, b.at(4096), FULL * 2), 0, p.NAK_INVALID)


@clause("9.7.4.1.6", "a peer with another path MTU: what fits into one packet of both is taken", receives=1)
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=FULL[:512]), 0)


for size in (512, 2048):

    def _other_response(size: int, b: Bench) -> None:
        b.post("RDMA_READ", 4 * MTU)
        b.answer(p.READ_FIRST, 0, aeth(p.ACK_UNLIMITED, 1), (FULL * 2)[:size])
        assert b.statuses() == [(1, "LOC_LEN_ERR")]
        assert b.qp.state == "ERR"

    clause.add(
        "9.9.2",
        f"READ responses of a peer with a path MTU of {size}: a bad response",
        partial(_other_response, size),
    )


@clause("9.7.5.2.6", "the NAK of a peer with a smaller path MTU ends the WRITE: REM_INV_REQ_ERR")
def _(b: Bench) -> None:
    b.post("RDMA_WRITE", 2 * MTU)
    b.ack(0, p.NAK_INVALID)
    assert b.statuses() == [(1, "REM_INV_REQ_ERR")]


# -- CNPs


@clause("A17.9.3", "a CNP has BECN, PSN 0, no AckReq and no SE, no pad, and 16 bytes of zeros", receives=1)
def _(b: Bench) -> None:
    cnp = b.ask(p.SEND_ONLY, 0, payload=b"data", ecn=3)[0]
    assert (cnp.opcode, cnp.becn, cnp.psn, cnp.ackreq, cnp.solicited, cnp.pad) == (
        p.CNP,
        True,
        0,
        False,
        False,
        0,
    )
    assert (cnp.payload, cnp.pkey) == (bytes(16), 0xFFFF)


for interval in (10_000, 50_000, 1_000_000):

    def _spaced(interval: int, b: Bench) -> None:
        times = []
        for n in range(200):
            b.now += interval // 20
            times += [b.now for s in b.ask(p.SEND_ONLY, n, payload=b"data", ecn=3) if s.opcode == p.CNP]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) == 10
        assert set(gaps) == {interval}

    clause.add(
        "A17.9.1", f"steadily marked packets draw a CNP every {interval // 1000} µs",
        partial(_spaced, interval), receives=200, device={"cnp_interval_ns": interval},
    )  # fmt: skip


@clause("A17.9.1", "a marked response draws a CNP, too")
def _(b: Bench) -> None:
    b.post("RDMA_WRITE", 8)
    seen = b.answer(p.ACKNOWLEDGE, 0, aeth(p.ACK_UNLIMITED, 1), ecn=3)
    assert [s.opcode for s in seen] == [p.CNP]


@clause("A17.9.1", "two QPs whose packets are marked each draw their own CNP", receives=1)
def _(b: Bench) -> None:
    other = b.device.create_qp(b.pd, "RC", b.cq)
    b.device.modify_qp(other, b.now, state="INIT", access=["REMOTE_WRITE"])
    attributes = {"dest_ip": "10.9.0.1", "dest_qpn": 5, "path_mtu": MTU, "rq_psn": 0}
    b.device.modify_qp(other, b.now, state="RTR", max_dest_rd_atomic=1, min_rnr_timer=1, **attributes)
    seen = b.put(
        b.request(p.SEND_ONLY, 0, payload=b"data", ecn=3),
        p.packet(p.WRITE_ONLY, 0, other.qpn, b.at(4), b"data", ecn=3),
    )
    assert sorted(s.qpn for s in seen if s.opcode == p.CNP) == [5, 0x99]


# -- SQD


def _sqd(b: Bench) -> None:
    b.device.modify_qp(b.qp, b.now, state="SQD")


@clause("10.3.1.5", "SQD of an idle send queue is told at once as drained")
def _(b: Bench) -> None:
    _sqd(b)
    assert b.events() == ["SQ_DRAINED"]


@clause("10.3.1.5", "in SQD a message that is begun is sent to its end; drained with its ACK, told once")
def _(b: Bench) -> None:
    b.post_only("RDMA_WRITE", 3 * MTU)
    assert len(b.sent(1)) == 1
    _sqd(b)
    assert [s.operation for s in b.sent()] == [p.WRITE_MIDDLE, p.WRITE_LAST]
    assert "SQ_DRAINED" not in b.events()
    b.ack(2)
    b.ack(2)
    assert b.events().count("SQ_DRAINED") == 1
    assert b.statuses() == [(1, "SUCCESS")]


@clause("10.3.1.5", "what is posted in SQD waits for RTS")
def _(b: Bench) -> None:
    _sqd(b)
    b.silent(b.post("RDMA_WRITE", 8, wr_id=2))
    b.silent(b.later(100 * MS))
    b.device.modify_qp(b.qp, b.now, state="RTS")
    assert [s.operation for s in b.sent()] == [p.WRITE_ONLY]


@clause("10.3.1.5", "in SQD what is unacknowledged is sent again, as in RTS")
def _(b: Bench) -> None:
    b.post("RDMA_WRITE", 8)
    _sqd(b)
    assert [s.operation for s in b.later(100 * MS)][:1] == [p.WRITE_ONLY]


@clause("10.3.1.5", "in SQD a READ takes its responses")
def _(b: Bench) -> None:
    b.post("RDMA_READ", 8)
    _sqd(b)
    b.answer(p.READ_ONLY, 0, aeth(p.ACK_UNLIMITED, 1), b"response")
    assert b.statuses() == [(1, "SUCCESS")]
    assert b.events() == ["SQ_DRAINED"]


@clause("10.3.1.5", "in SQD requests of the peer are executed as in RTS", receives=1)
def _(b: Bench) -> None:
    _sqd(b)
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)
    b.fill(0, b"here")
    assert b.ask(p.READ_REQUEST, 1, b.at(4))[0].payload == b"here"


@clause("10.3.1.5", "a message that was not begun before SQD stays in the queue, in its order")
def _(b: Bench) -> None:
    b.post_only("RDMA_WRITE", 2 * MTU, wr_id=1)
    b.post_only("SEND", 8, wr_id=2)
    b.sent(1)
    _sqd(b)
    assert [s.operation for s in b.sent()] == [p.WRITE_LAST]
    b.ack(1)
    assert b.statuses() == [(1, "SUCCESS")]
    b.device.modify_qp(b.qp, b.now, state="RTS")
    assert [(s.operation, s.psn) for s in b.sent()] == [(p.SEND_ONLY, 0x502)]


@clause("10.3.1.5", "a binding that waits is not done in SQD")
def _(b: Bench) -> None:
    mr = _region(b)
    mw = b.device.alloc_mw(b.pd, 2)
    _sqd(b)
    key = next_key(mw.rkey)
    binding = Binding.to(mw, mr, b.va, 64, ("REMOTE_WRITE",))
    b.device.post_send(b.qp, SendWR(70, "BIND_MW", rkey=key, binding=binding), b.now)
    b.silent(b.sent())
    assert b.statuses() == []


@clause("11.2.5.2", "an error in SQD flushes what waits there")
def _(b: Bench) -> None:
    _sqd(b)
    b.post("RDMA_WRITE", 8, wr_id=3)
    b.device.modify_qp(b.qp, b.now, state="ERR")
    assert b.statuses() == [(3, "WR_FLUSH_ERR")]


@clause("11.4.1.1", "an element of no bytes needs no key", receives=0)
def _(b: Bench) -> None:
    b.device.post_recv(b.qp, RecvWR(1, (Sge(0, 0, 0), Sge(b.va, 8, b.mr.lkey))), b.now)
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_memory_events_and_states_are_as_the_specification_says(bench: dict[str, object], case: Case) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
