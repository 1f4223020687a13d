"""A soft device on the bench: one queue pair, opposite a plain peer that sends it what a case asks for.

A case is a function with the section of the specification and a claim: ``@clause("9.7.5.1.3", "a …")``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plain_peer as p
import pytest
from plain_peer import Seen, packet, take_apart

from rocekit.soft import RecvWR, SendWR, Sge, SoftDevice
from rocekit.soft.engine.work import WC

PEER_QPN = 0x99
PEER, OWN = "10.9.0.1", "10.9.0.2"
QKEY = 0x11223344
RIGHTS = (
    "LOCAL_WRITE",
    "REMOTE_WRITE",
    "REMOTE_READ",
    "REMOTE_ATOMIC",
    "FLUSH_GLOBAL",
    "FLUSH_PERSISTENT",
)
MEMORY = 1 << 20
MTU = 1024
FULL = bytes(range(256)) * 4
MS = 1_000_000

Case = Callable[["Bench"], None]


STARTS = {
    p.SEND_ONLY: "SEND ONLY",
    p.SEND_ONLY_IMM: "SEND ONLY with immediate",
    p.SEND_FIRST: "SEND FIRST",
    p.WRITE_ONLY: "WRITE ONLY",
    p.WRITE_ONLY_IMM: "WRITE ONLY with immediate",
    p.WRITE_FIRST: "WRITE FIRST",
    p.READ_REQUEST: "READ",
    p.CMP_SWAP: "COMPARE SWAP",
    p.FETCH_ADD: "FETCH ADD",
    p.SEND_ONLY_INV: "SEND ONLY with invalidate",
    p.FLUSH: "FLUSH",
    p.ATOMIC_WRITE: "ATOMIC WRITE",
}
"""The requests that begin a message."""


class Clauses:
    """The cases of a module, each a function that gets a :class:`Bench`; ``bench`` makes it."""

    def __init__(self) -> None:
        self.cases: list[Any] = []

    def __call__(self, section: str, claim: str, **bench: Any) -> Callable[[Case], Case]:
        def keep(case: Case) -> Case:
            self.add(section, claim, case, **bench)
            return case

        return keep

    def add(self, section: str, claim: str, case: Case, **bench: Any) -> None:
        """A case of a table of them."""
        name = f"{section} {claim}"
        assert all(one.id != name for one in self.cases), name
        self.cases.append(pytest.param(bench, case, id=name))


class Bench:
    """The endpoint under test, at 10.9.0.2, and its memory; the peer is QP 0x99 at 10.9.0.1.

    Args:
        attributes: of the queue pair, where they shall differ.
    """

    def __init__(
        self,
        transport: str = "RC",
        *,
        rq_psn: int = 0x100,
        sq_psn: int = 0x500,
        receives: int = 0,
        receive_bytes: int = 16384,
        access: tuple[str, ...] = RIGHTS,
        shared: bool = False,
        state: str = "RTS",
        device: dict[str, Any] | None = None,
        **attributes: Any,
    ) -> None:
        self.now = 1_000_000_000
        self.device = device_ = SoftDevice("bench", [OWN], seed=1, **device or {})
        self.rq_psn, self.sq_psn = rq_psn, sq_psn
        self.pd = device_.alloc_pd()
        self.va = device_.memory.alloc(MEMORY)
        self.mr = device_.reg_mr(self.pd, self.va, MEMORY, RIGHTS)
        self.rkey = self.mr.rkey
        self.cq = device_.create_cq(4096)
        srq = device_.create_srq(self.pd, 64) if shared else None
        self.qp = device_.create_qp(self.pd, transport, self.cq, max_recv_wr=512, max_send_wr=512, srq=srq)
        self.base = {"RC": p.RC, "UC": p.UC, "UD": p.UD}[transport]
        own = {"qkey": QKEY} if transport == "UD" else {"access": access}
        device_.modify_qp(self.qp, self.now, state="INIT", **own)
        rtr: dict[str, Any] = {}
        rts: dict[str, Any] = {"sq_psn": sq_psn}
        if transport != "UD":
            rtr = {"dest_ip": PEER, "dest_qpn": PEER_QPN, "path_mtu": MTU, "rq_psn": rq_psn}
        if transport == "RC":
            rtr |= {"max_dest_rd_atomic": 4, "min_rnr_timer": 12}
            rts |= {"timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": 4}
        rtr |= {k: v for k, v in attributes.items() if k in (*rtr, "flow_control")}
        rts |= {k: v for k, v in attributes.items() if k in rts}
        assert attributes.keys() <= {*rtr, *rts}
        device_.modify_qp(self.qp, self.now, state="RTR", **rtr)
        if state != "RTR":
            device_.modify_qp(self.qp, self.now, state="RTS", **rts)
        for n in range(receives):
            self.receive(n, receive_bytes)
        self.device.datagrams_to_send(self.now)
        self.device.events()

    # -- as the program

    def receive(self, wr_id: int, length: int = 16384) -> None:
        sges = (Sge(self.va, length, self.mr.lkey),) if length else ()
        if self.qp.rq.shared:
            self.device.post_srq_recv(self.qp.rq, RecvWR(wr_id, sges))
        else:
            self.device.post_recv(self.qp, RecvWR(wr_id, sges), self.now)

    def post(
        self, opcode: str, length: int = 8, wr_id: int = 1, at: int = 0x8000, **fields: Any
    ) -> list[Seen]:
        """Post a send request; what is sent at once."""
        self.post_only(opcode, length, wr_id, at, **fields)
        return self.sent()

    def post_only(
        self, opcode: str, length: int = 8, wr_id: int = 1, at: int = 0x8000, **fields: Any
    ) -> None:
        """Post a send request; nothing is sent yet."""
        sges = (Sge(self.va + at, length, self.mr.lkey),) if length else ()
        wr = SendWR(wr_id, opcode, sges, remote_va=0x5000, rkey=0x77, **fields)
        self.device.post_send(self.qp, wr, self.now)

    def sent(self, limit: int | None = None) -> list[Seen]:
        """What the endpoint sends now, or the first so many of it."""
        return [take_apart(d.data) for d in self.device.datagrams_to_send(self.now, limit)]

    def completions(self) -> list[WC]:
        return self.device.poll_cq(self.cq, 4096)

    def statuses(self) -> list[tuple[int, str]]:
        return [(wc.wr_id, wc.status) for wc in self.completions()]

    def events(self) -> list[str]:
        return [event.type for event in self.device.events()]

    def memory(self, offset: int, length: int) -> bytes:
        return self.device.memory.read(self.va + offset, length)

    def fill(self, offset: int, data: bytes) -> None:
        self.device.memory.write(self.va + offset, data)

    # -- as the peer

    def put(self, *datagrams: bytes) -> list[Seen]:
        """Datagrams arrive together; what the endpoint sends then."""
        for data in datagrams:
            self.device.receive(data, self.now)
        return self.sent()

    def make(
        self, operation: int, psn: int, headers: bytes = b"", payload: bytes = b"", **rest: Any
    ) -> bytes:
        return packet(self.base | operation, psn, self.qp.qpn, headers, payload, **rest)

    def request(
        self, operation: int, offset: int = 0, headers: bytes = b"", payload: bytes = b"", **rest: Any
    ) -> bytes:
        """A request ``offset`` PSNs behind the first; asks for an ACK."""
        return self.make(operation, self.rq_psn + offset, headers, payload, **{"ackreq": True} | rest)

    def ask(
        self, operation: int, offset: int = 0, headers: bytes = b"", payload: bytes = b"", **rest: Any
    ) -> list[Seen]:
        return self.put(self.request(operation, offset, headers, payload, **rest))

    def at(self, length: int, offset: int = 0) -> bytes:
        """The RETH for that place in the endpoint's memory."""
        return p.reth(self.va + offset, self.rkey, length)

    def right(self, operation: int, offset: int) -> bytes:
        """A request of that kind, right in everything but perhaps its place."""
        headers = {
            p.SEND_ONLY_IMM: p.word(7),
            p.SEND_LAST_IMM: p.word(7),
            p.WRITE_LAST_IMM: p.word(7),
            p.SEND_ONLY_INV: p.word(self.rkey),
            p.SEND_LAST_INV: p.word(self.rkey),
            p.WRITE_ONLY: self.at(4),
            p.WRITE_ONLY_IMM: self.at(4) + p.word(7),
            p.WRITE_FIRST: self.at(4096),
            p.READ_REQUEST: self.at(4),
            p.CMP_SWAP: p.atomic(self.va, self.rkey, 1),
            p.FETCH_ADD: p.atomic(self.va, self.rkey, 1),
            p.FLUSH: p.word(1) + self.at(4),
            p.ATOMIC_WRITE: self.at(8),
        }
        full = operation in (p.SEND_FIRST, p.SEND_MIDDLE, p.WRITE_FIRST, p.WRITE_MIDDLE)
        bare = operation in (p.READ_REQUEST, p.CMP_SWAP, p.FETCH_ADD, p.FLUSH)
        payload = FULL if full else b"" if bare else bytes(8) if operation == p.ATOMIC_WRITE else b"data"
        return self.request(operation, offset, headers.get(operation, b""), payload)

    def answer(
        self, operation: int, offset: int = 0, headers: bytes = b"", payload: bytes = b"", **rest: Any
    ) -> list[Seen]:
        """A response arrives, ``offset`` PSNs behind the endpoint's first request."""
        return self.put(self.make(operation, self.sq_psn + offset, headers, payload, **rest))

    def ack(self, offset: int = 0, syndrome: int = p.ACK_UNLIMITED, msn: int = 1) -> list[Seen]:
        return self.answer(p.ACKNOWLEDGE, offset, p.aeth(syndrome, msn))

    # -- time

    def later(self, ns: int) -> list[Seen]:
        """Time passes, timers expire; what the endpoint sends until then."""
        until = self.now + ns
        found: list[Seen] = []
        while (due := self.device.next_timer()) is not None and due <= until:
            self.now = max(due, self.now)
            self.device.handle_timer(self.now)
            found += self.sent()
        self.now = until
        return found + self.sent()

    def wait_unsent(self, ns: int) -> None:
        """Time passes while the wire takes no packet of the endpoint."""
        self.now += ns
        self.device.handle_timer(self.now)

    # -- claims

    def psn(self, offset: int) -> int:
        return (self.rq_psn + offset) & 0xFFFFFF

    def acknowledged(self, seen: list[Seen], offset: int, msn: int | None = None) -> None:
        """One ACK up to that PSN, and nothing else."""
        assert [(s.operation, s.psn, s.syndrome) for s in seen] == [
            (p.ACKNOWLEDGE, self.psn(offset), p.ACK_UNLIMITED)
        ]
        assert msn is None or seen[0].msn == msn

    def refused(self, seen: list[Seen], offset: int, syndrome: int, *, dead: bool = True) -> None:
        """One NAK with that syndrome at that PSN, and nothing else; a fatal one ends the QP (9.9.3.1)."""
        assert [(s.operation, s.psn, s.syndrome) for s in seen] == [
            (p.ACKNOWLEDGE, self.psn(offset), syndrome)
        ]
        assert (self.qp.state == "ERR") == dead

    def silent(self, seen: list[Seen]) -> None:
        """Nothing was sent, and the QP lives."""
        assert seen == []
        assert self.qp.state in ("RTS", "RTR", "SQD")
