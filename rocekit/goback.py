"""Why a requester sends again: a refusal it obeys, an answer that passes one over, or a timer that runs out.

A capture shows that a PSN comes again, not why. The reason follows from what the requester was told
(IBA Vol. 1, 9.7.5.2) and from its timer (9.7.6.1.3); a copy that neither explains was made by the network.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.ledger import NEEDS_ANSWER, Ledger
from rocekit.transfers import Event, Transfer
from rocekit.wire import OPERATION

if TYPE_CHECKING:
    from rocekit.connections import Connection
    from rocekit.ledger import Sink
    from rocekit.rows import Rows

#: Sent packets remembered: when, and with which IP identification.
RING: Final = 64
_SLOT: Final = RING - 1
NEVER_NS: Final = 1 << 62
#: A requester that learns of a lost response asks again sooner than this, where its timeout is not known.
IMPLIED_NS: Final = 1_000_000
#: Without IP identification, the same PSN again this soon, and unprovoked, was doubled by the network.
DUPLICATE_NS: Final = 50_000


class GoBack(Ledger):
    """A ledger that knows why its requester goes back.

    Attributes:
        trigger: the last refusal (NAK or RNR NAK) that the requester has not reacted to.
        run: the go-back under way; unanswered: its opening event until an answer comes.
        tentative: a late packet that may turn out to be the first of a go-back.
        last_answer, last_rx_ns: the last answer's PSN (one more for an acknowledgement, which answers no READ
            or atomic) and time; last_tx_ns: the last request's time.
        shortest_timeout_ns: the shortest wait seen that only a timer explains; 0 before the first.
    """

    def __init__(self, connection: Connection, side: int, sink: Sink, *, reliable: bool) -> None:
        super().__init__(connection, side, sink, reliable=reliable)
        self.last_tx_ns = 0
        self.last_rx_ns = 0
        self.last_answer = -1
        self.shortest_timeout_ns = 0
        self.trigger: Event | None = None
        self.run: Event | None = None
        self.tentative: Event | None = None
        self.unanswered: Event | None = None
        self.runs = 0
        self._ring_psn = array("q", [-1]) * RING
        self._ring_id = array("q", [0]) * RING
        self._ring_ns = array("q", [0]) * RING

    def _remember(self, r: Rows, i: int, p: int) -> None:
        slot = p & _SLOT
        self._ring_psn[slot] = p
        self._ring_id[slot] = r.ip_id[i]
        self._ring_ns[slot] = self.last_tx_ns = r.time_ns[i]

    def _is_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether the network, and not the sender, doubled this datagram."""
        if not self.reliable:
            return True
        slot = p & _SLOT
        if self._ring_psn[slot] != p:
            return False
        ip_id = r.ip_id[i]
        if ip_id:
            return ip_id == self._ring_id[slot]
        if self.trigger is not None or self.run is not None:
            return False
        return r.time_ns[i] - self._ring_ns[slot] < DUPLICATE_NS and not self._was_answered(p)

    def _was_answered(self, p: int) -> bool:
        """Whether ``p`` is a READ or atomic that was answered: then its copy is no accident."""
        transfer = self._find(p)
        if transfer is None or transfer.operation not in NEEDS_ANSWER:
            return False
        return self.last_answer >= p and self.last_rx_ns > transfer.request_end_ns

    def _passed_over(self, p: int) -> bool:
        """Whether an answer to a later PSN than ``p``'s READ or atomic came after it was asked."""
        transfer = self._find(p)
        if transfer is None or transfer.operation not in NEEDS_ANSWER:
            return False
        return self.last_answer > p and self.last_rx_ns > transfer.request_end_ns

    def _repeated(self, r: Rows, i: int, p: int, seen: bool, transfer: Transfer | None) -> None:
        """An RC request below ``high``: the requester went back, or the network was late."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        trigger = self.trigger
        run = self.run
        asks_part = transfer is not None and p > transfer.first_psn and OPERATION[r.opcode[i]] == "READ"
        if run is not None and p > run.last_psn and not asks_part and (trigger is None or p != trigger.psn):
            pass  # what was under way when a refusal came goes on until the requester obeys it
        elif trigger is not None and trigger.psn <= p:
            cause = self._cause_after(trigger, p, time_ns)
            run = self._new_run(cause, time_ns - (self.last_tx_ns if cause == "timeout" else trigger.time_ns))
        elif not seen:
            self.tentative = self._attribute(
                Event(
                    "late", time_ns, frame, p, p, last_ns=time_ns, last_frame=frame, bytes=r.payload_length[i]
                )
            )
            return
        else:
            run = self._new_run(self._cause_unprovoked(p, time_ns), time_ns - self.last_tx_ns)
            late = self.tentative
            if late is not None and late.psn == p - 1:
                self._reclassify(late, run)
        self.tentative = None
        self.run = run
        self._add_repeat(run, r, i, p, seen)

    def _new_run(self, cause: str, waited_ns: int) -> Event:
        self.runs += 1
        self.trigger = None  # obeyed, or never seen by the requester
        return Event("repeat", 0, 0, 0, -1, 0, cause=cause, waited_ns=waited_ns, run=self.runs)

    def _reclassify(self, late: Event, run: Event) -> None:
        """What looked like a packet out of order was the first of a repeat."""
        late.kind, late.cause, late.run, late.first_sight = "repeat", run.cause, run.run, 1
        late.waited_ns = run.waited_ns
        late.opens = True
        late.sent_psn = self.high - 1
        self.unanswered = late
        if late not in self.pending:
            transfer = self._find(late.psn)
            if transfer is not None:
                transfer.retransmitted_packets += 1
                transfer.timeouts += run.cause == "timeout"
                self.connection.retransmitted_packets += 1
        run.last_psn = late.psn

    def _add_repeat(self, run: Event, r: Rows, i: int, p: int, seen: bool) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        begun = run.last_psn >= 0
        run.last_psn = p
        event = self._attribute(
            Event(
                "repeat",
                time_ns,
                frame,
                p,
                p,
                1,
                r.payload_length[i],
                time_ns,
                frame,
                run.cause,
                None,
                run.waited_ns,
                0 if seen else 1,
                p < self.acked,
                run.run,
                not begun,
            )
        )
        if not begun:
            event.sent_psn = self.high - 1
            event.mid_message = self.building is not None and self.building.first_psn <= self.acked
            self.unanswered = event

    def _answer(self, opening: Event, p: int, frame: int) -> None:
        """The first answer to a go-back tells what the responder already had (9.7.5.1.2)."""
        opening.answer_psn, opening.answer_frame = p, frame
        opening.reached_psn = opening.last_psn if self.run is None else self.run.last_psn
        self.unanswered = None

    def _cause_after(self, trigger: Event, p: int, time_ns: int) -> str:
        """Why the requester goes back after a refusal: because of it, or because it never saw it."""
        timed_out = self._timed_out(p, time_ns, trigger.time_ns)
        if trigger.kind == "nak":
            return "timeout" if timed_out else "nak"
        # While an RNR wait runs, the ACK timer does not (9.7.5.2.8). Where both fit, the nearer is meant,
        # and the wait rather than the timer, for a busy sender is late with both.
        asked_ns = wire.RNR_TIMER_US[wire.syndrome_value(trigger.syndrome or 0)] * 1000
        late_ns = time_ns - trigger.time_ns - asked_ns
        off_ns = abs(time_ns - self._sent_ns(p) - (self._timeout_ns() or 0))
        return "timeout" if timed_out and late_ns * 16 > asked_ns and off_ns * 4 < late_ns else "rnr"

    def _cause_unprovoked(self, p: int, time_ns: int) -> str:
        """Why the requester goes back though nothing in the capture asked it to.

        An answer to a later PSN tells it that the READ response or atomic's answer before is lost: an implied
        NAK (9.7.5.1.1). Otherwise its timer ran out.
        """
        if self._passed_over(p):
            timed_out = self._timed_out(p, time_ns, self.last_rx_ns)
            if timed_out is None:
                timed_out = time_ns - max(self.last_tx_ns, self.last_rx_ns) > IMPLIED_NS
            if not timed_out:
                return "implied_nak"
        quiet = time_ns - self._sent_ns(p)
        if not self.shortest_timeout_ns or quiet < self.shortest_timeout_ns:
            self.shortest_timeout_ns = quiet
        return "timeout"

    def _sent_ns(self, p: int) -> int:
        """When PSN ``p`` was last sent, as far back as is remembered."""
        slot = p & _SLOT
        return self._ring_ns[slot] if self._ring_psn[slot] == p else self.last_tx_ns

    def _timeout_ns(self) -> int | None:
        """The requester's local ACK timeout: negotiated, else the shortest one seen; None when not known."""
        code = self.connection.negotiated[self.side].ack_timeout
        if code is None:
            return self.shortest_timeout_ns or None
        timeout_us = wire.local_ack_timeout_us(code)
        return NEVER_NS if timeout_us is None else int(timeout_us * 1000)

    def _timed_out(self, p: int, time_ns: int, told_ns: int) -> bool | None:
        """Whether the timer ran out (9.7.6.1.3), and not what came at ``told_ns`` made the requester go back.

        The timer runs from when it sent ``p`` or from a later acknowledgement; a go-back right behind an
        answer is the answer's doing all the same. None when the timeout is not known.
        """
        timeout_ns = self._timeout_ns()
        if timeout_ns is None:
            return None
        return (time_ns - self._sent_ns(p)) * 100 >= timeout_ns * 95 and (time_ns - told_ns) * 2 >= timeout_ns
