"""The requester of an RC queue pair: it sends requests (9.7, 9.9.2).

What comes back is in :mod:`.acknowledged`, and how it sends again in :mod:`.retries`.
"""

from __future__ import annotations

from typing import Final

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.acknowledged import AcknowledgedQueue
from rocekit.soft.engine.memory import LocalProtectionError
from rocekit.soft.engine.segment import SendWqe, request
from rocekit.soft.engine.windows import BindError

#: How many packets may be unacknowledged, and after how many the acknowledge request bit is set; as rxe.
WINDOW_PACKETS: Final = 128
ACKREQ_PACKETS: Final = 64


class Requester(AcknowledgedQueue):
    """The sending half of an RC queue pair."""

    def next_packet(self, now: int) -> bytes | None:
        """The transport bytes of the next packet, or None when nothing may be sent now."""
        data = self._next(now)
        self.unsent = data is not None
        if data is None and self.ack_deadline is None and self.rnr_deadline is None:
            self._restart_timer(now)
        return data

    def _next(self, now: int) -> bytes | None:
        if self.rnr_deadline is not None:
            return None
        self._do_local(now)
        wqe = self._current()
        if wqe is None:
            if self.cursor >= len(self.queue):
                return None
            wqe = self.queue[self.cursor]
            if wqe.verb.local or not self._start(wqe, now):  # a local one waits for those before it
                return None
        qp = self.qp
        psn = self.psn
        if psn - self.una >= WINDOW_PACKETS:
            return None
        limited = self.lsn is not None and wqe.takes_receive and wqe.ssn > self.lsn
        if limited and psn > self.una and self.asked > self.una:
            return None  # without credit one packet that asks for an ACK, and then wait (9.7.7.2.5)
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
        if wqe.verb.has_response:
            wqe.asked_from.add(psn)
        if (ackreq or wqe.verb.has_response) and self.psn > self.asked:
            self.asked = self.psn
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
        if psn >= reached and self.cause in ("nak", "implied_nak"):
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
