"""Unreliable connections: no ACKs, no retransmission; a message is lost with any of its packets (9.8.2)."""

from __future__ import annotations

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.memory import LocalProtectionError
from rocekit.soft.engine.packet import Packet
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.responder import Nak, Responder, RnrNak
from rocekit.soft.engine.segment import SendWqe, request
from rocekit.soft.engine.send_queue import SendQueue
from rocekit.wire import NAK_REMOTE_ACCESS
from rocekit.wire import psn as serial


class UnreliableSender(SendQueue):
    """A send queue whose requests are over when their last packet is sent."""

    def __init__(self, qp: QueuePair) -> None:
        super().__init__(qp)
        self.begin(0)

    def begin(self, sq_psn: int) -> None:
        self.queue.clear()
        self.psn = sq_psn

    def _failed(self, status: str, now: int) -> None:
        """The oldest request fails: the send queue stops, and those behind it are flushed (10.3.1.6)."""
        self.complete(self.queue.popleft(), status, now)
        self.qp.state = qp_state.SQE
        self.flush(now)

    def _begin_oldest(self, now: int) -> SendWqe | None:
        """The oldest request with its payload gathered; None when none may be sent."""
        if not self.queue:
            return None
        wqe = self.queue[0]
        if wqe.started:
            return wqe
        if self.qp.state != qp_state.RTS:
            return None
        try:
            self.prepare(wqe)
        except LocalProtectionError:
            self._failed("LOC_PROT_ERR", now)
            return None
        wqe.started = True
        wqe.first_psn, wqe.last_psn = self.psn, self.psn + wqe.psns - 1
        return wqe

    def _sent(self, wqe: SendWqe, now: int) -> None:
        self.queue.popleft()
        self.complete(wqe, "SUCCESS", now)
        if self.qp.state == qp_state.SQD:
            self.qp.drained()

    def receive(self, packet: Packet, now: int) -> None:
        self.qp.device.counters.count("drop_ghost_response")

    def deadline(self) -> int | None:
        return None

    def handle_timer(self, now: int) -> None:
        """An unreliable sender has no timer."""

    def idle(self) -> bool:
        return not (self.queue and self.queue[0].started)


class UcSender(UnreliableSender):
    """The sending half of a UC queue pair."""

    def next_packet(self, now: int) -> bytes | None:
        qp = self.qp
        wqe = self._begin_oldest(now)
        if wqe is None:
            return None
        if wqe.psns and self.psn == wqe.first_psn and qp.request_flow is not None:
            wqe.record = qp.record_transfer(wqe)
        data = request(wqe, self.psn, qp.path_mtu, qp.dest_qpn, ackreq=False)
        if qp.request_flow is not None and wqe.record is not None:
            qp.request_flow.sent(wqe.record, self.psn, 1, now, None)
        self.psn += 1
        if self.psn > wqe.last_psn:
            self._sent(wqe, now)
        return data


class UcReceiver(Responder):
    """The receiving half of a UC queue pair: as that of RC, but without responses.

    A packet out of sequence ends the message silently; the next message starts at its first packet
    (9.8.2.2.1) and uses the receive request of the lost one.
    """

    def receive(self, packet: Packet, now: int) -> None:
        counters = self.qp.device.counters
        psn = serial.unwrap(packet.psn, self.epsn)
        if packet.op.starts:
            self._abandon()
            self.epsn = psn
        elif psn != self.epsn or self.message is None:
            counters.count("drop_sequence")
            self._abandon()
            return
        try:
            self._execute(packet, now)
        except RnrNak:
            counters.count("drop_no_receive")
            self._abandon()
        except Nak as nak:
            access = nak.code == NAK_REMOTE_ACCESS
            counters.count("drop_access" if access else "drop_too_long")
            self._abandon()

    def _abandon(self) -> None:
        message, self.message = self.message, None
        if message is not None and message.receive is not None:
            self.spare = message.receive

    def _acknowledge(self, psn: int) -> None:
        """UC has no ACKs."""

    def receive_posted(self) -> None:
        """UC has no credits."""
