"""How the requester of an RC queue pair sends again, and when it gives up (9.7.5.2, 9.7.6, 9.9.2).

PSNs are unwrapped. The send queue holds requests in order: first those started (their PSNs are fixed), then
those waiting. ``una`` is the oldest unacknowledged PSN; of a READ, the first whose response is missing. A
cursor moves through the started requests; to send again, it is set back (go-back-N, 9.7.5.1.1).
"""

from __future__ import annotations

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.send_queue import SendQueue
from rocekit.wire import RETRY_INFINITE, RNR_TIMER_US, local_ack_timeout_ns


class RetryingQueue(SendQueue):
    """The started requests of an RC queue pair, what of them was acknowledged, and its timers."""

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
        self.asked = sq_psn  # the first that no sent packet asked an acknowledgement for
        self.unsent = False  # whether own packets may wait to be sent
        self.ack_deadline: int | None = None
        self.rnr_deadline: int | None = None
        self.went_back_to: int | None = None  # for a NAK or a missing response at this PSN
        self.cause: str | None = None  # of the last go-back
        self.cause_counted = True
        # Cause of the go-back before, and the PSN that it would have sent next.
        self.before: tuple[str | None, int] = (None, self.high)

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

    # -- time

    def _restart_timer(self, now: int) -> None:
        """Begin the local ACK timeout, if an acknowledgement is awaited that was asked for (9.7.6.1.3)."""
        timeout = local_ack_timeout_ns(self.qp.timeout)
        if timeout is None or self.una >= self.asked:
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
            if self.unsent:
                return  # the peer cannot have everything yet: the time begins when the last is sent
            self.went_back_to = None
            self.qp.device.counters.count("timeouts")
            self._send_again("timeout", self.una, now)

    def idle(self) -> bool:
        """Whether all started requests are over."""
        return not self.started

    def _drained(self) -> None:
        if not self.started and self.qp.state == qp_state.SQD:
            self.qp.drained()
