"""How an RC responder answers what comes again, and within which bounds (IBA Vol. 1: 9.7.5.1.3).

The requester is a plain peer that shares no code with rocekit (tests/tools/plain_peer.py).
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
from plain_peer import atomic, reth, word

clause = Clauses()


@clause("9.7.5.1.3", "a duplicate SEND is acknowledged and not executed", receives=2)
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data")
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"other"), 0, msn=1)
    assert b.statuses() == [(0, "SUCCESS")]


@clause("9.7.5.1.3", "a duplicate WRITE is acknowledged and not executed")
def _(b: Bench) -> None:
    b.ask(p.WRITE_ONLY, 0, b.at(4), b"data")
    b.acknowledged(b.ask(p.WRITE_ONLY, 0, b.at(4), b"new!"), 0, msn=1)
    assert b.memory(0, 4) == b"data"


@clause("9.7.5.1.3", "the ACK of a duplicate is of the newest PSN that was executed", receives=3)
def _(b: Bench) -> None:
    for n in range(3):
        b.ask(p.SEND_ONLY, n, payload=b"data", ackreq=False)
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 2, msn=3)


@clause("9.7.5.1.3", "a duplicate inside a message that goes on does not disturb it", receives=1)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL)
    b.acknowledged(b.ask(p.SEND_FIRST, 0, payload=FULL[::-1]), 0, msn=0)
    b.acknowledged(b.ask(p.SEND_LAST, 1, payload=b"end"), 1, msn=1)
    assert b.memory(0, MTU + 3) == FULL + b"end"


@clause("9.7.5.1.3", "a duplicate does not open the gap that a NAK told", receives=3)
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data")
    b.refused(b.ask(p.SEND_ONLY, 2, payload=b"data"), 1, p.NAK_PSN, dead=False)
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0, msn=1)
    b.silent(b.ask(p.SEND_ONLY, 3, payload=b"data"))


# -- READs


def _read(b: Bench, packets: int = 3) -> None:
    b.fill(0, FULL * packets)
    b.ask(p.READ_REQUEST, 0, b.at(packets * MTU))


@clause("9.7.5.1.3", "a duplicate READ is answered again, with the newest MSN")
def _(b: Bench) -> None:
    _read(b)
    b.ask(p.WRITE_ONLY, 3, b.at(4, 8192), b"data")
    seen = b.ask(p.READ_REQUEST, 0, b.at(3 * MTU))
    assert [(s.operation, s.psn, s.msn) for s in seen] == [
        (p.READ_FIRST, b.psn(0), 2),
        (p.READ_MIDDLE, b.psn(1), None),
        (p.READ_LAST, b.psn(2), 2),
    ]


@clause("9.7.5.1.3", "a duplicate READ reads memory as it is now")
def _(b: Bench) -> None:
    _read(b, 1)
    b.fill(0, FULL[::-1])
    assert b.ask(p.READ_REQUEST, 0, b.at(MTU))[0].payload == FULL[::-1]


@clause("9.4.4", "the rest of a READ may be asked for, from any of its PSNs on")
def _(b: Bench) -> None:
    _read(b)
    seen = b.ask(p.READ_REQUEST, 1, b.at(2 * MTU, MTU))
    assert [(s.operation, s.psn) for s in seen] == [(p.READ_FIRST, b.psn(1)), (p.READ_LAST, b.psn(2))]
    (seen_last,) = b.ask(p.READ_REQUEST, 2, b.at(MTU, 2 * MTU))
    assert (seen_last.operation, seen_last.psn) == (p.READ_ONLY, b.psn(2))


@clause("9.4.4", "a part in the middle of a READ may be asked for: it ends before the READ's end")
def _(b: Bench) -> None:
    _read(b)
    (one,) = b.ask(p.READ_REQUEST, 1, b.at(MTU, MTU))
    assert (one.operation, one.psn, one.payload) == (p.READ_ONLY, b.psn(1), FULL)
    seen = b.ask(p.READ_REQUEST, 0, b.at(2 * MTU))
    assert [(s.operation, s.psn) for s in seen] == [(p.READ_FIRST, b.psn(0)), (p.READ_LAST, b.psn(1))]


def _another(offset: int, header: str, b: Bench) -> None:
    """A duplicate at ``offset`` that is another READ than the one before: not answered."""
    other = b.device.reg_mr(b.pd, b.va, 16384, ["LOCAL_WRITE", "REMOTE_READ"])
    _read(b)
    headers = {
        "another address": b.at(3 * MTU, 8),
        "a longer one": b.at(3 * MTU + 4),
        "another key": reth(b.va, other.rkey, 3 * MTU),
        "the address of the beginning": b.at(2 * MTU),
        "an address that is not of this PSN": b.at(MTU, 3 * MTU),
        "no bytes": b.at(0),
    }[header]
    b.silent(b.ask(p.READ_REQUEST, offset, headers))


for offset, header in (
    (0, "another address"), (0, "a longer one"), (0, "another key"), (1, "the address of the beginning"),
    (1, "an address that is not of this PSN"), (0, "no bytes"),
):  # fmt: skip
    clause.add(
        "9.7.5.1.3", f"a duplicate READ at PSN +{offset} with {header} is not answered",
        partial(_another, offset, header),
    )  # fmt: skip


@clause("9.7.5.1.3", "a duplicate READ whose key was taken back is not answered, and nothing ends")
def _(b: Bench) -> None:
    _read(b)
    b.device.dereg_mr(b.mr)
    b.silent(b.ask(p.READ_REQUEST, 0, b.at(3 * MTU)))


@clause("9.7.5.1.3", "a duplicate READ with payload is not answered")
def _(b: Bench) -> None:
    _read(b)
    b.silent(b.ask(p.READ_REQUEST, 0, b.at(3 * MTU), b"data"))


@clause("9.7.5.1.3", "of more READs than there are resources the oldest is forgotten", max_dest_rd_atomic=2)
def _(b: Bench) -> None:
    for n in range(3):
        b.ask(p.READ_REQUEST, n, b.at(4))
    b.silent(b.ask(p.READ_REQUEST, 0, b.at(4)))
    assert b.ask(p.READ_REQUEST, 1, b.at(4)) != []


@clause("9.7.5.1.3", "a READ at a SEND's PSN is not answered", receives=1)
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data")
    b.silent(b.ask(p.READ_REQUEST, 0, b.at(4)))


@clause("9.7.5.1.3", "answers of duplicate READs are bounded: one a resource")
def _(b: Bench) -> None:
    b.fill(0, FULL * 4)
    again = b.request(p.READ_REQUEST, 0, b.at(4 * MTU))
    b.ask(p.READ_REQUEST, 0, b.at(4 * MTU))
    seen = b.put(*[again] * 1000)
    assert [s.psn for s in seen] == [b.psn(n) for n in range(4)]


@clause("9.7.5.1.3", "a repeat replaces the answer that is under way: it begins where it was asked from")
def _(b: Bench) -> None:
    b.fill(0, FULL * 4)
    b.device.receive(b.request(p.READ_REQUEST, 0, b.at(4 * MTU)), b.now)
    assert [s.psn for s in b.sent(2)] == [b.psn(0), b.psn(1)]
    seen = b.ask(p.READ_REQUEST, 1, b.at(3 * MTU, MTU))
    assert [(s.operation, s.psn) for s in seen] == [
        (p.READ_FIRST, b.psn(1)),
        (p.READ_MIDDLE, b.psn(2)),
        (p.READ_LAST, b.psn(3)),
    ]


@clause("9.7.5.1.3", "answers of several READs asked for again in turn are bounded too")
def _(b: Bench) -> None:
    requests = [b.request(p.READ_REQUEST, n, b.at(4)) for n in range(4)]
    b.put(*requests)
    assert sorted(s.psn for s in b.put(*requests * 100)) == [b.psn(n) for n in range(4)]


@clause("9.7.5.1.3", "duplicates of SENDs between those of a READ are bounded too", receives=1)
def _(b: Bench) -> None:
    send = b.request(p.SEND_ONLY, 0, payload=b"data")
    read = b.request(p.READ_REQUEST, 1, b.at(4))
    b.put(send, read)
    assert len(b.put(*[send, read] * 500)) <= 4


# -- atomics, FLUSH, ATOMIC WRITE


def _atomic_again(operation: int, b: Bench) -> None:
    b.fill(0, (5).to_bytes(8, "little"))
    request = b.request(operation, 0, atomic(b.va, b.rkey, 3, 5))
    (first,) = b.put(request)
    b.ask(p.WRITE_ONLY, 1, b.at(4, 64), b"data")
    content = b.memory(0, 8)
    (again,) = b.put(request)
    assert (again.operation, again.psn, again.original, again.msn) == (p.ATOMIC_ACK, b.psn(0), 5, 2)
    assert first.original == 5
    assert b.memory(0, 8) == content


for operation, name in ((p.FETCH_ADD, "FETCH ADD"), (p.CMP_SWAP, "COMPARE SWAP")):
    clause.add(
        "9.7.5.1.3", f"a duplicate {name} is answered from memory of it, and not executed again",
        partial(_atomic_again, operation),
    )  # fmt: skip


def _another_atomic(what: str, b: Bench) -> None:
    other = b.device.reg_mr(b.pd, b.va, 64, ["LOCAL_WRITE", "REMOTE_ATOMIC"])
    b.put(b.request(p.CMP_SWAP, 0, atomic(b.va, b.rkey, 3, 5)))
    operation, header = {
        "another address": (p.CMP_SWAP, atomic(b.va + 8, b.rkey, 3, 5)),
        "another key": (p.CMP_SWAP, atomic(b.va, other.rkey, 3, 5)),
        "another value": (p.CMP_SWAP, atomic(b.va, b.rkey, 4, 5)),
        "another comparison": (p.CMP_SWAP, atomic(b.va, b.rkey, 3, 6)),
        "another operation": (p.FETCH_ADD, atomic(b.va, b.rkey, 3, 5)),
    }[what]
    content = b.memory(0, 16)
    b.silent(b.ask(operation, 0, header))
    assert b.memory(0, 16) == content


for what in ("another address", "another key", "another value", "another comparison", "another operation"):
    clause.add(
        "9.7.5.1.3", f"a duplicate atomic with {what} is not answered", partial(_another_atomic, what)
    )  # fmt: skip


@clause("A19.4", "a duplicate ATOMIC WRITE is answered and not executed again")
def _(b: Bench) -> None:
    request = b.request(p.ATOMIC_WRITE, 0, b.at(8), b"8 bytes!")
    b.put(request)
    b.ask(p.WRITE_ONLY, 1, b.at(8), b"newer...")
    assert [s.operation for s in b.put(request)] == [p.READ_ONLY]
    assert b.memory(0, 8) == b"newer..."


@clause("A19.4", "a duplicate FLUSH is answered; one of another range is not")
def _(b: Bench) -> None:
    b.ask(p.FLUSH, 0, word(1) + b.at(8))
    assert [s.operation for s in b.ask(p.FLUSH, 0, word(1) + b.at(8))] == [p.READ_ONLY]
    b.silent(b.ask(p.FLUSH, 0, word(1) + b.at(16)))


@clause("9.7.5.1.4", "an RNR NAK repeated for the same request does not take a receive")
def _(b: Bench) -> None:
    for _ in range(3):
        b.refused(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0, p.RNR | 12, dead=False)
    b.receive(4)
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)
    assert b.statuses() == [(4, "SUCCESS")]


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_what_comes_again_is_answered_as_the_specification_says(bench: dict[str, object], case: Case) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
