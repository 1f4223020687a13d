"""Segmentation of messages into packets: the opcode and payload of each (9.4, 9.7.2)."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from rocekit.soft.engine.memory import Scatter
from rocekit.soft.engine.record import TransferRecord
from rocekit.soft.engine.work import VERBS, SendWR, Verb
from rocekit.wire import FIRST, IETH, IMMDT, LAST, MIDDLE, ONLY, OPCODES, psns_of
from rocekit.wire.build import build_transport
from rocekit.wire.psn import MASK


def _opcode(transport: str, verb: Verb, position: str) -> int | None:
    """The opcode of a verb's packet in that position; the last one has immediate and invalidate."""
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
    """The opcode values of one of ``work.VERBS``, by position."""
    found = {p: _opcode(transport, VERBS[name], p) for p in (FIRST, MIDDLE, LAST, ONLY)}
    return MappingProxyType({p: value for p, value in found.items() if value is not None})


class SendWqe:
    """A posted send request and its progress.

    Attributes:
        length: bytes of payload, in either direction.
        psns: how many PSNs it takes; a READ takes one for each response packet (9.7.2).
        first_psn, last_psn: unwrapped, once it is started.
        carries: whether its packets have a payload.
        data: the payload, gathered when it is started.
        scatter: where the payload of a response is written.
        record: its entry in the record of truth.
        ssn: its number among the messages (9.7.7.2), once it is started.
        started: whether its PSNs are fixed.
        asked_from: of one that gets a response, the PSNs of the requests sent for it, unwrapped.
    """

    __slots__ = (
        "asked_from",
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
        one = self.verb.has_response and self.verb.operation != "READ"
        self.psns = 0 if self.verb.local else 1 if one else psns_of(self.length, path_mtu)
        self.carries = not self.verb.has_response or self.verb.operation == "ATOMIC_WRITE"
        self.first_psn = self.last_psn = self.ssn = -1
        self.data = b""
        self.scatter: Scatter | None = None
        self.record: TransferRecord | None = None
        self.started = False
        self.asked_from: set[int] = set()

    @property
    def takes_receive(self) -> bool:
        """Whether it consumes a receive request at the responder."""
        return self.verb.operation == "SEND" or self.verb.immediate


def position(index: int, count: int) -> str:
    """The position of packet ``index`` of ``count``."""
    if count == 1:
        return ONLY
    return FIRST if index == 0 else LAST if index == count - 1 else MIDDLE


def request(wqe: SendWqe, psn: int, path_mtu: int, dest_qpn: int, ackreq: bool) -> bytes:
    """The transport bytes of the request packet with this PSN (unwrapped).

    The PSN of a READ may be that of any of its responses: it requests the rest from there on (9.4.4).
    """
    wr = wqe.wr
    operation = wqe.verb.operation
    index = psn - wqe.first_psn
    if wqe.verb.has_response:
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
            **fields,
        )
    where = position(index, wqe.psns)
    payload = wqe.data[index * path_mtu : (index + 1) * path_mtu]
    if where == MIDDLE or (where == FIRST and operation == "SEND"):
        return build_transport(wqe.opcodes[where], payload, dest_qpn=dest_qpn, psn=psn & MASK, ackreq=ackreq)
    # SE has a meaning only at the end of a message that completes a receive request (9.2).
    fields = {"solicited": wr.solicited} if where in (LAST, ONLY) and wqe.takes_receive else {}
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
