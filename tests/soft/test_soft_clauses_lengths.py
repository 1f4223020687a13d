"""Which memory and lengths an RC responder allows (IBA Vol. 1: 9.7.4.1.5 to 9.7.4.1.7, 9.4.5).

A plain peer that shares no code with rocekit asks (tests/tools/plain_peer.py). Where the specification leaves
it open what is answered, a case claims only that nothing is executed.
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
from plain_peer import atomic, reth, word

clause = Clauses()


# -- 9.7.4.1.5: R_Key, address, rights of the memory


def _denied(operation: int, headers: str, b: Bench) -> None:
    content = b.memory(0, 64)
    places = {"key": (b.va, b.rkey ^ 1), "below": (b.va - 8, b.rkey), "above": (b.va + (1 << 20) - 4, b.rkey)}
    places["wrapping"] = ((1 << 64) - 8, b.rkey)
    va, key = places[headers]
    header = {
        p.WRITE_ONLY: reth(va, key, 8), p.READ_REQUEST: reth(va, key, 8), p.FETCH_ADD: atomic(va, key, 1),
        p.CMP_SWAP: atomic(va, key, 1), p.ATOMIC_WRITE: reth(va, key, 8), p.FLUSH: word(1) + reth(va, key, 8),
    }[operation]  # fmt: skip
    payload = bytes([255] * 8) if operation in (p.WRITE_ONLY, p.ATOMIC_WRITE) else b""
    seen = b.ask(operation, 0, header, payload)
    b.refused(seen, 0, p.NAK_ACCESS)
    assert b.memory(0, 64) == content
    assert "QP_ACCESS_ERR" in b.events()


for operation in (p.WRITE_ONLY, p.READ_REQUEST, p.FETCH_ADD, p.CMP_SWAP, p.ATOMIC_WRITE, p.FLUSH):
    clause.add(
        "9.7.4.1.5", f"{STARTS[operation]} with another R_Key: NAK remote access",
        partial(_denied, operation, "key"),
    )  # fmt: skip
for where in ("below", "above", "wrapping"):
    clause.add(
        "9.7.4.1.5", f"WRITE {where} the region: NAK remote access", partial(_denied, p.WRITE_ONLY, where)
    )  # fmt: skip
    clause.add(
        "9.7.4.1.5", f"READ {where} the region: NAK remote access", partial(_denied, p.READ_REQUEST, where)
    )  # fmt: skip


@clause("9.7.4.1.5", "a WRITE of no bytes: the R_Key is not looked at")
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.WRITE_ONLY, 0, reth(0x1234, 0x5678, 0)), 0, msn=1)


@clause("9.7.4.1.5", "a READ of no bytes: the R_Key is not looked at, one response ONLY")
def _(b: Bench) -> None:
    (seen,) = b.ask(p.READ_REQUEST, 0, reth(0x1234, 0x5678, 0))
    assert (seen.operation, seen.payload, seen.syndrome) == (p.READ_ONLY, b"", p.ACK_UNLIMITED)


def _wrong_domain(b: Bench) -> None:
    other = b.device.reg_mr(b.device.alloc_pd(), b.va, 64, RIGHTS)
    b.refused(b.ask(p.WRITE_ONLY, 0, reth(b.va, other.rkey, 4), b"data"), 0, p.NAK_ACCESS)


clause.add("10.2.3", "a region of another protection domain: NAK remote access", _wrong_domain)


def _region_right(operation: int, right: str, b: Bench) -> None:
    mr = b.device.reg_mr(b.pd, b.va, 64, [r for r in RIGHTS if r != right])
    header = {
        p.WRITE_ONLY: reth(b.va, mr.rkey, 4), p.READ_REQUEST: reth(b.va, mr.rkey, 4),
        p.FETCH_ADD: atomic(b.va, mr.rkey, 1),
    }[operation]  # fmt: skip
    payload = b"data" if operation == p.WRITE_ONLY else b""
    b.refused(b.ask(operation, 0, header, payload), 0, p.NAK_ACCESS)


for operation, right in (
    (p.WRITE_ONLY, "REMOTE_WRITE"), (p.READ_REQUEST, "REMOTE_READ"), (p.FETCH_ADD, "REMOTE_ATOMIC"),
):  # fmt: skip
    clause.add(
        "10.6.3.3", f"{STARTS[operation]} to a region without {right}: NAK remote access",
        partial(_region_right, operation, right),
    )  # fmt: skip


@clause("9.7.4.1.5", "a WRITE of several packets is refused at the first if its whole range is not allowed")
def _(b: Bench) -> None:
    content = b.memory((1 << 20) - MTU, MTU)
    header = reth(b.va + (1 << 20) - MTU, b.rkey, MTU + 4)
    b.refused(b.ask(p.WRITE_FIRST, 0, header, FULL), 0, p.NAK_ACCESS)
    assert b.memory((1 << 20) - MTU, MTU) == content


# -- 9.7.4.1.6: lengths


def _bad_length(
    operation: int, payload: int, b: Bench, *, header: str = "", before: int | None = None, **rest: int
) -> None:
    offset = 0
    if before is not None:
        b.put(b.right(before, 0))
        offset = 1
    headers = {"": b"", "imm": word(1)}.get(header)
    if headers is None:
        headers = b.at(int(header))
    content = b.memory(4096, 64)
    b.refused(b.ask(operation, offset, headers, bytes([255]) * payload, **rest), offset, p.NAK_INVALID)
    assert b.memory(4096, 64) == content
    assert "SUCCESS" not in [status for _, status in b.statuses()]


_LENGTHS: list[tuple[str, Case]] = [
    ("SEND FIRST shorter than the path MTU", partial(_bad_length, p.SEND_FIRST, MTU - 4)),
    ("SEND FIRST of no bytes", partial(_bad_length, p.SEND_FIRST, 0)),
    ("SEND FIRST longer than the path MTU", partial(_bad_length, p.SEND_FIRST, MTU + 4)),
    ("SEND ONLY longer than the path MTU", partial(_bad_length, p.SEND_ONLY, MTU + 4)),
    ("SEND MIDDLE shorter than the path MTU", partial(_bad_length, p.SEND_MIDDLE, 4, before=p.SEND_FIRST)),
    ("SEND LAST of no bytes", partial(_bad_length, p.SEND_LAST, 0, before=p.SEND_FIRST)),
    ("SEND LAST longer than the path MTU", partial(_bad_length, p.SEND_LAST, MTU + 4, before=p.SEND_FIRST)),
    ("SEND FIRST with a pad", partial(_bad_length, p.SEND_FIRST, MTU, pad=2)),
    ("WRITE FIRST with a pad", partial(_bad_length, p.WRITE_FIRST, MTU, header="4096", pad=1)),
    ("WRITE FIRST of a message of one path MTU", partial(_bad_length, p.WRITE_FIRST, MTU, header="1024")),
    ("WRITE FIRST of a message of less", partial(_bad_length, p.WRITE_FIRST, MTU, header="1000")),
    ("WRITE FIRST shorter than the path MTU", partial(_bad_length, p.WRITE_FIRST, 512, header="4096")),
    ("WRITE ONLY shorter than its RETH says", partial(_bad_length, p.WRITE_ONLY, 4, header="8")),
    ("WRITE ONLY longer than its RETH says", partial(_bad_length, p.WRITE_ONLY, 12, header="8")),
    ("WRITE ONLY whose pad leaves less", partial(_bad_length, p.WRITE_ONLY, 8, header="8", pad=3)),
    ("WRITE ONLY whose pad is missing", partial(_bad_length, p.WRITE_ONLY, 8, header="5")),
    ("WRITE ONLY of more than the path MTU", partial(_bad_length, p.WRITE_ONLY, MTU + 4, header="1028")),
    ("WRITE ONLY with bytes for a RETH of none", partial(_bad_length, p.WRITE_ONLY, 4, header="0")),
    ("WRITE LAST that ends too soon", partial(_bad_length, p.WRITE_LAST, 4, before=p.WRITE_FIRST)),
    ("WRITE LAST of no bytes", partial(_bad_length, p.WRITE_LAST, 0, before=p.WRITE_FIRST)),
    ("WRITE MIDDLE shorter than the path MTU", partial(_bad_length, p.WRITE_MIDDLE, 8, before=p.WRITE_FIRST)),
    ("WRITE of 2^31 + 1 bytes", partial(_bad_length, p.WRITE_FIRST, MTU, header=str((1 << 31) + 1))),
    ("WRITE of 2^32 - 1 bytes", partial(_bad_length, p.WRITE_FIRST, MTU, header=str((1 << 32) - 1))),
    ("READ of 2^31 + 1 bytes", partial(_bad_length, p.READ_REQUEST, 0, header=str((1 << 31) + 1))),
    ("READ with payload", partial(_bad_length, p.READ_REQUEST, 4, header="8")),
    ("ATOMIC WRITE of 4 bytes", partial(_bad_length, p.ATOMIC_WRITE, 4, header="4")),
    ("ATOMIC WRITE whose RETH says 16", partial(_bad_length, p.ATOMIC_WRITE, 8, header="16")),
]  # fmt: skip
for name, case in _LENGTHS:
    clause.add("9.7.4.1.6", f"{name}: NAK invalid request", case, receives=2)


def _atomic_payload(operation: int, b: Bench) -> None:
    b.fill(0, bytes(8))
    b.refused(b.ask(operation, 0, atomic(b.va, b.rkey, 5), b"data"), 0, p.NAK_INVALID)
    assert b.memory(0, 8) == bytes(8)


clause.add("9.7.4.1.6", "FETCH ADD with payload: NAK invalid request", partial(_atomic_payload, p.FETCH_ADD))
clause.add(
    "9.7.4.1.6", "COMPARE SWAP with payload: NAK invalid request", partial(_atomic_payload, p.CMP_SWAP)
)


@clause("9.7.4.1.6", "FLUSH with payload: NAK invalid request")
def _(b: Bench) -> None:
    b.refused(b.ask(p.FLUSH, 0, word(1) + b.at(4), b"data"), 0, p.NAK_INVALID)


@clause("9.7.4.1.6", "a WRITE whose MIDDLE leaves nothing for the LAST: NAK invalid request")
def _(b: Bench) -> None:
    b.ask(p.WRITE_FIRST, 0, b.at(2 * MTU), FULL)
    b.refused(b.ask(p.WRITE_MIDDLE, 1, payload=FULL), 1, p.NAK_INVALID)


@clause("9.7.4.1.6", "a WRITE LAST with more than is left: NAK invalid request, nothing of it written")
def _(b: Bench) -> None:
    b.ask(p.WRITE_FIRST, 0, b.at(MTU + 4), FULL)
    content = b.memory(MTU, 64)
    b.refused(b.ask(p.WRITE_LAST, 1, payload=bytes([255] * 8)), 1, p.NAK_INVALID)
    assert b.memory(MTU, 64) == content


@clause(
    "9.7.4.1.7",
    "a SEND longer than the receive: NAK invalid request, the receive ends",
    receives=1,
    receive_bytes=8,
)
def _(b: Bench) -> None:
    b.refused(b.ask(p.SEND_ONLY, 0, payload=bytes(12)), 0, p.NAK_INVALID)
    assert b.statuses() == [(0, "LOC_LEN_ERR")]


@clause("9.7.4.1.7", "a receive whose L_Key is wrong: NAK remote operational error")
def _(b: Bench) -> None:
    mr = b.device.reg_mr(b.pd, b.va, 64, ["LOCAL_WRITE"])
    from rocekit.soft import RecvWR, Sge

    b.device.post_recv(b.qp, RecvWR(7, (Sge(b.va, 64, mr.lkey),)), b.now)
    b.device.dereg_mr(mr)
    b.refused(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0, p.NAK_OPERATION)
    assert b.statuses() == [(7, "LOC_PROT_ERR")]


for size in (1, 2, 3, 5, MTU - 1):

    def _padded(size: int, b: Bench) -> None:
        b.acknowledged(b.ask(p.WRITE_ONLY, 0, b.at(size, 64), FULL[:size]), 0)
        assert b.memory(64, size + 1) == FULL[:size] + b"\0"

    clause.add("9.7.4.1.6", f"a WRITE of {size} bytes: the pad is not written", partial(_padded, size))


def _unpadded(operation: int, header: str, size: int, b: Bench) -> None:
    headers = b"" if not header else b.at(size)
    content = b.memory(0, 64)
    b.ask(operation, 0, headers, bytes([255] * size), padding=b"", pad=0)
    assert b.memory(0, 64) == content
    assert "SUCCESS" not in [status for _, status in b.statuses()]


for size in (1, 2, 3, 5):
    clause.add(
        "9.2", f"a SEND of {size} bytes without a pad is not executed",
        partial(_unpadded, p.SEND_ONLY, "", size), receives=1,
    )  # fmt: skip
    clause.add(
        "9.2", f"a WRITE of {size} bytes without a pad is not executed",
        partial(_unpadded, p.WRITE_ONLY, "reth", size),
    )  # fmt: skip


@clause("9.2", "a pad count above the payload: dropped", receives=1)
def _(b: Bench) -> None:
    b.silent(b.ask(p.SEND_ONLY, 0, payload=b"", pad=3))
    assert b.statuses() == []


@clause("9.7.4.1.6", "READ of 2^31 bytes is allowed by its length; the region decides")
def _(b: Bench) -> None:
    b.refused(b.ask(p.READ_REQUEST, 0, b.at(1 << 31)), 0, p.NAK_ACCESS)


# -- 9.4.5: atomics; A19.4: FLUSH, ATOMIC WRITE


def _misaligned(operation: int, b: Bench) -> None:
    header = atomic(b.va + 4, b.rkey, 1)
    payload = b""
    if operation == p.ATOMIC_WRITE:
        header, payload = reth(b.va + 4, b.rkey, 8), bytes([255] * 8)
    content = b.memory(0, 16)
    b.refused(b.ask(operation, 0, header, payload), 0, p.NAK_INVALID)
    assert b.memory(0, 16) == content


for operation in (p.FETCH_ADD, p.CMP_SWAP, p.ATOMIC_WRITE):
    clause.add(
        "9.4.5.1", f"{STARTS[operation]} at an address not divisible by 8: NAK invalid request",
        partial(_misaligned, operation),
    )  # fmt: skip


@clause("9.4.5", "FETCH ADD answers the value before it, and wraps at 2^64")
def _(b: Bench) -> None:
    b.fill(0, bytes([255] * 8))
    (seen,) = b.ask(p.FETCH_ADD, 0, atomic(b.va, b.rkey, 3))
    assert (seen.operation, seen.original, seen.syndrome, seen.msn) == (p.ATOMIC_ACK, (1 << 64) - 1, 0x1F, 1)
    assert b.memory(0, 8) == (2).to_bytes(8, "little")


@clause("9.4.5", "COMPARE SWAP swaps what is equal and answers the value before it")
def _(b: Bench) -> None:
    b.fill(0, (5).to_bytes(8, "little"))
    (seen,) = b.ask(p.CMP_SWAP, 0, atomic(b.va, b.rkey, 9, 5))
    assert seen.original == 5
    (seen,) = b.ask(p.CMP_SWAP, 1, atomic(b.va, b.rkey, 1, 5))
    assert (seen.original, b.memory(0, 8)) == (9, (9).to_bytes(8, "little"))


@clause("A19.4", "ATOMIC WRITE and FLUSH get an empty READ response ONLY")
def _(b: Bench) -> None:
    (seen,) = b.ask(p.ATOMIC_WRITE, 0, b.at(8), b"8 bytes!")
    assert (seen.operation, seen.payload, seen.msn) == (p.READ_ONLY, b"", 1)
    assert b.memory(0, 8) == b"8 bytes!"
    (seen,) = b.ask(p.FLUSH, 1, word(1) + b.at(8))
    assert (seen.operation, seen.payload, seen.msn) == (p.READ_ONLY, b"", 2)


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_the_responder_checks_what_the_specification_says(bench: dict[str, object], case: Case) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
