"""The tracking state machine: one side's requests and what answered them (IBA Vol. 1, 9.7.5 and 9.7.6).

In layers, each of which knows the one before: the ``ledger`` of transfers by PSN, the ``reasons`` to
``goback``, the ``assembly`` of messages, and here the answers: acknowledgements, refusals, responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit import wire
from rocekit.track.assembly import PROBATION, RESYNC, Assembly
from rocekit.track.ledger import ATOMICS, NEEDS_ANSWER, OUTSTANDING
from rocekit.track.read_size import mtu_for
from rocekit.track.transfers import ACKED, INCOMPLETE, NAK_PREFIX, UNACKNOWLEDGED, Event, Transfer
from rocekit.wire import ACK, ENDS, OPERATION, STARTS, SYNDROME_KIND
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Sink


class Requests(Assembly):
    """The requests of one side of a connection, and their answers.

    Args:
        connection: whose side it is.
        side: 0 for ``a``, 1 for ``b``.
        sink: takes the transfers as they begin and end.
        reliable: False for UC, which nobody acknowledges.

    Attributes:
        awaiting: READs and atomics whose PSNs are acknowledged, but whose answers the capture has not shown.
        dead: whether a fatal NAK ended the QP.
        again: the responses under way that were sent again, until one comes that was not.
    """

    def _set_up(self, connection: Connection, side: int, sink: Sink, reliable: bool) -> None:
        Assembly._set_up(self, connection, side, sink, reliable)
        self.awaiting: list[Transfer] = []
        self.dead = False
        self.again: Event | None = None

    def respond(self, r: Rows, i: int) -> None:
        """Take the response at row ``i`` (acknowledgement, READ response, atomic's answer)."""
        operation = OPERATION[r.opcode[i]]
        if not self.started and not self._started_by(r, i, operation):
            return
        expected = self.expected
        p = expected + ((r.psn[i] - expected + HALF) & MASK) - HALF
        if abs(p - self.high) > RESYNC:
            return
        time_ns, frame = r.time_ns[i], r.frame[i]
        if self.unanswered is not None:
            self._answer(self.unanswered, p, frame)
        if operation == "ACK":
            syndrome = r.syndrome[i]
            kind = SYNDROME_KIND[syndrome]
            self.ack_msn = r.msn[i]
            if kind == ACK:  # not the answer of a READ or atomic, even where it names its PSN
                self._told(p + 1, time_ns, self.ack_msn)
                self._acknowledge(p + 1, time_ns, frame)
            else:
                self._told(p, time_ns, self.ack_msn)
                self._acknowledge(p, time_ns, frame)
                self._refused(p, syndrome, kind, time_ns, frame)
            self.ack_msn = -1
        elif operation == "READ_RESPONSE":
            self._told(p, time_ns, -1)
            self._read_response(r, i, p)
        elif operation == "ATOMIC_ACK":
            self._told(p, time_ns, -1)
            if self.ahead and p >= self.expected:
                self._answered_ahead(p, time_ns, frame)
            transfer = self._find(p)
            self._acknowledge(p, time_ns, frame)
            if transfer is not None and transfer.operation in ATOMICS:
                self._answered(transfer, r, i)
                transfer.original = r.original[i]

    def _started_by(self, r: Rows, i: int, operation: str) -> bool:
        """Whether this response ends the probation; READ responses without a request stand for themselves."""
        psn = r.psn[i]
        if not self.held:
            if operation != "READ_RESPONSE":
                return False
            self.start(psn)
            return True
        first, row = self.held[0]
        near = first.psn[row]
        p = near + ((psn - near + HALF) & MASK) - HALF
        lowest = self._lowest(self.held, near)
        refused = operation == "ACK" and wire.syndrome_kind(r.syndrome[i]) != wire.ACK
        if p >= lowest:
            self._release(None)
        elif refused and lowest - p < PROBATION * 8:
            self._release(psn)
        return self.started

    def _acknowledge(self, upto: int, time_ns: int, frame: int) -> None:
        if upto <= self.acked:
            return
        self.acked = upto
        self.ack_ns = time_ns
        self.ack_frame = frame
        if self.ahead and self.expected < upto:
            self._skip(upto)
        self._settle()

    def _settle(self) -> None:
        """Close the transfers that the last acknowledgement covers."""
        closed = 0
        for transfer in self.unacked:
            if not transfer.ended or transfer.last_psn >= self.acked:
                break
            closed += 1
            if transfer.status != UNACKNOWLEDGED:
                continue
            if transfer.operation in NEEDS_ANSWER:
                self.awaiting.append(transfer)
            else:
                self._mark_acked(transfer, self.ack_ns, self.ack_frame)
        if closed:
            del self.unacked[:closed]

    def _give_up(self, p: int) -> None:
        """Wait no longer for answers to what lies far before PSN ``p``, where the capture shows none at all.

        The requester has gone on, so it was answered; a capture of one direction does not show it.
        """
        if self.last_rx_ns or not self.sink.forgets():
            return
        first = self.firsts[0]
        if first > p - OUTSTANDING:
            first = p - OUTSTANDING
        given_up: list[Transfer] = []
        for transfer in self.unacked:
            if transfer.last_psn >= first:
                break
            given_up.append(transfer)
        del self.unacked[: len(given_up)]
        for transfer in given_up:
            self._end_unanswered(transfer)
        self.sink.given_up([t for t in given_up if t.first_psn != self.begin])

    def _end_unanswered(self, transfer: Transfer) -> None:
        if not transfer.started or not transfer.ended:
            transfer.status = INCOMPLETE
        self.sink.ended(transfer)

    def _mark_acked(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        transfer.status = ACKED if transfer.started else INCOMPLETE
        transfer.acked_ns = time_ns
        transfer.acked_frame = frame
        if time_ns >= transfer.last_ns:
            transfer.last_frame = frame
        self.sink.ended(transfer)

    def _answered(self, transfer: Transfer, r: Rows, i: int) -> None:
        """An atomic's, FLUSH's or ATOMIC WRITE's answer."""
        if transfer.status == ACKED:
            self._response_again(transfer, r, i, transfer.first_psn)
            return
        self._drop_unacked(transfer)
        self._mark_acked(transfer, r.time_ns[i], r.frame[i])
        if self.acked <= transfer.last_psn:
            self._acknowledge(transfer.last_psn + 1, r.time_ns[i], r.frame[i])

    def _drop_unacked(self, transfer: Transfer) -> None:
        if self.unacked and self.unacked[0] is transfer:
            del self.unacked[0]
        elif transfer in self.awaiting:
            self.awaiting.remove(transfer)
        elif transfer in self.unacked:
            self.unacked.remove(transfer)

    def _response_again(
        self, transfer: Transfer, r: Rows, i: int, p: int, *, first_sight: bool = False
    ) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        event = Event(
            "response_repeat", time_ns, frame, p, p, 1, r.payload_length[i], time_ns, frame,
            first_sight=int(first_sight),
        )  # fmt: skip
        transfer.retransmitted_packets += 1
        self.connection.retransmitted_packets += 1
        self._extend(transfer, time_ns, frame)
        last = self.again
        if last is not None and p == last.last_psn + 1 and transfer.events and transfer.events[-1] is last:
            last.last_psn, last.last_ns, last.last_frame = p, time_ns, frame
            last.count += 1
            last.bytes += event.bytes
            last.first_sight += event.first_sight
        else:
            self.again = event
            transfer.events.append(event)
        self.sink.changed(transfer)

    def _read_response(self, r: Rows, i: int, p: int) -> None:
        opcode = r.opcode[i]
        if self.open_read is not None:
            self._size_by_response(self.open_read, r, i, p)
        if self.ahead and p >= self.expected:
            self._answered_ahead(p, r.time_ns[i], r.frame[i])
        transfer = self._find(p) or self._orphan_before(p, opcode)
        if transfer is None or transfer.operation not in NEEDS_ANSWER:
            if transfer is None and p >= self.expected and not self.ahead:
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
            self.connection.observe_mtu(r.payload_length[i], frame)
        expected = transfer.response_next
        if p < expected and p not in transfer.responses_missing:
            if self._response_duplicate(r, i, p):
                self._give(
                    transfer, Event("duplicate", time_ns, frame, p, p, last_ns=time_ns, last_frame=frame)
                )
            else:
                self._response_again(transfer, r, i, p)
            return
        self._answer_came(p, r.ip_id[i])
        self._extend(transfer, time_ns, frame)
        if p > expected:
            transfer.miss_responses(range(expected, p))
            transfer.events.append(
                Event("response_hole", time_ns, frame, expected, p - 1, p - expected, last_frame=frame)
            )
            transfer.response_next = p + 1
            self.again = None
        elif p == expected:
            transfer.response_next = p + 1
            self.again = None
        else:
            transfer.responses_missing.remove(p)
            if transfer.met("repeat"):
                self._response_again(transfer, r, i, p, first_sight=True)
            else:
                self.again = None
        if not transfer.started:
            transfer.packets += 1
            transfer.bytes += r.payload_length[i]
            transfer.last_psn = max(transfer.last_psn, p)
            self.expected = max(self.expected, p + 1)
            self.high = max(self.high, self.expected)
            transfer.ended = ENDS[opcode]
        if transfer.response_next > transfer.last_psn and not transfer.responses_missing and transfer.ended:
            self._drop_unacked(transfer)
            self._mark_acked(transfer, time_ns, frame)
            self._acknowledge(transfer.last_psn + 1, time_ns, frame)

    def _response_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether the network doubled a response: an unprovoked copy of one just seen."""
        ip_id = r.ip_id[i]
        return ip_id != 0 and self._is_the_answer(p, ip_id)

    def _answered_ahead(self, p: int, time_ns: int, frame: int) -> None:
        """An answer to a READ or atomic behind a hole: all before it arrived, the capture only missed it.

        A responder executes requests in order (9.5), so that an answer acknowledges what lies before it.
        """
        asked = max((q for q in self.ahead if q <= p), default=-1)
        if asked >= 0 and OPERATION[self._opcode_ahead(asked)] in NEEDS_ANSWER:
            self._acknowledge(asked, time_ns, frame)

    def _size_by_response(self, open_read: Transfer, r: Rows, i: int, p: int) -> None:
        """Learn from a response how many PSNs the open READ takes.

        A response that does not end its message is full, and tells the path MTU; one that does tells it by
        its place behind the request that it answers, which may be a later one than the open READ.
        """
        asked, length, operation = open_read.first_psn, open_read.length or 0, "READ"
        for q, (rows, k) in self.ahead.items():
            if asked < q <= p and OPERATION[rows.opcode[k]] in NEEDS_ANSWER:
                asked, length, operation = q, rows.dma_length[k], OPERATION[rows.opcode[k]]
        if operation != "READ":  # a FLUSH, which is answered like one
            return
        if ENDS[r.opcode[i]]:
            if p == asked:  # one response: the path MTU is no smaller than the message
                if (open_read.length or 0) <= length:
                    self._size_read(1)
                return
            mtu = mtu_for(length, p - asked + 1)
            # What ends here may be the answer of a request that the capture missed.
            if r.payload_length[i] != length - (p - asked) * mtu:
                return
        else:
            mtu = r.payload_length[i]
        if mtu:
            self.connection.observe_mtu(mtu, r.frame[i])
            self._size_read(wire.psns_of(open_read.length or 0, mtu))

    def _orphan_before(self, p: int, opcode: int) -> Transfer | None:
        """The READ without a request that this response goes on."""
        last = self.window[-1] if self.window else None
        if last is None or last.started or last.ended or not last.is_read or STARTS[opcode]:
            return None
        return last if p > last.last_psn else None

    def _orphan(self, r: Rows, i: int, p: int) -> Transfer:
        """A READ whose request the capture did not show."""
        transfer = self._open(r, i, p, "READ")
        transfer.started = False
        transfer.remote_va = transfer.rkey = transfer.length = None
        transfer.response_next = p
        self.expected = self.high = p
        return transfer

    def _refused(self, p: int, syndrome: int, kind: int, time_ns: int, frame: int) -> None:
        """A NAK or RNR NAK for PSN ``p``."""
        name = "rnr_nak" if kind == wire.RNR_NAK else "nak"
        event = Event(name, time_ns, frame, p, p, last_ns=time_ns, last_frame=frame, syndrome=syndrome)
        if name == "rnr_nak":
            self.connection.rnr_naks += 1
        else:
            self.connection.naks += 1
        self._attribute(event)
        value = wire.syndrome_value(syndrome)
        if kind == wire.RNR_NAK or value == wire.NAK_SEQUENCE_ERROR:
            self._refuse(event)
            return
        self.dead = True
        transfer = self._find(p)
        if transfer is not None and transfer.status == UNACKNOWLEDGED:
            self._drop_unacked(transfer)
            transfer.status = NAK_PREFIX + wire.NAK_CODES.get(value, f"reserved_{value}")
            transfer.acked_frame = frame
            self._extend(transfer, transfer.last_ns, frame)
            transfer.last_frame = frame
            self.sink.ended(transfer)

    def finalise(self) -> None:
        """The capture ends here: close what is open."""
        if not self.started and self.held:
            self._release(None)
        if self.ahead:
            self._skip(max(self.ahead) + 1)
        self.open_read = None
        if self.building is not None:
            transfer, self.building = self.building, None
            transfer.status = INCOMPLETE
        for transfer in (*self.awaiting, *self.unacked):
            if transfer.status != UNACKNOWLEDGED:
                self.sink.ended(transfer)
                continue
            if transfer.is_read and transfer.response_next > transfer.first_psn:
                if transfer.response_next > transfer.last_psn and transfer.started:
                    # The requester never asked again: it had what the capture missed.
                    self._mark_acked(transfer, transfer.last_ns, transfer.last_frame)
                    continue
                transfer.status = INCOMPLETE
            self._end_unanswered(transfer)
        self.awaiting.clear()
        self.unacked.clear()
        for event in self.pending:
            event.side = self.side
            self.connection.stray_events.append(event)
        self.pending = []
