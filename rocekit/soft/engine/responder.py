"""The responder of an RC queue pair: it executes requests and responds to them (9.7.4, 9.7.5.1, 9.9.3).

``epsn`` is the expected PSN, unwrapped. A request below it is a duplicate and is not executed again; one
above it shows that a packet was lost. Responses wait in a :class:`ResponseQueue`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from rocekit.soft.engine.duplicates import Resource
from rocekit.soft.engine.memory import HOST_ORDER, MR, LocalProtectionError, Scatter
from rocekit.soft.engine.packet import RESERVED, Packet
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.responses import Response, ResponseQueue
from rocekit.soft.engine.work import WC, RecvWR
from rocekit.wire import (
    ACK,
    ATOMIC_BYTES,
    ATOMICS,
    CREDITS,
    FIRST,
    IETH,
    IMMDT,
    LAST,
    MAX_MESSAGE_BYTES,
    MIDDLE,
    NAK,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    NAK_SEQUENCE_ERROR,
    NO_CREDITS,
    RNR_NAK,
    make_syndrome,
    psns_of,
)
from rocekit.wire import psn as serial

_RIGHTS: Final = {
    "WRITE": "REMOTE_WRITE",
    "READ": "REMOTE_READ",
    "FETCH_ADD": "REMOTE_ATOMIC",
    "CMP_SWAP": "REMOTE_ATOMIC",
    "ATOMIC_WRITE": "REMOTE_WRITE",
}
#: A19.4: the right that a FLUSH of each placement type needs.
_PLACEMENT_RIGHTS: Final = {1: "FLUSH_GLOBAL", 2: "FLUSH_PERSISTENT"}
_U64: Final = (1 << 64) - 1


@dataclass(slots=True)
class PartialMessage:
    """A SEND or WRITE of which not all packets have come."""

    operation: str
    length: int = 0
    done: int = 0
    target: MR | None = None
    address: int = 0
    receive: RecvWR | None = None
    scatter: Scatter | None = None


class Nak(Exception):
    """The response is a NAK: its code, and the status of the message's receive request."""

    def __init__(self, code: int, status: str | None = None) -> None:
        self.code = code
        self.status = status


class RnrNak(Exception):
    """The response is an RNR NAK: no receive request is posted."""


class Responder:
    """The receiving half of an RC queue pair."""

    def __init__(self, qp: QueuePair) -> None:
        self.qp = qp
        self.responses = ResponseQueue(qp)
        self.begin(0)

    def begin(self, rq_psn: int) -> None:
        """Start anew: RESET, or INIT to RTR with the first PSN."""
        self.epsn = rq_psn
        self.msn = 0
        self.message: PartialMessage | None = None
        self.nak_out = False  # at most one NAK until the gap closes (9.7.5.1.1)
        self.responses.clear()
        self.resources: deque[Resource] = deque(maxlen=max(1, self.qp.max_dest_rd_atomic))
        self.out_of_credit = False
        self.spare: RecvWR | None = None  # of a message that was lost (UC)

    # -- sending

    def next_packet(self, now: int) -> bytes | None:
        """The transport bytes of the next response, or None."""
        return self.responses.next_packet(now)

    def urgent(self) -> bool:
        """Whether the next packet carries no data, so that a rate limit does not delay it."""
        return self.responses.urgent

    def _acknowledge(self, psn: int) -> None:
        self.responses.acknowledge(psn, make_syndrome(ACK, self._credits()), self.msn)

    def _credits(self) -> int:
        """The credit code: the posted receives, rounded down to a value that has a code (9.7.7.2)."""
        qp = self.qp
        if not qp.flow_control or qp.rq.shared:
            return NO_CREDITS
        posted = len(qp.rq)
        self.out_of_credit = posted == 0
        return max(code for code, count in enumerate(CREDITS) if count <= posted)

    def receive_posted(self) -> None:
        """Send new credits to a requester that has none (9.7.7.2.4)."""
        if self.out_of_credit and not self.nak_out:
            self._acknowledge(self.epsn - 1)

    def _nak(self, code: int, psn: int) -> None:
        self.qp.device.counters.count("naks_sent")
        self.responses.append(Response("ACK", psn, psn, make_syndrome(NAK, code), self.msn))

    # -- receiving

    def receive(self, packet: Packet, now: int) -> None:
        """Handle a request."""
        counters = self.qp.device.counters
        psn = serial.unwrap(packet.psn, self.epsn)
        if psn < self.epsn:
            counters.count("duplicate_request")
            self._respond_again(packet, psn)
            return
        if psn > self.epsn:
            if self.nak_out:
                counters.count("drop_out_of_sequence")
                return
            counters.count("out_of_seq_request")
            self.nak_out = True
            self._nak(NAK_SEQUENCE_ERROR, self.epsn)
            return
        try:
            self._execute(packet, now)
        except RnrNak:
            # No NAK until this PSN comes again: the packets behind it were sent before the NAK arrived.
            counters.count("send_rnr_err")
            self.nak_out = True
            syndrome = make_syndrome(RNR_NAK, self.qp.min_rnr_timer)
            self.responses.append(Response("ACK", psn, psn, syndrome, self.msn))
        except Nak as nak:
            self._fail(nak, psn, now)
        else:
            self.nak_out = False

    def _fail(self, nak: Nak, psn: int, now: int) -> None:
        """Send a NAK, and move the queue pair to ERR (9.9.3, table "Responder Error Behavior")."""
        self._nak(nak.code, psn)
        message, self.message = self.message, None
        if message is not None and message.receive is not None:
            status = nak.status or "WR_FLUSH_ERR"
            self.qp.complete_receive(WC(message.receive.wr_id, self.qp.qpn, status, "RECV"))
        if nak.code == NAK_REMOTE_ACCESS:
            self.qp.device.report("QP_ACCESS_ERR", self.qp)
        elif nak.code == NAK_INVALID_REQUEST:
            self.qp.device.report("QP_REQ_ERR", self.qp)
        else:
            self.qp.device.report("QP_FATAL", self.qp)
        self.qp.fail(now)

    def _execute(self, packet: Packet, now: int) -> None:
        """Execute the expected request.

        Raises:
            Nak, RnrNak: it cannot be executed.
        """
        op = packet.op
        self._check_order(packet)
        if op.operation in ("SEND", "WRITE"):
            self._check_length(packet)
            if op.operation == "SEND":
                self._take_send(packet)
            else:
                self._take_write(packet)
            psn = self.epsn
            self.epsn += 1
            if op.ends:
                self._end_message(packet)
            if packet.ackreq:
                self._acknowledge(psn)
        else:
            self._take_read_or_atomic(packet)

    def _check_order(self, packet: Packet) -> None:
        """Check that a message's packets follow each other, with nothing between them (9.7.4.1)."""
        message = self.message
        op = packet.op
        if op.operation == RESERVED:  # 9.7.4.1
            raise Nak(NAK_INVALID_REQUEST, "LOC_QP_OP_ERR")
        if op.starts:
            if message is not None:
                raise Nak(NAK_INVALID_REQUEST, "LOC_QP_OP_ERR")
        elif message is None or message.operation != op.operation:
            raise Nak(NAK_INVALID_REQUEST, "LOC_QP_OP_ERR")

    def _check_length(self, packet: Packet) -> None:
        """Check the length of a SEND's or WRITE's packet by its place in the message (9.7.4.1.6)."""
        op, size, path_mtu = packet.op, len(packet.payload), self.qp.path_mtu
        if (
            size > path_mtu
            or (op.position in (FIRST, MIDDLE) and size != path_mtu)
            or (op.position == LAST and not size)
        ):
            raise Nak(NAK_INVALID_REQUEST, "LOC_LEN_ERR")
        if op.operation == "WRITE" and op.starts and packet.dma_length > MAX_MESSAGE_BYTES:
            raise Nak(NAK_INVALID_REQUEST)

    def _take_send(self, packet: Packet) -> None:
        message = self.message
        if packet.op.starts:
            wr = self._take_receive()
            message = self.message = PartialMessage("SEND", receive=wr)
            try:
                message.scatter = self.qp.device.keys.scatter(self.qp.rq.pd, wr.sges, write=True)
            except LocalProtectionError:
                raise Nak(NAK_REMOTE_OPERATIONAL, "LOC_PROT_ERR") from None
        assert message is not None
        assert message.scatter is not None
        if message.done + len(packet.payload) > message.scatter.length:
            raise Nak(NAK_INVALID_REQUEST, "LOC_LEN_ERR")
        if packet.payload:
            message.scatter.write(message.done, packet.payload)
            message.done += len(packet.payload)

    def _take_write(self, packet: Packet) -> None:
        message = self.message
        if packet.op.starts:
            message = PartialMessage("WRITE", length=packet.dma_length, address=packet.remote_va)
            message.target = self._remote(packet, "WRITE", packet.dma_length)
        assert message is not None
        size = len(packet.payload)
        left = message.length - message.done
        # The payload must have the length announced in the RETH (9.7.4.1.6); what is not the end leaves some.
        if size != left if packet.op.ends else size >= left:
            raise Nak(NAK_INVALID_REQUEST)
        if IMMDT in packet.op.headers:
            message.receive = self._take_receive()
        self.message = message
        if size and message.target is not None:
            message.target.slice(message.address + message.done, size)[:] = packet.payload
            message.done += size

    def _take_receive(self) -> RecvWR:
        wr, self.spare = self.spare or self.qp.rq.take(), None
        if wr is None:
            raise RnrNak
        return wr

    def _remote(self, packet: Packet, operation: str, length: int) -> MR | None:
        """The region that a request uses; None for 0 bytes, whose key is not checked (9.7.4.1.5)."""
        right = _RIGHTS[operation]
        if right not in self.qp.access:
            raise Nak(NAK_INVALID_REQUEST)
        if length == 0:
            return None
        mr = self._region(packet, length, right)
        if mr is None:
            raise Nak(NAK_REMOTE_ACCESS)
        return mr

    def _region(self, packet: Packet, length: int, right: str) -> MR | None:
        qp = self.qp
        return qp.device.keys.remote(qp.pd, qp.qpn, packet.rkey, packet.remote_va, length, right)

    def _end_message(self, packet: Packet) -> None:
        qp = self.qp
        message = self.message
        assert message is not None
        has_immediate = IMMDT in packet.op.headers
        invalidated = None
        if IETH in packet.op.headers:
            invalidated = packet.invalidate_rkey
            if not qp.device.keys.invalidate(qp.pd, qp.qpn, invalidated):
                raise Nak(NAK_REMOTE_ACCESS, "REM_INV_REQ_ERR")
        self.message = None
        self.msn += 1
        if message.receive is not None:
            qp.device.counters.count("rdma_recvs")
            qp.complete_receive(
                WC(
                    message.receive.wr_id,
                    qp.qpn,
                    "SUCCESS",
                    "RECV" if message.operation == "SEND" else "RECV_RDMA_WITH_IMM",
                    message.done,
                    packet.immediate if has_immediate else None,
                    invalidated,
                    solicited=bool(packet.solicited),
                )
            )

    # -- READs, atomics, FLUSH, ATOMIC WRITE

    def _take_read_or_atomic(self, packet: Packet) -> None:
        operation = packet.op.operation
        if self.responses.due >= self.qp.max_dest_rd_atomic:
            raise Nak(NAK_INVALID_REQUEST)  # more outstanding than agreed (9.7.4.1.4)
        if packet.payload and not packet.op.payload:
            raise Nak(NAK_INVALID_REQUEST)  # 9.7.4.1.6
        psn = self.epsn
        last = psn
        original = 0
        source: memoryview | None = None
        if operation == "READ":
            if packet.dma_length > MAX_MESSAGE_BYTES:
                raise Nak(NAK_INVALID_REQUEST)  # 9.7.4.1.6
            last = psn + psns_of(packet.dma_length, self.qp.path_mtu) - 1
            source = self._read_source(packet)
        elif operation == "FLUSH":
            self._flush_memory(packet)
        elif operation == "ATOMIC_WRITE":
            if packet.dma_length != ATOMIC_BYTES or len(packet.payload) != ATOMIC_BYTES:
                raise Nak(NAK_INVALID_REQUEST)
            self._eight_bytes(packet, operation)[:] = packet.payload
        else:
            original = self._atomic(packet, operation)
        self.epsn = last + 1
        self.msn += 1  # a READ is complete for the responder when it is accepted (9.7.7.1)
        resource = Resource(packet, psn, last, original)
        self.resources.append(resource)
        self.responses.append(self._response(resource, psn, last, source))

    def _response(self, resource: Resource, psn: int, last: int, source: memoryview | None) -> Response:
        # The response to FLUSH and ATOMIC WRITE is an empty READ response (A19.4).
        kind = "ATOMIC_ACK" if resource.request.op.operation in ATOMICS else "READ_RESPONSE"
        syndrome = make_syndrome(ACK, self._credits())
        # Also to a duplicate: what has been done until now, as Linux hfi1 and rxe count (9.7.7.1).
        return Response(kind, psn, last, syndrome, self.msn, source, resource.original, resource)

    def _read_source(self, packet: Packet) -> memoryview | None:
        mr = self._remote(packet, "READ", packet.dma_length)
        return None if mr is None else mr.slice(packet.remote_va, packet.dma_length)

    def _flush_memory(self, packet: Packet) -> None:
        """Check that a FLUSH is allowed; there is nothing to flush here."""
        for bit, right in _PLACEMENT_RIGHTS.items():
            if packet.placement_type & bit:
                if right not in self.qp.access:
                    raise Nak(NAK_INVALID_REQUEST)
                length = 1 if packet.selectivity else packet.dma_length
                if length and not self._region(packet, length, right):
                    raise Nak(NAK_REMOTE_ACCESS)

    def _eight_bytes(self, packet: Packet, operation: str) -> memoryview:
        mr = self._remote(packet, operation, ATOMIC_BYTES)
        if mr is None or packet.remote_va % ATOMIC_BYTES:
            raise Nak(NAK_INVALID_REQUEST)  # 9.4.5.1: naturally aligned
        return mr.slice(packet.remote_va, ATOMIC_BYTES)

    def _atomic(self, packet: Packet, operation: str) -> int:
        """Do an atomic; the value before it."""
        memory = self._eight_bytes(packet, operation)
        original = int.from_bytes(memory, HOST_ORDER)
        if operation == "FETCH_ADD":
            memory[:] = (original + packet.swap_add & _U64).to_bytes(ATOMIC_BYTES, HOST_ORDER)
        elif original == packet.compare:
            memory[:] = packet.swap_add.to_bytes(ATOMIC_BYTES, HOST_ORDER)
        return original

    # -- duplicates

    def _respond_again(self, packet: Packet, psn: int) -> None:
        """Respond to a duplicate request, without executing it again (9.7.5.1.3)."""
        operation = packet.op.operation
        if operation in ("SEND", "WRITE"):
            # The ACK has the newest complete PSN: after a NAK that acknowledges more than the duplicate's own
            # PSN would.
            self._acknowledge(self.epsn - 1)
            return
        resource = next((r for r in self.resources if r.first_psn <= psn <= r.last_psn), None)
        last = None if resource is None else resource.last_of(packet, psn, self.qp.path_mtu)
        source: memoryview | None = None
        if operation == "READ" and last is not None:
            try:
                source = self._read_source(packet)  # memory is read again
            except Nak:
                last = None  # the key was taken back since
        if resource is None or last is None:
            self.qp.device.counters.count("drop_unanswerable_duplicate")
            return
        self.responses.repeat(self._response(resource, psn, last, source))

    def abort(self) -> RecvWR | None:
        """Give up the partial message; its receive request, if it has one."""
        message, self.message = self.message, None
        spare, self.spare = self.spare, None
        return spare if message is None else message.receive or spare
