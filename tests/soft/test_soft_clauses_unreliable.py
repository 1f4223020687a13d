"""UC, UD, what is dropped before a queue pair sees it, and CNPs (IBA Vol. 1: 9.6, 9.8; A17.9.3).

The peer shares no code with rocekit (tests/tools/plain_peer.py).
"""

from __future__ import annotations

from functools import partial

import plain_peer as p
import pytest
from clause_bench import (
    FULL,
    MTU,
    OWN,
    PEER,
    PEER_QPN,
    QKEY,
    Bench,
    Case,
    Clauses,
)
from plain_peer import aeth, deth, packet, reth, take_apart, word

clause = Clauses()
CE, ECT, NOT_ECT = 3, 2, 0


# -- 9.8.2: UC


@clause("9.8.2", "UC: a message is received and not acknowledged", transport="UC", receives=1)
def _(b: Bench) -> None:
    b.silent(b.ask(p.SEND_FIRST, 0, payload=FULL))
    b.silent(b.ask(p.SEND_LAST, 1, payload=b"end"))
    assert b.statuses() == [(0, "SUCCESS")]
    assert b.memory(0, MTU + 3) == FULL + b"end"


@clause(
    "9.8.2.2.1",
    "UC: a message whose packet is lost is lost, and its receive serves the next",
    transport="UC",
    receives=1,
)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL)
    b.silent(b.ask(p.SEND_LAST, 2, payload=b"end"))
    assert b.statuses() == []
    b.silent(b.ask(p.SEND_ONLY, 3, payload=b"next"))
    ((wr_id, status),) = b.statuses()
    assert (wr_id, status, b.memory(0, 4)) == (0, "SUCCESS", b"next")


@clause("9.8.2.2.1", "UC: a new message is taken at any PSN", transport="UC", receives=3)
def _(b: Bench) -> None:
    for offset in (7, 3, 0x800000):
        b.silent(b.ask(p.SEND_ONLY, offset, payload=b"data"))
    assert [status for _, status in b.statuses()] == ["SUCCESS"] * 3


@clause("9.8.2.2.1", "UC: the rest of a message without its beginning is dropped", transport="UC", receives=1)
def _(b: Bench) -> None:
    b.silent(b.ask(p.SEND_MIDDLE, 0, payload=FULL))
    b.silent(b.ask(p.SEND_LAST, 1, payload=b"end"))
    assert b.statuses() == []


@clause("9.8.2.2.2", "UC: a new beginning ends the message before it silently", transport="UC", receives=2)
def _(b: Bench) -> None:
    b.ask(p.SEND_FIRST, 0, payload=FULL)
    b.silent(b.ask(p.SEND_ONLY, 1, payload=b"data"))
    assert b.statuses() == [(0, "SUCCESS")]


def _uc_dropped(operation: int, header: str, payload: bytes, b: Bench, **rest: int) -> None:
    headers = {
        "": b"", "key": reth(b.va, b.rkey ^ 1, len(payload)), "long": b.at(4), "short": b.at(64),
        "huge": b.at((1 << 31) + 1), "one": b.at(MTU), "reth": b.at(8),
    }[header]  # fmt: skip
    content = b.memory(0, 64)
    b.silent(b.ask(operation, 0, headers, payload, **rest))
    assert b.memory(0, 64) == content
    assert b.statuses() == []
    b.silent(b.ask(p.SEND_ONLY, 1, payload=b"next"))
    assert b.statuses() == [(0, "SUCCESS")]


for name, operation, header, payload in (
    ("a WRITE with another R_Key", p.WRITE_ONLY, "key", b"\xff" * 8),
    ("a WRITE longer than its RETH", p.WRITE_ONLY, "long", b"\xff" * 8),
    ("a WRITE shorter than its RETH", p.WRITE_ONLY, "short", b"\xff" * 8),
    ("a WRITE of more than 2^31 bytes", p.WRITE_FIRST, "huge", b"\xff" * MTU),
    ("a WRITE FIRST of one path MTU", p.WRITE_FIRST, "one", b"\xff" * MTU),
    ("a SEND FIRST that is short", p.SEND_FIRST, "", b"\xff" * 512),
    ("a SEND ONLY that is long", p.SEND_ONLY, "", b"\xff" * (MTU + 4)),
    ("a READ", p.READ_REQUEST, "reth", b""),
    ("a reserved opcode", 0x1E, "", b"\xff" * 8),
):
    clause.add(
        "9.8.2", f"UC: {name} is dropped, and the QP lives", partial(_uc_dropped, operation, header, payload),
        transport="UC", receives=1,
    )  # fmt: skip


@clause("9.8.2", "UC: a SEND without a receive is dropped", transport="UC")
def _(b: Bench) -> None:
    b.silent(b.ask(p.SEND_ONLY, 0, payload=b"data"))


@clause("9.8.2", "UC: a request is over when it is sent; PSNs go on", transport="UC")
def _(b: Bench) -> None:
    seen = b.post("SEND", MTU + 4) + b.post("RDMA_WRITE", 4, 2)
    assert [(s.operation, s.psn) for s in seen] == [
        (p.SEND_FIRST, b.sq_psn),
        (p.SEND_LAST, b.sq_psn + 1),
        (p.WRITE_ONLY, b.sq_psn + 2),
    ]
    assert b.statuses() == [(1, "SUCCESS"), (2, "SUCCESS")]


@clause("9.8.2", "UC: responses are dropped", transport="UC")
def _(b: Bench) -> None:
    b.post("SEND")
    b.silent(b.answer(p.ACKNOWLEDGE, 0, aeth(p.NAK_ACCESS)))


# -- 9.8.3: UD


def _datagram(
    b: Bench, payload: bytes = b"data", qkey: int = QKEY, source: int = 0x77, **rest: object
) -> bytes:
    return b.make(p.SEND_ONLY, 5, deth(qkey, source), payload, **rest)


@clause("9.8.3", "UD: a datagram arrives behind 40 bytes of its network header", transport="UD", receives=1)
def _(b: Bench) -> None:
    b.silent(b.put(_datagram(b)))
    (wc,) = b.completions()
    assert (wc.byte_len, wc.src_qpn, wc.src_ip, wc.grh) == (44, 0x77, PEER, True)
    assert b.memory(40, 4) == b"data"
    assert b.memory(32, 8) == bytes([10, 9, 0, 1, 10, 9, 0, 2])  # A17.4.5.2: the IPv4 header at the end


@clause("9.8.3", "UD: any PSN is taken, one twice too", transport="UD", receives=2)
def _(b: Bench) -> None:
    b.put(_datagram(b), _datagram(b))
    assert len(b.statuses()) == 2


@clause("9.8.3", "UD: an immediate arrives", transport="UD", receives=1)
def _(b: Bench) -> None:
    b.put(b.make(p.SEND_ONLY_IMM, 5, deth(QKEY, 1) + word(9), b"data"))
    assert b.completions()[0].imm == 9


def _ud_dropped(build: str, b: Bench) -> None:
    data = {
        "another Q_Key": _datagram(b, qkey=QKEY ^ 1),
        "more than the path MTU": _datagram(b, payload=bytes(4100)),
        "a reserved opcode": b.make(0x1E, 5, deth(QKEY, 1), b"data"),
        "the opcode of a SEND FIRST": b.make(p.SEND_FIRST, 5, deth(QKEY, 1), bytes(MTU)),
        "the opcode of a WRITE": b.make(p.WRITE_ONLY, 5, b.at(8), bytes(8)),
        "RC's opcode": packet(p.SEND_ONLY, 5, b.qp.qpn, payload=b"data"),
        "a DETH cut short": b.make(p.SEND_ONLY, 5, b"1234"),
    }[build]
    content = b.memory(0, 64)
    b.silent(b.put(data))
    assert (b.statuses(), b.memory(0, 64)) == ([], content)


for build in (
    "another Q_Key", "more than the path MTU", "a reserved opcode", "the opcode of a SEND FIRST",
    "the opcode of a WRITE", "RC's opcode", "a DETH cut short",
):  # fmt: skip
    clause.add("9.8.3", f"UD: {build}: dropped", partial(_ud_dropped, build), transport="UD", receives=1)


@clause(
    "9.8.3",
    "UD: longer than the receive: dropped, the receive stays",
    transport="UD",
    receives=1,
    receive_bytes=48,
)
def _(b: Bench) -> None:
    b.silent(b.put(_datagram(b, payload=bytes(12))))
    b.put(_datagram(b, payload=bytes(8)))
    assert b.statuses() == [(0, "SUCCESS")]


def _ud_sends(given: int, sent: int, b: Bench) -> None:
    (seen,) = b.post("SEND", 5, dest_ip=PEER, dest_qpn=0x55, qkey=given)
    assert (seen.qkey, seen.source_qpn, seen.qpn, seen.pad) == (sent, b.qp.qpn, 0x55, 3)


clause.add("10.2.5", "UD: a request's Q_Key is sent", partial(_ud_sends, 0x1234, 0x1234), transport="UD")
clause.add(
    "10.2.5", "UD: a Q_Key with the highest bit means the QP's own", partial(_ud_sends, 0x80000000, QKEY),
    transport="UD",
)  # fmt: skip


# -- 9.6: dropped before a queue pair sees it


def _dropped(build: str, b: Bench) -> None:
    send = partial(b.request, p.SEND_ONLY, 0, b"", b"data")
    whole = send()
    data = {
        "a wrong ICRC": send(spoil=1),
        "transport version 1": send(version=1),
        "transport version 15": send(version=15),
        "another P_Key": send(pkey=0x1234),
        "another UDP port": send(port=4792),
        "another source address": send(source="10.9.0.3"),
        "an unknown QP": packet(p.SEND_ONLY, b.rq_psn, b.qp.qpn + 1, payload=b"data", ackreq=True),
        "UC's opcode": packet(p.UC | p.SEND_ONLY, b.rq_psn, b.qp.qpn, payload=b"data", ackreq=True),
        "UD's opcode": packet(p.UD | p.SEND_ONLY, b.rq_psn, b.qp.qpn, deth(0, 1), b"data", ackreq=True),
        "RD's opcode": packet(0x40 | p.SEND_ONLY, b.rq_psn, b.qp.qpn, bytes(12), b"data", ackreq=True),
        "XRC's opcode": packet(0xA0 | p.SEND_ONLY, b.rq_psn, b.qp.qpn, bytes(4), b"data", ackreq=True),
        "a vendor's opcode": packet(0xC4, b.rq_psn, b.qp.qpn, payload=b"data", ackreq=True),
        "a packet cut short": whole[:-1],
        "no BTH": whole[:34],
        "an IPv4 fragment": whole[:6] + b"\x20\x00" + whole[8:],
        "nothing": b"",
        "an RETH cut short": b.request(p.WRITE_ONLY, 0, bytes(8)),
        "a bit of the payload": whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:],
    }[build]
    b.silent(b.put(data))
    assert b.statuses() == []
    b.acknowledged(b.put(whole), 0, msn=1)


for build in (
    "a wrong ICRC", "transport version 1", "transport version 15", "another P_Key", "another UDP port",
    "another source address", "an unknown QP", "UC's opcode", "UD's opcode", "RD's opcode", "XRC's opcode",
    "a vendor's opcode", "a packet cut short", "no BTH", "an IPv4 fragment", "nothing", "an RETH cut short",
    "a bit of the payload",
):  # fmt: skip
    clause.add("9.6.1", f"dropped, and nothing ends: {build}", partial(_dropped, build), receives=1)


@clause("9.6.1", "what the ICRC does not cover may change: ECN, TTL", receives=1)
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data", ecn=NOT_ECT, ttl=3), 0)


@clause("10.9.3", "a limited member's P_Key is taken by a full member", receives=1)
def _(b: Bench) -> None:
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data", pkey=0x7FFF), 0)


@clause("9.6.1", "a response with a wrong ICRC acknowledges nothing")
def _(b: Bench) -> None:
    b.post("SEND")
    b.silent(b.answer(p.ACKNOWLEDGE, 0, aeth(p.ACK_UNLIMITED), spoil=1))
    assert b.statuses() == []


# -- A17.9.3: CNPs


@clause("A17.9.3", "a packet with CE draws one CNP, and is executed", receives=1)
def _(b: Bench) -> None:
    cnp, ack = b.ask(p.SEND_ONLY, 0, payload=b"data", ecn=CE)
    assert (cnp.opcode, cnp.becn, cnp.qpn, cnp.target, len(cnp.payload)) == (p.CNP, True, PEER_QPN, PEER, 16)
    assert ack.operation == p.ACKNOWLEDGE


@clause("A17.9.3", "many packets with CE within the interval draw one CNP", receives=9)
def _(b: Bench) -> None:
    seen = [s for n in range(9) for s in b.ask(p.SEND_ONLY, n, payload=b"data", ecn=CE)]
    assert [s.opcode for s in seen].count(p.CNP) == 1


@clause("A17.9.3", "after the interval there is another one", receives=2)
def _(b: Bench) -> None:
    b.ask(p.SEND_ONLY, 0, payload=b"data", ecn=CE)
    b.now += 60_000
    assert b.ask(p.SEND_ONLY, 1, payload=b"data", ecn=CE)[0].opcode == p.CNP


for ecn, name in ((NOT_ECT, "no ECN"), (1, "ECT(1)"), (ECT, "ECT(0)")):

    def _no_cnp(ecn: int, b: Bench) -> None:
        b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data", ecn=ecn), 0)

    clause.add("A17.9.3", f"a packet with {name} draws none", partial(_no_cnp, ecn), receives=1)


@clause("A17.9.3", "a CNP that is marked itself draws none")
def _(b: Bench) -> None:
    b.silent(b.put(packet(p.CNP, 0, b.qp.qpn, payload=bytes(16), becn=True, ecn=CE)))


@clause("A17.9.3", "UD: a marked datagram draws a CNP to its source QP", transport="UD", receives=1)
def _(b: Bench) -> None:
    (cnp,) = b.put(_datagram(b, ecn=CE))
    assert (cnp.opcode, cnp.qpn, cnp.target) == (p.CNP, 0x77, PEER)


@clause("A17.9.3", "UD: a marked datagram with another Q_Key draws none", transport="UD", receives=1)
def _(b: Bench) -> None:
    b.silent(b.put(_datagram(b, qkey=QKEY ^ 1, ecn=CE)))


def _marked_and_dropped(build: str, b: Bench) -> None:
    send = partial(b.request, p.SEND_ONLY, 0, b"", b"data", ecn=CE)
    data = {
        "another P_Key": send(pkey=1), "a wrong ICRC": send(spoil=1), "another version": send(version=1),
        "another source": send(source="10.9.0.3"),
    }[build]  # fmt: skip
    b.silent(b.put(data))


for build in ("another P_Key", "a wrong ICRC", "another version", "another source"):
    clause.add("A17.9.3", f"a marked packet with {build} draws none", partial(_marked_and_dropped, build))


@clause("A17.9.3", "UD: what is remembered of senders is bounded", transport="UD", receives=1)
def _(b: Bench) -> None:
    for n in range(20_000):
        b.device.receive(_datagram(b, source=n, ecn=CE), b.now)
    assert len(b.sent()) <= 1024
    assert len(b.qp.notifier) <= 1024


@clause("A17.9.3", "a CNP changes nothing of the connection's PSNs", receives=1)
def _(b: Bench) -> None:
    b.silent(b.put(packet(p.CNP, 0x123456, b.qp.qpn, payload=bytes(16), becn=True)))
    b.acknowledged(b.ask(p.SEND_ONLY, 0, payload=b"data"), 0)


@clause("A17.3", "IPv6: requests are executed and answered the same way")
def _(b: Bench) -> None:
    from rocekit.soft import SoftDevice

    device = SoftDevice("six", ["fd00::2"], seed=1)
    qp = device.create_qp(device.alloc_pd(), "RC", device.create_cq(8))
    device.modify_qp(qp, b.now, state="INIT", access=["REMOTE_WRITE"])
    device.modify_qp(
        qp, b.now, state="RTR", dest_ip="fd00::1", dest_qpn=PEER_QPN, path_mtu=MTU, rq_psn=9,
        max_dest_rd_atomic=1, min_rnr_timer=1,
    )  # fmt: skip
    write = packet(p.WRITE_ONLY, 9, qp.qpn, reth(0, 0, 0), source="fd00::1", target="fd00::2", ackreq=True)
    device.receive(write, b.now)
    (sent,) = device.datagrams_to_send(b.now)
    seen = take_apart(sent.data)
    assert (seen.operation, seen.psn, seen.source, seen.target) == (p.ACKNOWLEDGE, 9, "fd00::2", "fd00::1")


@clause("A17.3", "what an endpoint sends comes from its own address, to its peer's")
def _(b: Bench) -> None:
    (seen,) = b.post("SEND")
    assert (seen.source, seen.target, seen.ecn) == (OWN, PEER, ECT)


@pytest.mark.parametrize(("bench", "case"), clause.cases)
def test_unreliable_transports_and_drops_are_as_the_specification_says(
    bench: dict[str, object], case: Case
) -> None:
    case(Bench(**bench))  # type: ignore[arg-type]
