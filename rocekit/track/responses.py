# cython: boundscheck=False
"""Responses and what they complete: ACKs, NAKs, READ responses, atomics' (IBA Vol. 1, 9.7.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.track.events import Event, happened
from rocekit.track.passes import ANSWERED, BEHIND, SECOND
from rocekit.track.repeats import NO_COPY_NS, troubles_of
from rocekit.track.transfers import ACKED, NAK_PREFIX, UNACKNOWLEDGED, Transfer
from rocekit.wire import (
    ACK,
    ATOMICS,
    ENDS,
    NAK_SEQUENCE_ERROR,
    OPERATION,
    OWN_RESPONSE,
    RNR_NAK,
    STARTS,
    SYNDROME_KIND,
    SYNDROME_VALUE,
)

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.assembly import Assembly
    from rocekit.track.ledger import Ledger
    from rocekit.track.outcomes import Outcomes
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent
    from rocekit.track.repeats import Troubles

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

_SYNDROMES: Final = 1 << 8
_IDS: Final = 1 << 16
#: Copies are told of so many NAKs, the last ones.
_NAKS_KNOWN: Final = 512


class Responses:
    """The responses to one side's requests.

    Attributes:
        again: the responses under way that were sent again, until one comes that was not.
        answered: the opening event of the last go-back that got a response.
        refused: the last NAK, until an ACK comes that names its packet or a later one.
        behind: the last NAK whose packet the capture has, so that it was lost behind it, or came late.
        last_psn, last_msn, last_id: of the last ACK; −1 before the first, and after a NAK. The identification
        is negative if the ACK before, which says something else, has the same: then it tells nothing.
        naks: the last NAKs, each one number of its PSN, syndrome and IPv4 identification.
    """

    def set_up(
        self, ledger: Ledger, progress: Progress, recent: Recent, outcomes: Outcomes, assembly: Assembly
    ) -> None:
        self.connection = ledger.connection
        self.ledger = ledger
        self.progress = progress
        self.recent = recent
        self.outcomes = outcomes
        self.assembly = assembly
        self.again: Event | None = None
        self.answered: Event | None = None
        self.refused: Event | None = None
        self.behind: Event | None = None
        self.last_psn = -1
        self.last_msn = -1
        self.last_id = 0
        self.naks: set[int] | None = None

    def take(self, r: Rows, i: int, p: int, operation: str) -> None:
        """Take the response at row ``i``, with PSN ``p``: an ACK or NAK, a READ response, an atomic's."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        troubles: Troubles | None = self.ledger.troubles
        if troubles is not None and troubles.repeats.unanswered is not None:
            opening = self.answered = troubles.repeats.unanswered
            troubles.repeats.answer(opening, p, frame)
            opening.answer_ns, opening.turnaround_ns = time_ns, self._turnaround()[0]
        if operation == "ACK":
            syndrome = r.syndrome[i]
            kind = SYNDROME_KIND[syndrome]
            self.progress.msn = r.msn[i]
            if r.msn[i] < 0:
                self._take_cut(p, time_ns, frame)
            elif kind == ACK:  # not the response of a READ or atomic, even with its PSN
                self.recent.answered(p, time_ns)
                self.note_ack(p, r.msn[i], r.ip_id[i], frame)
                self.recent.covered(p + 1, time_ns, self.progress.msn)
                self._acknowledge(p + 1, time_ns, frame)
            elif self._is_copied_nak(p, syndrome, r.ip_id[i]):
                self.connection.note_copied_ack(frame)
            else:
                self.last_psn = -1
                self.recent.covered(p, time_ns, self.progress.msn)
                self._acknowledge(p, time_ns, frame)
                self._refused(p, syndrome, kind, time_ns, frame)
            self.progress.msn = -1
        elif operation == "READ_RESPONSE":
            self.recent.covered(p, time_ns, -1)
            self._read_response(r, i, p)
        elif operation == "ATOMIC_ACK":
            self.recent.covered(p, time_ns, -1)
            if self.assembly.ahead and p >= self.progress.expected:
                self._answered_ahead(p, time_ns, frame)
            transfer = self.ledger.find(p)
            self._acknowledge(p, time_ns, frame)
            if transfer is not None and transfer.operation in ATOMICS:
                self._answered(transfer, r, i)
                transfer.original = r.lesser("original")[i]

    def _take_cut(self, p: int, time_ns: int, frame: int) -> None:
        """A response cut before its AETH: an ACK, NAK or RNR NAK. All acknowledge what is before ``p``."""
        progress = self.progress
        self.connection.cut_responses += 1
        self.last_psn = -1
        self.recent.covered(p, time_ns, -1)
        progress.by_cut = True
        self._acknowledge(p, time_ns, frame)
        progress.by_cut = False
        if p >= progress.acked and (p != progress.cut_psn or progress.cut_again):
            progress.cut_psn, progress.cut_ns, progress.cut_frame = p, time_ns, frame
            progress.cut_again = False

    def sent_again(self, p: int, seen: bool) -> None:
        """PSN ``p`` comes again: what the response meant whose AETH is cut.

        A requester goes back to its first PSN without an ACK.
        """
        if p <= self.progress.cut_psn:
            self.progress.cut_again = True
        elif seen:
            self._resolve_cut()

    def _resolve_cut(self) -> None:
        """The responder or requester is past a response whose AETH is cut: if nothing was sent again, an ACK.

        A NAK or RNR NAK makes its requester go back.
        """
        progress = self.progress
        p = progress.cut_psn
        progress.cut_psn = -1
        transfer = self.ledger.find(p)
        if p < progress.acked or progress.cut_again or transfer is None or transfer.lacks(p):
            return
        by_cut, progress.by_cut = progress.by_cut, True
        self._acknowledge(p + 1, progress.cut_ns, progress.cut_frame)
        progress.by_cut = by_cut

    def note_ack(self, p: int, msn: int, ip_id: int, frame: int) -> None:
        """Count an ACK that says what the one before said, and those that answer one go-back alike."""
        copied = False
        if p == self.last_psn and self.behind is not None and (ip_id == 0 or ip_id != self.last_id):
            with cython.gil:
                self._note_spare(p)
        if p == self.last_psn and msn == self.last_msn:
            self.connection.duplicate_acks += 1
            copied = ip_id != 0 and ip_id == self.last_id
            if copied:
                with cython.gil:
                    self.connection.note_copied_ack(frame)
            elif ip_id == -self.last_id:
                ip_id = -ip_id
        elif ip_id == self.last_id or ip_id == -self.last_id:
            ip_id = -ip_id
        self.last_psn, self.last_msn, self.last_id = p, msn, ip_id
        if self.answered is not None and not copied:
            with cython.gil:
                self._note_answer(p)
        if self.refused is not None:
            with cython.gil:
                self._note_answer_to_refused(p)

    def _is_copied_nak(self, p: int, syndrome: int, ip_id: int) -> bool:
        """Whether a NAK or RNR NAK came before, by its IPv4 identification: the network made a copy."""
        if ip_id == 0 or ip_id == self.last_id or ip_id == -self.last_id:
            return False
        nak = (p * _SYNDROMES + syndrome) * _IDS + ip_id
        if self.naks is None or len(self.naks) >= _NAKS_KNOWN:
            self.naks = set()
        if nak in self.naks:
            return True
        self.naks.add(nak)
        return False

    def _note_answer_to_refused(self, p: int) -> None:
        """Note where an ACK names just the packet that the last NAK did, in mid message."""
        nak = self.refused
        if nak is None or p < nak.psn:
            return
        self.refused = None
        transfer = self.ledger.find(p) if p == nak.psn and nak.copy == BEHIND else None
        if transfer is not None and transfer.operation not in OWN_RESPONSE and p < transfer.last_psn:
            nak.copy = ANSWERED

    def _note_spare(self, p: int) -> None:
        """An ACK says again how far the responder is: a packet came to it that had come before.

        A responder sends one for each duplicate (9.7.5.1.3). What a NAK made its requester send had not come
        before, so it is the original, late, or a copy that the network made. So is what comes behind packets
        that were sent once.
        """
        troubles: Troubles | None = self.ledger.troubles
        if troubles is None or self.behind is None:
            return
        if troubles.causes.run_cause == "nak" or p >= self.recent.once_from:
            if self.behind.copy == BEHIND and self.behind.psn <= p:
                self.behind.copy = ANSWERED
            self.behind = None

    def _note_answer(self, p: int) -> None:
        if self.answered is not None and p == self.answered.answer_psn:
            self.answered.same_answers += 1

    def _acknowledge(self, upto: int, time_ns: int, frame: int) -> None:
        if 0 <= self.progress.cut_psn < upto:
            self._resolve_cut()
        if upto <= self.progress.acked:
            return
        self.progress.acked = upto
        self.progress.acked_ns = time_ns
        self.progress.acked_frame = frame
        if self.progress.gapped:
            troubles_of(self.ledger, self.progress, self.recent).passes.acknowledged(upto)
        if self.assembly.ahead and self.progress.expected < upto:
            self.assembly.skip(upto)
        self.outcomes.settle()

    def _answered(self, transfer: Transfer, r: Rows, i: int) -> None:
        """The response of an atomic, FLUSH or ATOMIC WRITE."""
        if transfer.status == ACKED:
            self._response_twice(transfer, r, i, transfer.first_psn)
            return
        self.recent.responded(transfer.first_psn, r.ip_id[i])
        self.outcomes.drop(transfer)
        self.outcomes.acknowledge(transfer, r.time_ns[i], r.frame[i])
        if self.progress.acked <= transfer.last_psn:
            self._acknowledge(transfer.last_psn + 1, r.time_ns[i], r.frame[i])

    def _response_again(
        self, transfer: Transfer, r: Rows, i: int, p: int, *, first_sight: bool = False
    ) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        event = happened("response_repeat", time_ns, frame, p, p, 1)
        event.bytes, event.last_ns, event.first_sight = r.payload_length[i], time_ns, int(first_sight)
        before = self.recent.response_id(p)
        event.ip_id = r.ip_id[i]
        event.resent = int(before != 0 and event.ip_id not in (0, before))
        self.recent.responded(p, event.ip_id)
        transfer.retransmitted_packets += 1
        self.connection.retransmitted_packets += 1
        self.ledger.extend(transfer, time_ns, frame)
        last = self.again
        if last is not None and p == last.last_psn + 1 and transfer.events and transfer.events[-1] is last:
            last.last_psn, last.last_ns, last.last_frame = p, time_ns, frame
            last.count += 1
            last.bytes += event.bytes
            last.first_sight += event.first_sight
            last.resent += event.resent
        else:
            self.again = event
            transfer.note(event)
        self.ledger.sink.changed(transfer)

    def _read_response(self, r: Rows, i: int, p: int) -> None:
        opcode = r.opcode[i]
        if self.ledger.open_read is not None:
            self.assembly.size_by_response(self.ledger.open_read, r, i, p)
        if self.assembly.ahead and p >= self.progress.expected:
            self._answered_ahead(p, r.time_ns[i], r.frame[i])
        transfer = self.ledger.find(p) or self._orphan_before(p, opcode)
        if transfer is None or transfer.operation not in OWN_RESPONSE:
            if transfer is None and p >= self.progress.expected and not self.assembly.ahead:
                transfer = self._orphan(r, i, p)
            else:
                return
        time_ns, frame = r.time_ns[i], r.frame[i]
        self._acknowledge(transfer.first_psn, time_ns, frame)
        if not transfer.is_read:
            self._answered(transfer, r, i)
            return
        if ENDS[opcode]:
            if r.payload_length[i] > self.connection.largest_payload:
                self.connection.largest_payload = r.payload_length[i]
        elif r.payload_length[i] != self.connection.path_mtu:
            self.connection.observe_mtu(r.payload_length[i])
        expected = transfer.response_next
        if p < expected and p not in transfer.responses_missing:
            self._response_twice(transfer, r, i, p)
            return
        self.recent.answered(p, time_ns)
        self.recent.responded(p, r.ip_id[i])
        self.ledger.extend(transfer, time_ns, frame)
        if p > expected:
            transfer.miss_responses(expected, p - 1)
            transfer.note(happened("response_hole", time_ns, frame, expected, p - 1, p - expected))
            transfer.response_next = p + 1
            self.again = None
        elif p == expected:
            transfer.response_next = p + 1
            self.again = None
        else:
            transfer.responses_missing.remove(p)
            if self._is_late(transfer, r, i, p):
                late = happened("response_late", time_ns, frame, p, p, 1)
                late.last_ns, late.ip_id = time_ns, r.ip_id[i]
                self.ledger.give(transfer, late)
            elif transfer.met("repeat"):
                self._response_again(transfer, r, i, p, first_sight=True)
            else:
                self.again = None
        if not transfer.started:
            transfer.packets += 1
            transfer.bytes += r.payload_length[i]
            transfer.last_psn = max(transfer.last_psn, p)
            self.progress.expected = max(self.progress.expected, p + 1)
            self.progress.high = max(self.progress.high, self.progress.expected)
            transfer.ended = ENDS[opcode]
        if ENDS[opcode] and transfer.started and transfer.announced < 0 and p == transfer.last_psn:
            transfer.bytes = (p - transfer.first_psn) * (self.connection.path_mtu or 0) + r.payload_length[i]
        elif ENDS[opcode] and transfer.started and p == transfer.last_psn:
            before = p - transfer.first_psn  # full responses
            mtu = self.connection.path_mtu or 0
            if mtu or not before:
                transfer.bytes = before * mtu + r.payload_length[i]
        if transfer.response_next > transfer.last_psn and not transfer.responses_missing and transfer.ended:
            self.outcomes.drop(transfer)
            self.outcomes.acknowledge(transfer, time_ns, frame)
            self._acknowledge(transfer.last_psn + 1, time_ns, frame)

    def _is_late(self, transfer: Transfer, r: Rows, i: int, p: int) -> bool:
        """Whether a response that fills a hole was overtaken, and not sent because the READ came again."""
        again = -1
        anew = not transfer.started  # the capture may lack the READ that came again
        for event in transfer.events:
            if event.kind == "repeat":
                again = event.psn
            elif event.kind == "response_repeat":
                anew = True
            elif event.kind == "response_hole" and event.psn <= p <= event.last_psn:
                # What was sent after the response behind the hole was not overtaken by it.
                behind = self.recent.response_id(event.last_psn + 1)
                if behind:
                    anew = anew or self.recent.comes_after(r.ip_id[i], behind)
                elif r.ip_id[i]:  # so many responses came since that its identification is not remembered
                    anew = anew or not self.recent.is_late_response(r.ip_id[i])
        if again < 0 or again > p:
            return not anew
        # The READ that was sent again has its first response here. (That of rdma_rxe is a middle one.)
        if again == p and p > transfer.first_psn and STARTS[r.opcode[i]]:
            return False
        if not self.recent.is_late_response(r.ip_id[i]):
            return False
        # The READ's second responses overtake each other too.
        return again == p or self.recent.comes_after(self.recent.response_id(again), r.ip_id[i])

    def _response_twice(self, transfer: Transfer, r: Rows, i: int, p: int) -> None:
        """A response that came before: a copy, or sent again."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        is_late = transfer.ack_ns > 0 and time_ns - transfer.ack_ns >= NO_COPY_NS
        if not is_late and self._response_duplicate(r, i, p):
            copy = happened("duplicate", time_ns, frame, p, p, 1)
            copy.last_ns, copy.copied = time_ns, 1
            self.ledger.give(transfer, copy)
        else:
            self._response_again(transfer, r, i, p)

    def _response_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether this is a response that came before and was sent once."""
        ip_id = r.ip_id[i]
        return ip_id != 0 and self.recent.is_the_response(p, ip_id)

    def _answered_ahead(self, p: int, time_ns: int, frame: int) -> None:
        """A response to a READ or atomic behind a hole: all before it arrived, and the capture missed it.

        A responder executes requests in order (9.5), so a response acknowledges what is before it.
        """
        asked = self.assembly.ahead_before(p + 1)
        if asked >= 0 and OPERATION[self.assembly.opcode_ahead(asked)] in OWN_RESPONSE:
            self._acknowledge(asked, time_ns, frame)

    def _orphan_before(self, p: int, opcode: int) -> Transfer | None:
        """The READ without a request that this response continues."""
        last = self.ledger.window[-1] if self.ledger.window else None
        if last is None or last.started or last.ended or not last.is_read or STARTS[opcode]:
            return None
        return last if p > last.last_psn else None

    def _orphan(self, r: Rows, i: int, p: int) -> Transfer:
        """A READ whose request is not in the capture."""
        transfer = self.outcomes.begin(r, i, p, "READ")
        transfer.started = False
        transfer.key = transfer.announced = -1
        transfer.response_next = p
        self.progress.expected = self.progress.high = p
        return transfer

    def count_refusal(self, r: Rows, i: int, operation: str) -> None:
        """Count a NAK or RNR NAK for a request that is not in the capture, nor any near it."""
        if operation != "ACK" or r.msn[i] < 0:  # the latter: cut before its AETH
            return
        kind = SYNDROME_KIND[r.syndrome[i]]
        if kind == RNR_NAK:
            self.connection.rnr_naks += 1
        elif kind != ACK:
            self.connection.naks += 1

    def _refused(self, p: int, syndrome: int, kind: int, time_ns: int, frame: int) -> None:
        """A NAK or RNR NAK for PSN ``p``."""
        name = "rnr_nak" if kind == RNR_NAK else "nak"
        event = happened(name, time_ns, frame, p, p, 1)
        event.last_ns, event.syndrome = time_ns, syndrome
        if name == "rnr_nak":
            self.connection.rnr_naks += 1
        else:
            self.connection.naks += 1
        value = SYNDROME_VALUE[syndrome]
        if kind != RNR_NAK and value == NAK_SEQUENCE_ERROR:
            self._judge(event)
        self.ledger.attribute(event)
        if kind == RNR_NAK or value == NAK_SEQUENCE_ERROR:
            troubles_of(self.ledger, self.progress, self.recent).causes.refuse(event)
            return
        transfer = self.ledger.find(p)
        if transfer is not None and transfer.status == UNACKNOWLEDGED:
            self.outcomes.drop(transfer)
            transfer.status = NAK_PREFIX + wire.NAK_CODES.get(value, f"reserved_{value}")
            transfer.ack_frame = frame
            self.ledger.extend(transfer, transfer.last_ns, frame)
            transfer.last_frame = frame
            self.ledger.sink.ended(transfer)

    def _turnaround(self) -> tuple[int, int]:
        """The shortest time from a request to its response, of all connections of these hosts; 0: unknown.

        And of how many such times it is the shortest.
        """
        ips, side, recent = self.connection.ips, self.ledger.side, self.recent
        return self.ledger.sink.shortest((ips[side], ips[1 - side]), recent.turnaround_ns, recent.timed)

    def _judge(self, nak: Event) -> None:
        """Note where the copy was lost that the NAK misses."""
        p = nak.psn
        if not self.progress.begin <= p < self.progress.high:
            return
        sent_ns = self.recent.sent_ns(p) if self.recent.sent_psn(p) == p else 0
        troubles = troubles_of(self.ledger, self.progress, self.recent)
        passes = troubles.passes
        self.recent.drew(p, self.progress.high, nak.time_ns)
        shortest_ns, timed = self._turnaround()
        nak.copy, nak.of_pass = passes.judge(
            p, nak.time_ns, troubles.repeats.reached(), sent_ns, shortest_ns, timed
        )
        passes.note(nak)
        if (
            nak.copy == BEHIND
            and passes.before is not None
            and nak.of_pass is passes.current
            and not passes.is_selective()
            and p == troubles.repeats.after(passes.current.first)
        ):
            nak.copy = SECOND
        self.refused = nak
        if nak.copy == BEHIND:
            self.behind = nak
