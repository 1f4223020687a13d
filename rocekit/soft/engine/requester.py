"""The requester of an RC queue pair: it sends requests, sends them again, and completes them (9.7, 9.9.2).

PSNs are unwrapped. The send queue holds requests in order: first those started (their PSNs are fixed), then
those waiting. ``una`` is the oldest unacknowledged PSN; of a READ, the first whose response is missing. A
cursor moves through the started requests; to send again, it is set back (go-back-N, 9.7.5.1.1).
"""

from __future__ import annotations

from typing import Final

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.memory import HOST_ORDER, LocalProtectionError
from rocekit.soft.engine.packet import Packet
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.segment import SendWqe, request
from rocekit.soft.engine.send_queue import SendQueue
from rocekit.soft.engine.windows import BindError
from rocekit.wire import (
    ACK,
    AETH,
    ATOMIC_BYTES,
    CREDITS,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_REMOTE_OPERATIONAL,
    NAK_SEQUENCE_ERROR,
    NO_CREDITS,
    RETRY_INFINITE,
    RNR_NAK,
    RNR_TIMER_US,
    local_ack_timeout_ns,
    syndrome_kind,
    syndrome_value,
)
from rocekit.wire import psn as serial

#: How many packets may be unacknowledged, and after how many the acknowledge request bit is set; as rxe.
WINDOW_PACKETS: Final = 128
ACKREQ_PACKETS: Final = 64

_FATAL: Final = {
    NAK_INVALID_REQUEST: "REM_INV_REQ_ERR",
    NAK_REMOTE_ACCESS: "REM_ACCESS_ERR",
    NAK_REMOTE_OPERATIONAL: "REM_OP_ERR",
}


class Requester(SendQueue):
    """The sending half of an RC queue pair."""

    def __init__(self, qp: QueuePair) -> None:
        super().__init__(qp)
        self.begin(0)

    def begin(self, sq_psn: int) -> None:
        """Start anew: RESET, or RTR to RTS with the first PSN."""
        self.queue.clear()
        self.started = 0  # how many requests of the queue have their PSNs
        self.cursor = 0  # index of the request that the next packet belongs to
        self.psn = sq_psn  # of the next packet
        self.una = sq_psn
        self.next_psn = sq_psn  # the first that belongs to no request
        self.high = sq_psn  # the first that no sent packet covers
        self.responses_due = 0  # READs and atomics outstanding (initiator depth)
        self.ssn = 0
        self.lsn: int | None = None  # the last message that may be sent; None: no credits are used
        self.since_ackreq = 0
        self.retries = self.qp.retry_cnt
        self.rnr_retries = self.qp.rnr_retry
        self.ack_deadline: int | None = None
        self.rnr_deadline: int | None = None
        self.went_back_to: int | None = None  # for a NAK or a missing response at this PSN
        self.cause: str | None = None  # of the last go-back
        self.cause_counted = True
        # Cause of the go-back before, and the PSN that it would have sent next.
        self.before: tuple[str | None, int] = (None, self.high)

    # -- sending

    def next_packet(self, now: int) -> bytes | None:
        """The transport bytes of the next packet, or None when nothing may be sent now."""
        if self.rnr_deadline is not None:
            return None
        self._do_local(now)
        wqe = self._current()
        if wqe is None:
            if self.cursor >= len(self.queue):
                return None
            wqe = self.queue[self.cursor]
            if not self._start(wqe, now):
                return None
        qp = self.qp
        psn = self.psn
        if psn - self.una >= WINDOW_PACKETS:
            return None
        limited = self.lsn is not None and wqe.takes_receive and wqe.ssn > self.lsn
        if limited and psn > self.una:
            return None  # without credit one packet, and then wait (9.7.7.2.5)
        covers = wqe.last_psn + 1 - psn if wqe.verb.has_response else 1
        last = psn + covers > wqe.last_psn
        self.since_ackreq += 1
        ackreq = limited or last or self.since_ackreq >= ACKREQ_PACKETS
        if ackreq:
            self.since_ackreq = 0
        data = request(wqe, psn, qp.path_mtu, qp.dest_qpn, ackreq)
        if qp.request_flow is not None and wqe.record is not None:
            self._count_cause(wqe, psn)
            qp.request_flow.sent(wqe.record, psn, covers, now, self.cause)
        self.psn = psn + covers
        if self.psn > self.high:
            self.high = self.psn
        if last:
            self.cursor += 1
        if self.ack_deadline is None:
            self._restart_timer(now)
        return data

    def _do_local(self, now: int) -> None:
        """Do the requests at the cursor that need no packet."""
        while self.cursor < len(self.queue) and self.queue[self.cursor].verb.local:
            wqe = self.queue[self.cursor]
            if not wqe.started:
                if self.qp.state != qp_state.RTS or (wqe.wr.fenced and self.responses_due):
                    return
                try:
                    self.do_local(wqe.wr)
                except BindError:
                    if self.started == 0:
                        self._give_up("MW_BIND_ERR", now)
                    return
                wqe.first_psn, wqe.last_psn, wqe.started = self.next_psn, self.next_psn - 1, True
                self.started += 1
            self.cursor += 1
            if self.started == 1:
                self._finish(now)

    def _current(self) -> SendWqe | None:
        """The started request at the cursor."""
        return self.queue[self.cursor] if self.cursor < self.started else None

    def _start(self, wqe: SendWqe, now: int) -> bool:
        """Give a waiting request its PSNs, if it may start."""
        qp = self.qp
        if qp.state != qp_state.RTS:  # SQD finishes what is started and starts nothing (10.3.1.5)
            return False
        if wqe.wr.fenced and self.responses_due:  # 10.8.3.3
            return False
        if wqe.verb.has_response and self.responses_due >= qp.max_rd_atomic:
            return False
        if self.next_psn - self.una >= WINDOW_PACKETS:
            return False
        try:
            self.prepare(wqe)
        except LocalProtectionError:
            # Completions come in order: the requests before it end first.
            if self.started == 0:
                self._give_up("LOC_PROT_ERR", now)
            return False
        wqe.first_psn = self.next_psn
        wqe.last_psn = self.next_psn + wqe.psns - 1
        self.next_psn += wqe.psns
        self.ssn += 1
        wqe.ssn = self.ssn
        wqe.started = True
        self.started += 1
        self.responses_due += wqe.verb.has_response
        self.psn = wqe.first_psn
        if qp.request_flow is not None:
            wqe.record = qp.record_transfer(wqe)
        return True

    def _count_cause(self, wqe: SendWqe, psn: int) -> None:
        """Count the cause of a go-back when its first packet is sent again; without one it is not counted."""
        record = wqe.record
        if self.cause_counted or record is None:
            return
        self.cause_counted = True
        if psn >= self.high:
            return
        cause_before, reached = self.before
        if psn >= reached and self.cause in ("nak", "implied"):
            self.cause = cause_before  # the go-back before would have sent it again anyway
            return
        if self.cause == "timeout":
            record.timeouts += 1
        elif self.cause == "nak":
            record.naks += 1
        elif self.cause == "rnr":
            record.rnr_naks += 1
        else:
            record.implied += 1

    # -- receiving

    def receive(self, packet: Packet, now: int) -> None:
        """Handle a response: ACK, NAK, READ response or result of an atomic."""
        counters = self.qp.device.counters
        psn = serial.unwrap(packet.psn, self.una)
        if psn >= self.high:
            counters.count("drop_ghost_response")
            return
        has_aeth = AETH in packet.op.headers
        if psn < self.una:
            # An old ACK may still bring new credits.
            if has_aeth and psn == self.una - 1:
                self._take_credits(packet)
            counters.count("drop_duplicate_response")
            return
        before = self.una
        if packet.op.operation == "ACK" and syndrome_kind(packet.syndrome) == ACK:
            clear = self._advance(psn + 1, now)
        else:
            clear = self._advance(psn, now)
        if has_aeth:
            self._take_credits(packet)
        if self.una > before:
            self._progressed(now)
        if not clear:
            # A response to a later request shows that one to this request was lost (9.7.5.2.4).
            counters.count("implied_naks")
            self._send_again("implied", self.una, now)
        elif packet.op.operation != "ACK":
            self._take_response(packet, psn, now)
        elif syndrome_kind(packet.syndrome) != ACK:
            self._take_nak(packet, psn, now)
        self._drained()

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
        if wqe is None or not wqe.verb.has_response:
            self._give_up("BAD_RESP_ERR", now)
            return
        operation = packet.op.operation
        if wqe.verb.operation == "READ":
            offset = (psn - wqe.first_psn) * self.qp.path_mtu
            expected = min(self.qp.path_mtu, wqe.length - offset)
            if operation != "READ_RESPONSE" or len(packet.payload) != expected:
                self._give_up("BAD_RESP_ERR", now)
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
        elif value in _FATAL:
            self._give_up(_FATAL[value], now)
        else:
            counters.count("drop_malformed")

    def _receiver_not_ready(self, code: int, psn: int, now: int) -> None:
        """Wait for the time in the RNR NAK, then send again from its PSN (9.7.5.2.8)."""
        if self.rnr_deadline is not None:
            return
        if self.rnr_retries == 0:
            self.qp.device.counters.count("retry_rnr_exceeded_err")
            self._give_up("RNR_RETRY_EXC_ERR", now)
            return
        if self.qp.rnr_retry != RETRY_INFINITE:
            self.rnr_retries -= 1
        self._go_back(psn, "rnr")
        self.rnr_deadline = now + RNR_TIMER_US[code] * 1000
        self.ack_deadline = None

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

    # -- sending again

    def _send_again(self, cause: str, psn: int, now: int) -> None:
        """Go back to ``psn``, unless that was done already; give up if it was done too often."""
        if cause != "timeout" and self.went_back_to == psn:
            return
        if self.retries == 0:
            self.qp.device.counters.count("retry_exceeded_err")
            self._give_up("RETRY_EXC_ERR", now)
            return
        self.retries -= 1
        self.qp.device.counters.count("completer_retry_err")
        self.went_back_to = psn
        self._go_back(psn, cause)
        self._restart_timer(now)

    def _go_back(self, psn: int, cause: str) -> None:
        if self.cause_counted:
            self.before = self.cause, self.psn
        self.psn = psn
        self.cursor = 0
        while self.cursor < self.started and self.queue[self.cursor].last_psn < psn:
            self.cursor += 1
        self.cause = cause
        self.cause_counted = False
        self.since_ackreq = 0

    def _give_up(self, status: str, now: int) -> None:
        """The oldest request fails, and with it the queue pair (10.3.1.7)."""
        if self.queue:
            self.complete(self.queue.popleft(), status, now)
        self.qp.fail(now)

    def flush(self, now: int) -> None:
        super().flush(now)
        self.started = self.cursor = self.responses_due = 0
        self.ack_deadline = self.rnr_deadline = None

    # -- time

    def _restart_timer(self, now: int) -> None:
        timeout = local_ack_timeout_ns(self.qp.timeout)
        if timeout is None or self.una >= self.high:
            self.ack_deadline = None
        else:
            self.ack_deadline = now + timeout

    def deadline(self) -> int | None:
        """When its timer expires, or None."""
        if self.rnr_deadline is not None:
            return self.rnr_deadline
        return self.ack_deadline

    def handle_timer(self, now: int) -> None:
        if self.rnr_deadline is not None:
            if now >= self.rnr_deadline:
                self.rnr_deadline = None
        elif self.ack_deadline is not None and now >= self.ack_deadline:
            self.ack_deadline = None
            self.went_back_to = None
            self.qp.device.counters.count("timeouts")
            self._send_again("timeout", self.una, now)

    def idle(self) -> bool:
        """Whether all started requests are over."""
        return not self.started

    def _drained(self) -> None:
        if not self.started and self.qp.state == qp_state.SQD:
            self.qp.drained()
