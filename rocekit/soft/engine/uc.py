"""Unreliable connections: no answers, no repeats; a message of which a packet is lost is lost (9.8.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.memory import LocalProtectionError
from rocekit.soft.engine.packet import Packet
from rocekit.soft.engine.responder import NotReady, Refused, Responder
from rocekit.soft.engine.segment import SendWqe, request
from rocekit.soft.engine.send_queue import SendQueue
from rocekit.wire import NAK_REMOTE_ACCESS
from rocekit.wire import psn as serial

if TYPE_CHECKING:
    from rocekit.soft.engine.qp import Qp


class UnreliableSender(SendQueue):
    """A send queue whose requests are over when they are sent."""

    def __init__(self, qp: Qp) -> None:
        super().__init__(qp)
        self.begin(0)

    def begin(self, sq_psn: int) -> None:
        self.queue.clear()
        self.psn = sq_psn

    def _failed(self, status: str, now: int) -> None:
        """The oldest request cannot be sent: the send queue stops, what is behind it is flushed
        (10.3.1.6).
        """
        self.complete(self.queue.popleft(), status, now)
        self.qp.state = qp_state.SQE
        self.flush(now)

    def _begin_oldest(self, now: int) -> SendWqe | None:
        """The oldest request, its payload gathered; None when there is none that may be sent."""
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
        self.qp.device.counters.count("drop_ghost_response")  # nobody answers here

    def deadline(self) -> int | None:
        return None

    def handle_timer(self, now: int) -> None:
        """There is none."""

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
    """The receiving half of a UC queue pair: what RC does, without a word to the sender.

    A packet out of sequence ends the message under way in silence; the next message begins at its first
    packet (9.8.2.2.1). The receive request that the lost message had taken serves the next one.
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
        except NotReady:
            counters.count("drop_no_receive")
            self._abandon()
        except Refused as refused:
            access = refused.code == NAK_REMOTE_ACCESS
            counters.count("drop_access" if access else "drop_too_long")
            self._abandon()

    def _abandon(self) -> None:
        message, self.message = self.message, None
        if message is not None and message.receive is not None:
            self.spare = message.receive

    def _acknowledge(self, psn: int) -> None:
        """Nothing is acknowledged here."""

    def receive_posted(self) -> None:
        """Nobody waits for credits."""
