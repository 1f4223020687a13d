"""Requests put together in PSN order, for only in that order do first, middle and last packets make messages.

``expected == high`` is the plain course. Between the two lie holes: PSNs not seen yet, and packets kept in
``ahead`` until the holes close, or until an acknowledgement shows that only the capture lacks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.track.causes import RING
from rocekit.track.ledger import ATOMICS
from rocekit.track.msn_count import ended_unseen
from rocekit.track.read_size import mtu_for, size_before
from rocekit.track.repeats import GoBack
from rocekit.track.transfers import INCOMPLETE, NOTHING, SENT, Event, Transfer
from rocekit.wire import ENDS, OPERATION, STARTS
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Sink

#: A PSN this far from what is known belongs to another life of the QP, or to a hole of the capture as large.
RESYNC: Final = 1 << 17
#: Packets kept behind a hole before it is given up: more than any sender leaves unacknowledged.
AHEAD_RC: Final = 1 << 16
AHEAD_UC: Final = 2048
AHEAD_UC_NS: Final = 100_000_000
#: Requests kept back at the start of an RC flow whose starting PSN is not known, until an answer fixes it.
PROBATION: Final = 512

_SLOT: Final = RING - 1
_IMMEDIATE: Final = frozenset(v for v, o in wire.OPCODES.items() if wire.IMMDT in o.headers)
_INVALIDATE: Final = frozenset(v for v, o in wire.OPCODES.items() if wire.IETH in o.headers)


class Assembly(GoBack):
    """One side's requests, reassembled.

    Attributes:
        started: whether the starting PSN is known; until then requests wait in ``held``.
        begin: the starting PSN.
        ack_msn: the MSN of the acknowledgement at hand; −1: there is none, or it does not tell.
    """

    def _set_up(self, connection: Connection, side: int, sink: Sink, reliable: bool) -> None:
        GoBack._set_up(self, connection, side, sink, reliable)
        self.started = False
        self.begin = 0
        self.ack_frame = 0
        self.ack_msn = -1
        self.held: list[tuple[Rows, int]] = []
        self.ahead: dict[int, tuple[Rows, int]] = {}
        self.hole_ns = 0

    def _settle(self) -> None:
        """Close the transfers that the last acknowledgement covers."""
        raise NotImplementedError

    def finalise(self) -> None:
        """The capture ends here: close what is open."""
        raise NotImplementedError

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

    def _lowest(self, held: list[tuple[Rows, int]], near: int) -> int:
        """The lowest PSN among packets, unwrapped around ``near``."""
        lowest = near
        for r, i in held:
            p = near + ((r.psn[i] - near + HALF) & MASK) - HALF
            if p < lowest:
                lowest = p
        return lowest

    def _release(self, psn: int | None) -> None:
        """End the probation: start at ``psn`` (raw) or at the lowest PSN held, and take what was held."""
        held, self.held = self.held, []
        near = held[0][0].psn[held[0][1]]
        lowest = self._lowest(held, near)
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
            if self.tentative is not None:
                self.tentative = None
            self._assemble(r, i, p)
        elif self._out_of_order(r, i, p):
            return
        self._remember(r, i, p)

    def _span(self, r: Rows, i: int) -> int:
        """PSNs that the request at row ``i`` takes: a READ as many as it has responses; 0 when unknown."""
        if OPERATION[r.opcode[i]] != "READ":
            return 1
        length = r.dma_length[i]
        if length <= 256:  # the smallest path MTU
            return 1
        connection = self.connection
        # What the CM agreed on is a limit: a program may set a smaller path MTU on its QP.
        if connection.path_mtu and (connection.mtu_observed or connection.paired_by != "cm"):
            return -(-length // connection.path_mtu)
        return 0

    def _out_of_order(self, r: Rows, i: int, p: int) -> bool:
        """Take a packet that is not the next; whether it is an old one that its own repeat overtook."""
        if abs(p - self.high) > RESYNC:
            self._restart(r, i, p)
            return False
        if p >= self.high:
            self._beyond(r, i, p)
            return False
        if p < self.expected:
            transfer = self._find(p)
            seen = p >= self.begin and not (transfer is not None and p in transfer.missing)
            if p < self.begin and not self.reliable:  # held up, and of no transfer; but a copy is one
                seen = self._sent_psn(p & _SLOT) == p
        else:
            transfer = None
            seen = p in self.ahead
        if seen and self._is_duplicate(r, i, p):
            self._note("duplicate", r, i, p)
            return False
        if self.reliable:
            if self._is_late(r, i, p, seen):
                self._note("late", r, i, p)
                if seen:
                    return True
            else:
                self._repeated(r, i, p, seen, transfer)
        if seen:
            return False
        if p == self.expected:
            self._assemble(r, i, p)
            self._drain()
        elif p > self.expected:
            self.ahead[p] = (r, i)
        elif transfer is not None:
            if p in transfer.missing:
                transfer.missing.remove(p)
            if not (transfer.started and transfer.ended):
                transfer.packets += 1
                transfer.bytes += r.payload_length[i]
            self._touch(transfer, r, i)
        return False

    def _note(self, kind: str, r: Rows, i: int, p: int) -> None:
        """Something befell the packet with PSN ``p``."""
        time_ns, frame = r.time_ns[i], r.frame[i]
        self._attribute(
            Event(kind, time_ns, frame, p, p, 1, r.payload_length[i], last_ns=time_ns, last_frame=frame)
        )

    def _beyond(self, r: Rows, i: int, p: int) -> None:
        """A PSN that was not seen before, with a hole in front of it or behind one."""
        self.run = self.tentative = None
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
            elif operation in ATOMICS:
                transfer.bytes = wire.ATOMIC_BYTES
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
            if r.payload_length[i] > self.connection.largest_payload:
                self.connection.largest_payload = r.payload_length[i]
            if opcode in _IMMEDIATE:
                transfer.immediate = r.immediate[i]
            elif opcode in _INVALIDATE:
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

    def room(self, opcode: int) -> int:
        """How many full packets of this opcode simply go on with the message being built (see ``runs``)."""
        transfer = self.building
        if transfer is None or self.expected != self.high or opcode < 0 or self.ahead or self.pending:
            return 0
        if self.connection.path_mtu is None or OPERATION[opcode] != transfer.operation:
            return 0
        if transfer.length is None:
            return MASK
        mtu, length = self.connection.path_mtu, transfer.length
        return transfer.first_psn + (length + mtu - 1) // mtu - self.expected if mtu > 0 else 0

    def go_on(self, r: Rows, i: int, after: list[int], count: int) -> None:
        """Take ``count`` packets that go on with the message being built: row ``i`` and those after it."""
        transfer = self.building
        assert transfer is not None
        self.run = self.tentative = None
        p = self.expected
        latest = i
        for _ in range(count):
            transfer.bytes += r.payload_length[i]
            time_ns = r.time_ns[i]
            if time_ns >= r.time_ns[latest]:
                latest = i
            if time_ns < transfer.first_ns:
                transfer.first_ns, transfer.first_frame = time_ns, r.frame[i]
            self._remember(r, i, p)
            p += 1
            i = after[i]
        transfer.packets += count
        self._touch(transfer, r, latest)
        transfer.last_psn = p - 1
        self.expected = self.high = p

    def _past_end(self, transfer: Transfer, p: int) -> bool:
        """Whether a WRITE's announced length ends before PSN ``p`` (its last packet fell into a hole)."""
        mtu = self.connection.path_mtu
        if transfer.length is None or not mtu:
            return False
        return p > transfer.first_psn and (p - transfer.first_psn) * mtu >= transfer.length

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
            self.sink.ended(transfer)
        elif self.acked > transfer.first_psn:
            self._settle()

    def _close(self, transfer: Transfer) -> None:
        """The message's end fell into a hole that will not close."""
        self.building = None
        mtu = self.connection.path_mtu
        if transfer.started and transfer.operation == "WRITE" and transfer.length is not None and mtu:
            transfer.miss(
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
        self.sink.ended(transfer)

    def _drain(self) -> None:
        while self.ahead:
            row = self.ahead.pop(self.expected, None)
            if row is None or self.open_read is not None:
                if row is not None:
                    self.ahead[self.expected] = row
                return
            self._assemble(*row, self.expected)

    def _skip(self, upto: int) -> None:
        """Give up the holes below ``upto``: the capture never showed them."""
        while self.expected < upto:
            self._drain()
            self._guess_read()  # of the READ open before, or of one that was kept behind a hole
            self.open_read = None
            self._drain()
            if self.expected >= upto:
                return
            # Requests inside the PSNs of what was a READ belong nowhere: only a garbled capture has them.
            for p in [p for p in self.ahead if p < self.expected]:
                del self.ahead[p]
            to = min(self.ahead) if self.ahead else upto
            to = min(to, upto)
            if to <= self.expected:  # what was drained opened a READ, and the next one waits behind it
                continue
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
                elif self._hides_an_end(building, to):
                    self._part(building)
                else:
                    building.miss(missed)
            if missed[0] < self.acked:
                self.connection.missed.append(event)
            else:
                self.connection.unfilled.append(event)
            self.expected = to
            if self.high < to:
                self.high = to
        self._drain()

    def _hides_an_end(self, building: Transfer, to: int) -> bool:
        """Whether a message ended, unseen, between the last packet of ``building`` and PSN ``to``.

        Two packets may be the last of one message and the first of another: the responder's count of messages
        tells (see ``msn_count``). Where it does not, it is noted that it may be so.
        """
        missed = to - building.last_psn - 1
        if building.length is not None or (missed < 2 and to in self.ahead):
            return False
        unseen = ended_unseen(self, building, to)
        if unseen is None:
            building.maybe_several = building.maybe_several or missed > 1
        return bool(unseen)

    def _part(self, building: Transfer) -> None:
        """The message ended in a hole, and another one began there."""
        building.missing = {p for p in building.missing if p < building.last_psn} or NOTHING
        building.maybe_several = False
        self._close(building)

    def _opcode_ahead(self, p: int) -> int:
        r, i = self.ahead[p]
        return r.opcode[i]

    def _guess_read(self) -> None:
        """Size the open READ by where the next request stands, where no answer tells its path MTU."""
        while self.open_read is not None and self.ahead:
            transfer = self.open_read
            span, sure = size_before(self, transfer, min(self.ahead))
            if not span:
                return
            if sure and span > 1:
                self.connection.observe_mtu(mtu_for(transfer.length or 0, span), transfer.first_frame)
            transfer.maybe_several = not sure
            self._size_read(span)

    def _size_read(self, span: int) -> None:
        """The open READ takes ``span`` PSNs: go on behind it."""
        transfer = self.open_read
        assert transfer is not None
        self.open_read = None
        transfer.last_psn = transfer.first_psn + span - 1
        transfer.packets = span
        self.expected = max(self.expected, transfer.last_psn + 1)
        self.high = max(self.high, self.expected)
        self._drain()

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
        self.refusals.clear()
        self.obeyed.clear()
        self.run = self.tentative = self.open_read = self.unanswered = None
        self._assemble(r, i, p)
