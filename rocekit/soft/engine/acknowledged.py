"""What the requester of an RC queue pair does with responses (9.7.5.2, 9.9.2)."""

from __future__ import annotations

from typing import Final

from rocekit.soft.engine.memory import HOST_ORDER
from rocekit.soft.engine.packet import Packet
from rocekit.soft.engine.retries import RetryingQueue
from rocekit.soft.engine.segment import SendWqe
from rocekit.wire import (
    ACK,
    AETH,
    ATOMIC_BYTES,
    CREDITS,
    NAK,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    NAK_SEQUENCE_ERROR,
    NO_CREDITS,
    RNR_NAK,
    syndrome_kind,
    syndrome_value,
)
from rocekit.wire import psn as serial

_FATAL: Final = {
    NAK_INVALID_REQUEST: "REM_INV_REQ_ERR",
    NAK_REMOTE_ACCESS: "REM_ACCESS_ERR",
    NAK_REMOTE_OPERATIONAL: "REM_OP_ERR",
}


def _known(syndrome: int) -> bool:
    """Whether the syndrome of an ACK packet has a meaning on RC (9.7.5.2.1, table "AETH Syndrome Field")."""
    kind = syndrome_kind(syndrome)
    if kind == NAK:
        value = syndrome_value(syndrome)
        return value == NAK_SEQUENCE_ERROR or value in _FATAL
    return kind in (ACK, RNR_NAK)


def _in_place(packet: Packet, wqe: SendWqe, psn: int) -> bool:
    """Whether a response may have this PSN by its opcode (9.9.2): a READ's end at its end only.

    Its beginning may be at its first PSN, or at one from which the rest was asked for again.
    """
    op = packet.op
    if op.ends != (psn == wqe.last_psn):
        return False
    return psn in wqe.asked_from if op.starts else psn != wqe.first_psn


class AcknowledgedQueue(RetryingQueue):
    """The started requests, which ACKs, NAKs, READ responses and results of atomics complete."""

    def receive(self, packet: Packet, now: int) -> None:
        """Handle a response: ACK, NAK, READ response or result of an atomic."""
        counters = self.qp.device.counters
        psn = serial.unwrap(packet.psn, self.una)
        if psn >= self.high:
            counters.count("drop_ghost_response")
            return
        is_ack = packet.op.operation == "ACK"
        if (packet.payload and not packet.op.payload) or (is_ack and not _known(packet.syndrome)):
            counters.count("drop_malformed")
            return
        has_aeth = AETH in packet.op.headers
        if psn < self.una:
            # An old ACK may still bring new credits.
            if has_aeth and psn == self.una - 1:
                self._take_credits(packet)
            counters.count("drop_duplicate_response")
            return
        before = self.una
        if is_ack and syndrome_kind(packet.syndrome) == ACK:
            clear = self._advance(psn + 1, now)
        else:
            clear = self._advance(psn, now)
        if has_aeth:
            self._take_credits(packet)
        if self.una > before:
            self._progressed(now)
        if not clear and not self._refuses_oldest(packet, psn):
            # A response to a later request shows that one to this request was lost (9.9.2).
            counters.count("implied_naks")
            self._send_again("implied_nak", self.una, now)
        elif not is_ack:
            self._take_response(packet, psn, now)
        elif syndrome_kind(packet.syndrome) != ACK:
            self._take_nak(packet, psn, now)
        self._drained()

    def _refuses_oldest(self, packet: Packet, psn: int) -> bool:
        """Whether it is a fatal NAK within the oldest request, a READ of which responses are missing."""
        fatal = syndrome_kind(packet.syndrome) == NAK and syndrome_value(packet.syndrome) in _FATAL
        return packet.op.operation == "ACK" and fatal and psn <= self.queue[0].last_psn

    def _advance(self, limit: int, now: int) -> bool:
        """Everything below ``limit`` has arrived; False when a request below still has no response."""
        while self.started:
            wqe = self.queue[0]
            if wqe.first_psn >= limit:
                break
            if wqe.verb.has_response:
                # A READ does not block if its responses have come up to here.
                return self.una >= limit
            if wqe.last_psn >= limit:
                self.una = max(self.una, limit)
                break
            self.una = wqe.last_psn + 1
            self._finish(now)
        return True

    def _finish(self, now: int) -> None:
        """Complete the oldest request, and the local ones after it, successfully."""
        while True:
            wqe = self.queue.popleft()
            self.started -= 1
            self.responses_due -= wqe.verb.has_response
            if self.cursor:
                self.cursor -= 1
            self.complete(wqe, "SUCCESS", now)
            if not (self.started and self.queue[0].verb.local):
                return

    def _progressed(self, now: int) -> None:
        """Something was acknowledged for the first time: restart counters and timer (9.9.2.4.1)."""
        self.retries = self.qp.retry_cnt
        self.rnr_retries = self.qp.rnr_retry
        self.went_back_to = None
        self.rnr_deadline = None
        if self.psn < self.una:
            self.psn = self.una
        self._restart_timer(now)

    def _take_response(self, packet: Packet, psn: int, now: int) -> None:
        """Handle a response other than an ACK; only the next one of the oldest request is expected."""
        wqe = self.queue[0] if self.started else None
        operation = packet.op.operation
        if (
            wqe is None
            or not wqe.verb.has_response
            or (AETH in packet.op.headers and syndrome_kind(packet.syndrome) != ACK)
            or not _in_place(packet, wqe, psn)
        ):
            self._give_up("BAD_RESP_ERR", now)
            return
        if wqe.verb.operation == "READ":
            offset = (psn - wqe.first_psn) * self.qp.path_mtu
            expected = min(self.qp.path_mtu, wqe.length - offset)
            if operation != "READ_RESPONSE":
                self._give_up("BAD_RESP_ERR", now)
                return
            if len(packet.payload) != expected:  # 9.9.2: too much or too little is a length error
                self._give_up("LOC_LEN_ERR", now)
                return
            if expected and wqe.scatter is not None:
                if offset + expected > wqe.scatter.length:
                    self._give_up("LOC_LEN_ERR", now)
                    return
                wqe.scatter.write(offset, packet.payload)
        elif wqe.verb.reads_back:
            if operation != "ATOMIC_ACK" or wqe.scatter is None:
                self._give_up("BAD_RESP_ERR", now)
                return
            wqe.scatter.write(0, packet.original.to_bytes(ATOMIC_BYTES, HOST_ORDER))
        elif operation != "READ_RESPONSE" or packet.payload:  # FLUSH, ATOMIC WRITE: A19.4
            self._give_up("BAD_RESP_ERR", now)
            return
        self.una = psn + 1
        if psn == wqe.last_psn:
            self._finish(now)
        self._progressed(now)

    def _take_nak(self, packet: Packet, psn: int, now: int) -> None:
        counters = self.qp.device.counters
        value = syndrome_value(packet.syndrome)
        if syndrome_kind(packet.syndrome) == RNR_NAK:
            counters.count("rcvd_rnr_err")
            self._receiver_not_ready(value, psn, now)
        elif value == NAK_SEQUENCE_ERROR:
            counters.count("rcvd_seq_err")
            if self.rnr_deadline is None:
                self._send_again("nak", psn, now)
        else:
            self._give_up(_FATAL[value], now)

    def _take_credits(self, packet: Packet) -> None:
        """Note how many more messages the responder can receive (9.7.7.2)."""
        if not self.qp.flow_control or syndrome_kind(packet.syndrome) != ACK:
            return
        value = syndrome_value(packet.syndrome)
        if value == NO_CREDITS:
            self.lsn = None
        else:
            lsn = serial.unwrap(packet.msn, self.ssn) + CREDITS[value]
            self.lsn = lsn if self.lsn is None else max(lsn, self.lsn)
