"""The tracking state machine: one side's requests, reassembled in PSN order, and what answered them.

A ``Requests`` object follows the requests of one end of a connection (IBA Vol. 1, 9.7.2 requester, 9.7.5
responder).
It works on unwrapped PSNs and keeps three marks:

* ``expected``: every PSN below is assembled into a transfer, or given up as never shown by the capture;
* ``high``: one past the highest PSN seen;
* ``acked``: every PSN below is acknowledged.

``expected == high`` is the plain course. Between them lie holes: PSNs not seen yet, and packets kept in
``ahead`` until the holes close, because only in PSN order do first, middle and last packets make messages.
What happens to a PSN (sent again, refused, late) is an ``Event`` on the transfer that holds it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.psn import HALF, MASK
from rocekit.transfers import ACKED, INCOMPLETE, NAK_PREFIX, SENT, UNACKNOWLEDGED, Event, Transfer

if TYPE_CHECKING:
    from rocekit.connections import Connection
    from rocekit.rows import Rows
    from rocekit.tracker import Tracker

#: A PSN this far from what is known belongs to another life of the QP (or to a hole of the capture as large).
RESYNC: Final = 1 << 17
#: Packets kept behind a hole before it is given up: more than any sender leaves unacknowledged (RC); UC never
#: fills one.
AHEAD_RC: Final = 1 << 16
AHEAD_UC: Final = 2048
AHEAD_UC_NS: Final = 100_000_000
#: Requests kept back at the start of an RC flow whose starting PSN is not known, until an answer fixes it.
PROBATION: Final = 512
#: Sent packets whose IP identification is remembered to tell the network's duplicates from the sender's
#: repeats.
RING: Final = 64
#: Finished transfers kept so that late repeats find theirs.
WINDOW: Final = 1024
NEVER_NS: Final = 1 << 62
#: A requester that learns of a lost response asks again sooner than this, where its timeout is not known.
IMPLIED_NS: Final = 1_000_000
#: Without IP identification, the same PSN again this soon, and unprovoked, was doubled by the network.
DUPLICATE_NS: Final = 50_000

_OPCODES: Final = wire.OPCODES
OPERATION: Final = tuple(_OPCODES[v].operation if v in _OPCODES else "" for v in range(256))
STARTS: Final = tuple(v in _OPCODES and _OPCODES[v].starts for v in range(256))
ENDS: Final = tuple(v in _OPCODES and _OPCODES[v].ends for v in range(256))
_NEEDS_ANSWER: Final = frozenset({"READ", "FETCH_ADD", "CMP_SWAP", "FLUSH", "ATOMIC_WRITE"})
_ATOMICS: Final = frozenset({"FETCH_ADD", "CMP_SWAP"})
_IMM: Final = frozenset(v for v, o in _OPCODES.items() if wire.IMMDT in o.headers)
_INV: Final = frozenset(v for v, o in _OPCODES.items() if wire.IETH in o.headers)
_RETH: Final = frozenset(v for v, o in _OPCODES.items() if wire.RETH in o.headers)
ATOMIC_BYTES: Final = 8


class Requests:
    """The requests of one side of a connection.

    Args:
        connection: whose side it is.
        side: 0 for ``a``, 1 for ``b``.
        tracker: takes the transfers as they begin and end.
        reliable: False for UC, which nobody acknowledges.
    """

    def __init__(self, connection: Connection, side: int, tracker: Tracker, *, reliable: bool) -> None:
        self.connection = connection
        self.side = side
        self.tracker = tracker
        self.reliable = reliable
        self.started = False
        self.begin = 0
        self.expected = 0
        self.high = 0
        self.acked = 0
        self.ack_ns = 0
        self.ack_frame = 0
        self.last_tx_ns = 0
        self.last_rx_ns = 0
        self.last_answer = -1
        self.shortest_timeout_ns = 0
        self.held: list[tuple[Rows, int]] = []
        self.ahead: dict[int, tuple[Rows, int]] = {}
        self.hole_ns = 0
        self.building: Transfer | None = None
        self.open_read: Transfer | None = None  # a READ whose number of PSNs is not known yet
        self.window: list[Transfer] = []
        self.firsts: list[int] = []
        self.unacked: deque[Transfer] = deque()
        self.awaiting: list[Transfer] = []
        self.pending: list[Event] = []
        self.trigger: Event | None = None
        self.run: Event | None = None
        self.tentative: Event | None = None
        self.unanswered: Event | None = None  # the opening event of the last go-back, until an answer comes
        self.runs = 0
        self.dead = False
        self._ring_psn = [-1] * RING
        self._ring_id = [0] * RING
        self._ring_ns = [0] * RING
        self._answer_psn = [-1] * RING
        self._answer_id = [0] * RING

    # ------------------------------------------------------------------ starting

    def start(self, psn: int) -> None:
        """Fix the starting PSN (from the CM exchange or the journal)."""
        if not self.started:
            self.started = True
            self.begin = self.expected = self.high = self.acked = psn
            if self.held:
                self._release(psn)

    def _hold(self, r: Rows, i: int) -> None:
        self.held.append((r, i))
        if len(self.held) >= PROBATION:
            self._release(None)

    def _release(self, psn: int | None) -> None:
        """End the probation: start at ``psn`` (raw) or at the lowest PSN held, and take what was held."""
        held, self.held = self.held, []
        near = held[0][0].psn[held[0][1]]
        lowest = min(near + ((r.psn[i] - near + HALF) & MASK) - HALF for r, i in held)
        if psn is None:
            first = lowest
        else:
            first = near + ((psn - near + HALF) & MASK) - HALF
            if not lowest - RESYNC < first <= lowest:
                first = lowest
        while first < 0:  # unwrapped PSNs stay positive
            first += MASK + 1
        self.started = True
        self.begin = self.expected = self.high = self.acked = first
        for r, i in held:
            self.request(r, i)

    # ------------------------------------------------------------------ requests

    def request(self, r: Rows, i: int) -> None:
        """Take the request at row ``i``."""
        if not self.started:
            if self.reliable:
                self._hold(r, i)
                return
            self.start(r.psn[i])
        expected = self.expected
        p = expected + ((r.psn[i] - expected + HALF) & MASK) - HALF
        if p == expected and p == self.high:
            if self.run is not None:
                self.run = None
            self._assemble(r, i, p)
        else:
            self._out_of_order(r, i, p)
        slot = p & (RING - 1)
        self._ring_psn[slot] = p
        self._ring_id[slot] = r.ip_id[i]
        self._ring_ns[slot] = r.time_ns[i]
        self.last_tx_ns = r.time_ns[i]

    def _span(self, r: Rows, i: int) -> int:
        """PSNs that the request at row ``i`` takes: a READ as many as it has responses; 0 when unknown."""
        if OPERATION[r.opcode[i]] != "READ":
            return 1
        length = r.dma_length[i]
        mtu = self.connection.path_mtu
        if mtu:
            return max(1, -(-length // mtu))
        return 1 if length <= 256 else 0

    def _out_of_order(self, r: Rows, i: int, p: int) -> None:
        if abs(p - self.high) > RESYNC:
            self._restart(r, i, p)
            return
        if p >= self.high:
            self._beyond(r, i, p)
            return
        if p < self.expected:
            transfer = self._find(p)
            seen = p >= self.begin and not (transfer is not None and p in transfer.missing)
        else:
            transfer = None
            seen = p in self.ahead
        if seen and self._is_duplicate(r, i, p):
            self._attribute(
                Event(
                    "duplicate", r.time_ns[i], r.frame[i], p, p, last_ns=r.time_ns[i], last_frame=r.frame[i]
                )
            )
            return
        if self.reliable:
            self._repeated(r, i, p, seen, transfer)
        if seen:
            return
        if p == self.expected:
            self._assemble(r, i, p)
            self._drain()
        elif p > self.expected:
            self.ahead[p] = (r, i)
        elif transfer is not None:
            transfer.missing.discard(p)
            if not (transfer.started and transfer.ended):
                transfer.packets += 1
                transfer.bytes += r.payload_length[i]
            self._touch(transfer, r, i)

    def _beyond(self, r: Rows, i: int, p: int) -> None:
        """A PSN that was not seen before, with a hole in front of it or behind one."""
        self.run = None
        if (
            self.open_read is not None
            and self._size_read(p - self.open_read.first_psn)
            and p == self.expected
        ):
            self._assemble(r, i, p)
            return
        if p > self.high:
            self._attribute(
                Event(
                    "hole", r.time_ns[i], r.frame[i], self.high, p - 1, p - self.high, last_frame=r.frame[i]
                )
            )
        if not self.ahead:
            self.hole_ns = r.time_ns[i]
        self.ahead[p] = (r, i)
        self.high = p + max(1, self._span(r, i))
        if self.expected < self.acked:
            self._skip(min(self.acked, p))
        elif self.reliable:
            if len(self.ahead) > AHEAD_RC:
                self._skip(min(self.ahead))
        elif len(self.ahead) > AHEAD_UC or r.time_ns[i] - self.hole_ns > AHEAD_UC_NS:
            self._skip(min(self.ahead))

    def _is_duplicate(self, r: Rows, i: int, p: int) -> bool:
        """Whether the network, and not the sender, doubled this datagram."""
        if not self.reliable:
            return True
        slot = p & (RING - 1)
        if self._ring_psn[slot] != p:
            return False
        ip_id = r.ip_id[i]
        if ip_id:
            return ip_id == self._ring_id[slot]
        if self.trigger is not None or self.run is not None:
            return False
        return r.time_ns[i] - self._ring_ns[slot] < DUPLICATE_NS and not self._was_answered(p)

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

    def _sent_ns(self, p: int) -> int:
        """When PSN ``p`` was last sent, as far back as is remembered."""
        slot = p & (RING - 1)
        return self._ring_ns[slot] if self._ring_psn[slot] == p else self.last_tx_ns

    def _timeout_ns(self) -> int | None:
        """The requester's local ACK timeout: negotiated, else the shortest one seen; None when not known."""
        code = self.connection.negotiated[self.side].ack_timeout
        if code is None:
            return self.shortest_timeout_ns or None
        timeout_us = wire.local_ack_timeout_us(code)
        return NEVER_NS if timeout_us is None else int(timeout_us * 1000)

    def _timed_out(self, p: int, time_ns: int, told_ns: int) -> bool | None:
        """Whether the timer ran out (9.7.6.1.3), rather than what came at ``told_ns`` made the requester go back.

        Its timer runs from when it sent ``p`` or from a later acknowledgement; a go-back right behind an answer
        is the answer's doing all the same. None when the timeout is not known.
        """
        timeout_ns = self._timeout_ns()
        if timeout_ns is None:
            return None
        return (time_ns - self._sent_ns(p)) * 100 >= timeout_ns * 95 and (time_ns - told_ns) * 2 >= timeout_ns

    def _cause_after(self, trigger: Event, p: int, time_ns: int) -> str:
        """Why the requester goes back after a refusal: because of it, or because it never saw it."""
        timed_out = self._timed_out(p, time_ns, trigger.time_ns)
        if trigger.kind == "nak":
            return "timeout" if timed_out else "nak"
        # While an RNR wait runs, the ACK timer does not (9.7.5.2.8). Where both would fit, the nearer is meant, and
        # the wait rather than the timer, for a busy sender is late with both.
        asked_ns = wire.RNR_TIMER_US[wire.syndrome_value(trigger.syndrome or 0)] * 1000
        late_ns = time_ns - trigger.time_ns - asked_ns
        off_ns = abs(time_ns - self._sent_ns(p) - (self._timeout_ns() or 0))
        return "timeout" if timed_out and late_ns * 16 > asked_ns and off_ns * 4 < late_ns else "rnr"

    def _passed_over(self, p: int) -> bool:
        """Whether an answer to a later PSN than ``p``'s READ or atomic came after it was asked."""
        transfer = self._find(p)
        if transfer is None or transfer.operation not in _NEEDS_ANSWER:
            return False
        return self.last_answer > p and self.last_rx_ns > transfer.request_end_ns

    def _was_answered(self, p: int) -> bool:
        """Whether ``p`` is a READ or atomic that was answered: then its copy is no accident."""
        transfer = self._find(p)
        if transfer is None or transfer.operation not in _NEEDS_ANSWER:
            return False
        return self.last_answer >= p and self.last_rx_ns > transfer.request_end_ns

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
            self.unanswered = event

    def _attribute(self, event: Event) -> Event:
        """Put an event on the transfer that holds its PSN, or keep it until there is one."""
        transfer = self._find(event.psn)
        if transfer is None:
            self.pending.append(event)
            return event
        return self._give(transfer, event)

    def _give(self, transfer: Transfer, event: Event) -> Event:
        kind = event.kind
        events = transfer.events
        if kind == "repeat":
            transfer.retransmitted_packets += event.count
            transfer.timeouts += event.opens and event.cause == "timeout"
            self.connection.retransmitted_packets += event.count
            self._extend(transfer, event.last_ns, event.last_frame)
            transfer.request_end_ns = max(transfer.request_end_ns, event.last_ns)
            last = events[-1] if events else None
            if (
                last is not None
                and last.kind == "repeat"
                and last.run == event.run
                and event.psn > last.last_psn
            ):
                last.last_psn, last.last_ns, last.last_frame = event.last_psn, event.last_ns, event.last_frame
                last.count += event.count
                last.bytes += event.bytes
                last.first_sight += event.first_sight
                return last
        elif kind == "nak":
            transfer.naks += 1
        elif kind == "rnr_nak":
            transfer.rnr_naks += 1
        elif kind == "duplicate":
            transfer.duplicates += 1
            self.connection.duplicates += 1
        elif kind == "hole" and transfer.is_read and event.psn > transfer.first_psn:
            return event  # the PSNs of a READ's responses, before their number was known
        events.append(event)
        self.tracker.changed(transfer)
        return event

    # ------------------------------------------------------------------ assembly

    def _assemble(self, r: Rows, i: int, p: int) -> None:
        """Put the packet with PSN ``p == expected`` into its message."""
        opcode = r.opcode[i]
        operation = OPERATION[opcode]
        transfer = self.building
        span = 1
        if STARTS[opcode]:
            if transfer is not None:
                self._close(transfer)
            transfer = self._open(r, i, p, operation)
            if operation == "READ":
                span = self._span(r, i)
                transfer.length = transfer.bytes = r.dma_length[i]
                transfer.response_next = p
                transfer.ended = True
                if span == 0:
                    self.open_read = transfer
                    span = 1
                transfer.last_psn = p + span - 1
                transfer.packets = span
            elif operation in _ATOMICS:
                transfer.bytes = ATOMIC_BYTES
                transfer.swap_add, transfer.compare = r.swap_add[i], r.compare[i]
                transfer.packets = 1
            else:
                transfer.packets = 1
                transfer.bytes = r.payload_length[i]
        else:
            if transfer is None or transfer.operation != operation or self._past_end(transfer, p):
                if transfer is not None:
                    self._close(transfer)
                transfer = self._open(r, i, p, operation)
                transfer.started = False
            transfer.packets += 1
            transfer.bytes += r.payload_length[i]
            transfer.last_psn = p
            self._touch(transfer, r, i)
        if ENDS[opcode]:
            transfer.ended = True
            self.building = None
            if opcode in _IMM:
                transfer.immediate = r.immediate[i]
            elif opcode in _INV:
                transfer.invalidate_rkey = r.invalidate_rkey[i]
        else:
            self.building = transfer
            if r.payload_length[i] != self.connection.path_mtu:
                self.connection.observe_mtu(r.payload_length[i], r.frame[i])
        self.expected = p + span
        if self.high < self.expected:
            self.high = self.expected
        if transfer.ended:
            self._finish(transfer)
        if self.pending:
            self._give_pending()

    def _open(self, r: Rows, i: int, p: int, operation: str) -> Transfer:
        time_ns, frame, opcode = r.time_ns[i], r.frame[i], r.opcode[i]
        transfer = Transfer(
            self.tracker.next_id(),
            self.connection,
            self.side,
            operation,
            p,
            p,
            time_ns,
            time_ns,
            frame,
            frame,
        )
        transfer.request_end_ns = time_ns
        if opcode in _RETH or operation in _ATOMICS:
            transfer.remote_va, transfer.rkey = r.remote_va[i], r.rkey[i]
            if operation == "WRITE":
                transfer.length = r.dma_length[i]
        self.window.append(transfer)
        self.firsts.append(p)
        if len(self.window) > 2 * WINDOW:
            del self.window[:WINDOW], self.firsts[:WINDOW]
        self.tracker.began(transfer)
        if self.reliable:
            self.unacked.append(transfer)
        return transfer

    def _past_end(self, transfer: Transfer, p: int) -> bool:
        """Whether a WRITE's announced length ends before PSN ``p`` (its last packet fell into a hole)."""
        mtu = self.connection.path_mtu
        if transfer.length is None or not mtu:
            return False
        return p >= transfer.first_psn + wire.psns_of(transfer.length, mtu)

    def _touch(self, transfer: Transfer, r: Rows, i: int) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        if time_ns < transfer.first_ns:
            transfer.first_ns, transfer.first_frame = time_ns, frame
        if time_ns > transfer.request_end_ns:
            transfer.request_end_ns = time_ns
        self._extend(transfer, time_ns, frame)

    @staticmethod
    def _extend(transfer: Transfer, time_ns: int, frame: int) -> None:
        if time_ns >= transfer.last_ns:
            transfer.last_ns = time_ns
            if transfer.acked_ns is None or time_ns >= transfer.acked_ns:
                transfer.last_frame = frame

    def _finish(self, transfer: Transfer) -> None:
        """The message's requests are all there."""
        if transfer.operation == "WRITE" and transfer.started and transfer.length is not None:
            transfer.bytes = transfer.length
        if transfer.missing and transfer.started:
            transfer.packets = transfer.last_psn - transfer.first_psn + 1
            if transfer.operation == "SEND" and self.connection.path_mtu:
                transfer.bytes += len(transfer.missing) * self.connection.path_mtu
        if not self.reliable:
            transfer.status = SENT if transfer.started and not transfer.missing else INCOMPLETE
            self.tracker.ended(transfer)
        elif self.acked > transfer.first_psn:
            self._settle()

    def _close(self, transfer: Transfer) -> None:
        """The message's end fell into a hole that will not close."""
        self.building = None
        mtu = self.connection.path_mtu
        if transfer.started and transfer.operation == "WRITE" and transfer.length is not None and mtu:
            transfer.missing.update(
                range(transfer.last_psn + 1, transfer.first_psn + wire.psns_of(transfer.length, mtu))
            )
            transfer.last_psn = max(
                transfer.last_psn, transfer.first_psn + wire.psns_of(transfer.length, mtu) - 1
            )
            transfer.ended = True
            self._finish(transfer)
            return
        transfer.status = INCOMPLETE
        if transfer in self.unacked:
            self.unacked.remove(transfer)
        self.tracker.ended(transfer)

    def _drain(self) -> None:
        while self.ahead:
            row = self.ahead.pop(self.expected, None)
            if row is None:
                if self.open_read is not None and self._size_read(min(self.ahead) - self.open_read.first_psn):
                    continue
                return
            self._assemble(*row, self.expected)

    def _skip(self, upto: int) -> None:
        """Give up the holes below ``upto``: the capture never showed them."""
        while self.expected < upto:
            self._drain()
            if self.expected >= upto:
                return
            to = min(self.ahead) if self.ahead else upto
            to = min(to, upto)
            missed = range(self.expected, to)
            event = Event(
                "missed",
                self.ack_ns,
                self.ack_frame,
                missed[0],
                missed[-1],
                len(missed),
                last_frame=self.ack_frame,
                side=self.side,
            )
            building = self.building
            if building is not None:
                if self._past_end(building, to) or (to in self.ahead and STARTS[self._opcode_ahead(to)]):
                    self._close(building)
                else:
                    building.missing.update(missed)
            self.connection.missed.append(event)
            self.expected = to
            if self.high < to:
                self.high = to
        self._drain()

    def _opcode_ahead(self, p: int) -> int:
        r, i = self.ahead[p]
        return r.opcode[i]

    def _size_read(self, span: int) -> bool:
        """Fix the open READ's number of PSNs if a path MTU explains ``span``."""
        transfer = self.open_read
        if transfer is None:
            return False
        length = transfer.length or 0
        for mtu in wire.PATH_MTU_BYTES.values():
            if wire.psns_of(length, mtu) == span:
                if span > 1:
                    self.connection.observe_mtu(mtu, transfer.first_frame)
                self.open_read = None
                transfer.last_psn = transfer.first_psn + span - 1
                transfer.packets = span
                self.expected = max(self.expected, transfer.last_psn + 1)
                self.high = max(self.high, self.expected)
                return True
        return False

    def _give_pending(self) -> None:
        pending, self.pending = self.pending, []
        for event in pending:
            transfer = self._find(event.psn)
            if transfer is not None:
                self._give(transfer, event)
            elif event.psn >= self.expected:
                self.pending.append(event)
            else:
                event.side = self.side
                self.connection.stray_events.append(event)

    def _find(self, p: int) -> Transfer | None:
        """The transfer that holds PSN ``p``."""
        at = bisect_right(self.firsts, p) - 1
        if at < 0:
            return None
        transfer = self.window[at]
        if p <= transfer.last_psn or (transfer is self.open_read and p < self.high):
            return transfer
        return None

    def _restart(self, r: Rows, i: int, p: int) -> None:
        """The PSN lies far away: the QP lives anew, or the capture has a hole too large to count."""
        self.finalise()
        self.connection.jumps.append(
            Event("jump", r.time_ns[i], r.frame[i], self.high, p, abs(p - self.high), last_frame=r.frame[i])
        )
        while p < 0:
            p += MASK + 1
        self.window, self.firsts = [], []
        self.ahead.clear()
        self.pending.clear()
        self.begin = self.expected = self.high = self.acked = p
        self.trigger = self.run = self.tentative = self.open_read = self.unanswered = None
        self._assemble(r, i, p)

    # ------------------------------------------------------------------ responses

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
        self.last_rx_ns, self.last_answer = time_ns, p
        if operation == "ACK":
            syndrome = r.syndrome[i]
            kind = wire.syndrome_kind(syndrome)
            if self.unanswered is not None:
                self._answer(self.unanswered, p, frame)
            if kind == wire.ACK:
                self._acknowledge(p + 1, time_ns, frame)
            else:
                self._acknowledge(p, time_ns, frame)
                self._refused(p, syndrome, kind, time_ns, frame)
        elif operation == "READ_RESPONSE":
            self._read_response(r, i, p)
        elif operation == "ATOMIC_ACK":
            transfer = self._find(p)
            self._acknowledge(p, time_ns, frame)
            if transfer is not None and transfer.operation in _ATOMICS:
                self._answered(transfer, r, i)
                transfer.original = r.original[i]

    def _answer(self, opening: Event, p: int, frame: int) -> None:
        """The first answer to a go-back tells what the responder already had (9.7.5.1.2)."""
        opening.answer_psn, opening.answer_frame = p, frame
        opening.reached_psn = opening.last_psn if self.run is None else self.run.last_psn
        self.unanswered = None

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
        lowest = min(near + ((rows.psn[k] - near + HALF) & MASK) - HALF for rows, k in self.held)
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
        if self.trigger is not None and self.trigger.psn < upto:
            self.trigger = None
        if self.ahead and self.expected < upto:
            self._skip(upto)
        self._settle()

    def _settle(self) -> None:
        """Close the transfers that the last acknowledgement covers."""
        unacked = self.unacked
        while unacked:
            transfer = unacked[0]
            if not transfer.ended or transfer.last_psn >= self.acked:
                return
            unacked.popleft()
            if transfer.status != UNACKNOWLEDGED:
                continue
            if transfer.operation in _NEEDS_ANSWER:
                self.awaiting.append(transfer)
            else:
                self._mark_acked(transfer, self.ack_ns, self.ack_frame)

    def _mark_acked(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        transfer.status = ACKED if transfer.started else INCOMPLETE
        transfer.acked_ns = time_ns
        transfer.acked_frame = frame
        if time_ns >= transfer.last_ns:
            transfer.last_frame = frame
        self.tracker.ended(transfer)

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
            self.unacked.popleft()
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
        last = transfer.events[-1] if transfer.events else None
        if last is not None and last.kind == "response_repeat" and p == last.last_psn + 1:
            last.last_psn, last.last_ns, last.last_frame = p, time_ns, frame
            last.count += 1
            last.bytes += event.bytes
            last.first_sight += event.first_sight
        else:
            transfer.events.append(event)
        self.tracker.changed(transfer)

    def _read_response(self, r: Rows, i: int, p: int) -> None:
        opcode = r.opcode[i]
        transfer = self._find(p)
        if transfer is None or transfer.operation not in _NEEDS_ANSWER:
            if transfer is None and p >= self.expected and not self.ahead:
                transfer = self._orphan(r, i, p)
            else:
                return
        time_ns, frame = r.time_ns[i], r.frame[i]
        self._acknowledge(transfer.first_psn, time_ns, frame)
        if not transfer.is_read:
            self._answered(transfer, r, i)
            return
        if transfer is self.open_read:
            self._size_by_response(transfer, r, i, p)
        if not ENDS[opcode] and r.payload_length[i] != self.connection.path_mtu:
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
        self._answer_psn[p & (RING - 1)], self._answer_id[p & (RING - 1)] = p, r.ip_id[i]
        self._extend(transfer, time_ns, frame)
        if p > expected:
            transfer.responses_missing.update(range(expected, p))
            transfer.events.append(
                Event("response_hole", time_ns, frame, expected, p - 1, p - expected, last_frame=frame)
            )
            transfer.response_next = p + 1
        elif p == expected:
            transfer.response_next = p + 1
        else:
            transfer.responses_missing.discard(p)
            if any(e.kind == "repeat" for e in transfer.events):
                self._response_again(transfer, r, i, p, first_sight=True)
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
        slot = p & (RING - 1)
        return self._answer_psn[slot] == p and r.ip_id[i] != 0 and self._answer_id[slot] == r.ip_id[i]

    def _size_by_response(self, transfer: Transfer, r: Rows, i: int, p: int) -> None:
        opcode = r.opcode[i]
        if not ENDS[opcode]:
            self.connection.observe_mtu(r.payload_length[i], r.frame[i])
            span = wire.psns_of(transfer.length or 0, r.payload_length[i] or 1)
        else:
            span = p - transfer.first_psn + 1
        self.open_read = None
        transfer.last_psn = transfer.first_psn + span - 1
        transfer.packets = span
        self.expected = max(self.expected, transfer.last_psn + 1)
        self.high = max(self.high, self.expected)
        self._drain()

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
            self.trigger = event
            return
        self.dead = True
        transfer = self._find(p)
        if transfer is not None and transfer.status == UNACKNOWLEDGED:
            self._drop_unacked(transfer)
            transfer.status = NAK_PREFIX + wire.NAK_CODES.get(value, f"reserved_{value}")
            transfer.acked_frame = frame
            self._extend(transfer, transfer.last_ns, frame)
            transfer.last_frame = frame
            self.tracker.ended(transfer)

    # ------------------------------------------------------------------ the end

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
                self.tracker.ended(transfer)
                continue
            if transfer.is_read and transfer.response_next > transfer.first_psn:
                if transfer.response_next > transfer.last_psn and transfer.started:
                    # The requester never asked again: it had what the capture missed.
                    self._mark_acked(transfer, transfer.last_ns, transfer.last_frame)
                    continue
                transfer.status = INCOMPLETE
            elif not transfer.started or not transfer.ended:
                transfer.status = INCOMPLETE
            self.tracker.ended(transfer)
        self.awaiting.clear()
        self.unacked.clear()
        for event in self.pending:
            event.side = self.side
            self.connection.stray_events.append(event)
        self.pending = []
