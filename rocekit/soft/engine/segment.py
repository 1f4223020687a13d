"""Messages to packets: which opcode each packet has and what it carries (9.4, 9.7.2)."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

from rocekit.soft.engine.packet import build_transport
from rocekit.soft.engine.work import VERBS, SendWR, Verb
from rocekit.wire import FIRST, IETH, IMMDT, LAST, MIDDLE, ONLY, OPCODES, psns_of
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.soft.engine.memory import Scatter
    from rocekit.soft.engine.record import TransferRecord


def _opcode(transport: str, verb: Verb, position: str) -> int | None:
    """The opcode of a verb's packet in that position; immediate and invalidate ride on the last one."""
    ends = position in (LAST, ONLY)
    for op in OPCODES.values():
        if (
            op.transport == transport
            and op.operation == verb.operation
            and op.position == position
            and (IMMDT in op.headers) == (verb.immediate and ends)
            and (IETH in op.headers) == (verb.invalidate and ends)
        ):
            return op.value
    return None


@lru_cache(maxsize=64)
def opcodes(transport: str, name: str) -> MappingProxyType[str, int]:
    """Position to opcode value, for one of ``work.VERBS``."""
    found = {p: _opcode(transport, VERBS[name], p) for p in (FIRST, MIDDLE, LAST, ONLY)}
    return MappingProxyType({p: value for p, value in found.items() if value is not None})


class SendWqe:
    """A posted send request, and how far it has come.

    Attributes:
        length: bytes that its payload has, in whichever direction.
        psns: how many PSNs it takes: a READ's are those of its responses (9.7.2).
        first_psn, last_psn: unwrapped, once it is started.
        data: the payload, gathered when it is started.
        scatter: where a response's payload goes.
        ssn: its place among the messages (9.7.7.2), once it is started.
        started: whether its first packet has been made.
    """

    __slots__ = (
        "carries",
        "data",
        "first_psn",
        "last_psn",
        "length",
        "opcodes",
        "psns",
        "record",
        "scatter",
        "ssn",
        "started",
        "verb",
        "wr",
    )

    def __init__(self, wr: SendWR, transport: str, path_mtu: int) -> None:
        self.wr = wr
        self.verb = VERBS[wr.opcode]
        self.opcodes = opcodes(transport, wr.opcode)
        self.length = wr.flush_length if self.verb.operation == "FLUSH" else wr.length
        one = self.verb.answered and self.verb.operation != "READ"
        self.psns = 0 if self.verb.local else 1 if one else psns_of(self.length, path_mtu)
        self.carries = not self.verb.answered or self.verb.operation == "ATOMIC_WRITE"
        self.first_psn = self.last_psn = self.ssn = -1
        self.data = b""
        self.scatter: Scatter | None = None
        self.record: TransferRecord | None = None
        self.started = False

    @property
    def takes_receive(self) -> bool:
        """Whether the responder needs a receive request for it."""
        return self.verb.operation == "SEND" or self.verb.immediate


def position(index: int, count: int) -> str:
    """The position of packet ``index`` of ``count``."""
    if count == 1:
        return ONLY
    return FIRST if index == 0 else LAST if index == count - 1 else MIDDLE


def request(wqe: SendWqe, psn: int, path_mtu: int, dest_qpn: int, ackreq: bool) -> bytes:
    """The transport bytes of the request packet with this PSN (unwrapped).

    For a READ the PSN may be any of its responses': what is asked for is the rest from there on (9.7.5.2.4).
    """
    wr = wqe.wr
    operation = wqe.verb.operation
    index = psn - wqe.first_psn
    if wqe.verb.answered:
        if operation == "READ":
            done = index * path_mtu
            fields = {
                "remote_va": wr.remote_va + done,
                "rkey": wr.rkey,
                "dma_length": wqe.length - done,
            }
        elif operation == "FLUSH":
            fields = {
                "remote_va": wr.remote_va,
                "rkey": wr.rkey,
                "dma_length": wqe.length,
                "placement_type": wr.placement_type,
                "selectivity": wr.selectivity,
            }
        elif operation == "ATOMIC_WRITE":
            fields = {"remote_va": wr.remote_va, "rkey": wr.rkey, "dma_length": wqe.length}
        else:
            fields = {
                "remote_va": wr.remote_va,
                "rkey": wr.rkey,
                "swap_add": wr.swap_add,
                "compare": wr.compare,
            }
        return build_transport(
            wqe.opcodes[ONLY],
            wqe.data,
            dest_qpn=dest_qpn,
            psn=psn & MASK,
            ackreq=ackreq,
            solicited=wr.solicited,
            **fields,
        )
    where = position(index, wqe.psns)
    payload = wqe.data[index * path_mtu : (index + 1) * path_mtu]
    if where == MIDDLE or (where == FIRST and operation == "SEND"):
        return build_transport(wqe.opcodes[where], payload, dest_qpn=dest_qpn, psn=psn & MASK, ackreq=ackreq)
    fields = {"solicited": wr.solicited} if where in (LAST, ONLY) else {}
    if operation == "WRITE" and where in (FIRST, ONLY):
        fields.update(remote_va=wr.remote_va, rkey=wr.rkey, dma_length=wqe.length)
    if where in (LAST, ONLY):
        if wqe.verb.immediate:
            fields["immediate"] = wr.imm
        if wqe.verb.invalidate:
            fields["invalidate_rkey"] = wr.invalidate_rkey
    return build_transport(
        wqe.opcodes[where], payload, dest_qpn=dest_qpn, psn=psn & MASK, ackreq=ackreq, **fields
    )
