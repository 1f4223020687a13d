# cython: boundscheck=False
"""Requests put together in PSN order: only in that order do first, middle and last packets make messages.

``expected == high`` is the plain course. Between the two lie holes: PSNs not seen yet. The packets behind
them are kept in ``ahead`` until the holes close, or until an ACK shows that only the capture lacks them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.machine.signals import OFTEN, take_signals
from rocekit.track.events import happened
from rocekit.track.gaps.msn_count import MsnCount
from rocekit.track.gaps.read_size import mtu_for, mtu_of_part, size_before
from rocekit.track.transfers import INCOMPLETE, NOTHING, SENT, Transfer
from rocekit.wire import ATOMICS, ENDS, OPERATION, OWN_RESPONSE, STARTS
from rocekit.wire.psn import HALF, MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.ledger import Ledger
    from rocekit.track.outcomes import Outcomes
    from rocekit.track.progress import Progress
    from rocekit.track.recent import Recent

#: Packets kept behind a hole before it is given up: more than any sender leaves unacknowledged.
AHEAD_RC: Final = 1 << 16
AHEAD_UC: Final = 2048
AHEAD_UC_NS: Final = 100_000_000
#: PSNs that left ``ahead`` before they are taken out of its order.
_STALE: Final = 64
#: More READs and atomics than any QP has outstanding.
_OUTSTANDING: Final = 256

#: Of all sides without a hole, which are most: nothing is put into them.
_NONE_AHEAD: Final[dict[int, tuple[Rows, int]]] = {}
_NO_PSNS: Final[list[int]] = []

#: By opcode: whether it has an immediate, or a key to invalidate.
_IMMEDIATE: Final = tuple(v in wire.OPCODES and wire.IMMDT in wire.OPCODES[v].headers for v in range(256))
_INVALIDATE: Final = tuple(v in wire.OPCODES and wire.IETH in wire.OPCODES[v].headers for v in range(256))


class Assembly:
    """One side's requests, put together to transfers.

    Attributes:
        ahead: packets behind a hole, by PSN: the batch and the row. They leave it in the order of their PSNs.
        hole_ns: when the oldest hole opened.
    """

    def set_up(self, ledger: Ledger, progress: Progress, recent: Recent, outcomes: Outcomes) -> None:
        self.connection = ledger.connection
        self.ledger = ledger
        self.progress = progress
        self.recent = recent
        self.outcomes = outcomes
        self.ahead: dict[int, tuple[Rows, int]] = _NONE_AHEAD
        # The PSNs in order, and those of READs, atomics and so on. What left ``ahead`` is still in them.
        self._order: list[int] = _NO_PSNS
        self._asking: list[int] = _NO_PSNS
        self._first = 0
        self.hole_ns = 0

    def beyond(self, r: Rows, i: int, p: int) -> None:
        """A PSN that was not seen before, with a hole in front of it or behind one."""
        high, time_ns, frame = self.progress.high, r.time_ns[i], r.frame[i]
        if p > high:
            self.ledger.attribute(happened("hole", time_ns, frame, high, p - 1, p - high))
        if not self.ahead:
            self.hole_ns = time_ns
        self.put_ahead(r, i, p)
        span = self.connection.psns_of_read(r.dma_length[i]) if OPERATION[r.opcode[i]] == "READ" else 1
        self.progress.high = p + max(1, span)
        if self.progress.expected < self.progress.acked:
            self.skip(min(self.progress.acked, p))
        elif self.progress.reliable:
            if len(self.ahead) > AHEAD_RC:
                self.skip(self._lowest())
        elif len(self.ahead) > AHEAD_UC or time_ns - self.hole_ns > AHEAD_UC_NS:
            self.skip(self._lowest())

    def put_ahead(self, r: Rows, i: int, p: int) -> None:
        """Keep the packet at row ``i`` until the hole in front of it closes."""
        if not self.ahead:
            self.ahead, self._order, self._asking, self._first = {}, [], [], 0
        elif len(self._order) > 2 * len(self.ahead) + _STALE:
            self._order = [q for q in self._order if q in self.ahead]
            self._asking = [q for q in self._asking if q in self.ahead]
            self._first = 0
        self.ahead[p] = (r, i)
        last = self._order[-1] if self._order else -1
        if p > last:
            self._order.append(p)
        else:
            insort(self._order, p, self._first)
        if OPERATION[r.opcode[i]] in OWN_RESPONSE:
            insort(self._asking, p)

    def clear(self) -> None:
        """Keep no packet."""
        self.ahead, self._order, self._asking, self._first = _NONE_AHEAD, _NO_PSNS, _NO_PSNS, 0

    def _lowest(self) -> int:
        """The lowest PSN that is kept; there is one."""
        while self._order[self._first] not in self.ahead:
            self._first += 1
        lowest: int = self._order[self._first]
        return lowest

    def highest(self) -> int:
        """The highest PSN that is kept; there is one."""
        return self._order[-1]

    def ahead_before(self, p: int) -> int:
        """The highest PSN below ``p`` that is kept; −1: there is none near it."""
        end = bisect_left(self._order, p)
        for q in reversed(self._order[max(0, end - _OUTSTANDING) : end]):
            if q in self.ahead:
                found: int = q
                return found
        return -1

    def assemble(self, r: Rows, i: int, p: int) -> None:
        """Put the packet with PSN ``p == expected`` into its message."""
        opcode = r.opcode[i]
        operation = OPERATION[opcode]
        transfer = self.ledger.building
        span = 1
        open_read = self.ledger.open_read
        if open_read is not None and open_read.announced < 0 and p > open_read.last_psn:
            self.ledger.open_read = None  # this request comes right behind it
        if STARTS[opcode]:
            if transfer is not None:
                self._close(transfer)
            transfer = self.outcomes.begin(r, i, p, operation)
            if operation == "READ":
                span = self.connection.psns_of_read(r.dma_length[i])
                if r.dma_length[i] >= 0:
                    transfer.announced = transfer.bytes = r.dma_length[i]
                transfer.response_next = p
                transfer.ended = True
                if span == 0:
                    self.ledger.open_read = transfer
                    span = 1
                transfer.last_psn = p + span - 1
                transfer.packets = span
            elif operation in ATOMICS:
                transfer.bytes = wire.ATOMIC_BYTES
                transfer.swap_add, transfer.compare = r.lesser("swap_add")[i], r.lesser("compare")[i]
                transfer.packets = 1
            else:
                transfer.packets = 1
                transfer.bytes = r.payload_length[i]
        else:
            if transfer is None or transfer.operation != operation or self._past_end(transfer, p):
                if transfer is not None:
                    self._close(transfer)
                transfer = self.outcomes.begin(r, i, p, operation)
                transfer.started = False
            transfer.packets += 1
            transfer.bytes += r.payload_length[i]
            transfer.last_psn = p
            self.ledger.touch(transfer, r, i)
        if ENDS[opcode]:
            self.ledger.building = None
            ends(self.connection, transfer, r, i)
        else:
            self.ledger.building = transfer
            mtu = -1 if self.connection.path_mtu is None else self.connection.path_mtu
            if r.payload_length[i] != mtu:
                self.connection.observe_mtu(r.payload_length[i])
        self.progress.expected = p + span
        if self.progress.high < self.progress.expected:
            self.progress.high = self.progress.expected
        if transfer.ended:
            self._finish(transfer)
        if self.ledger.pending:
            self.ledger.give_pending()

    def room(self, opcode: int) -> int:
        """How many full packets of this opcode go on with the message being built (see ``bulk``)."""
        transfer = self.ledger.building
        if (
            transfer is None
            or self.progress.expected != self.progress.high
            or opcode < 0
            or self.ahead
            or self.ledger.pending
        ):
            return 0
        if self.connection.path_mtu is None or OPERATION[opcode] != transfer.operation:
            return 0
        length = transfer.announced
        if length < 0:
            return MASK
        mtu = self.connection.path_mtu
        return transfer.first_psn + (length + mtu - 1) // mtu - self.progress.expected if mtu > 0 else 0

    def _past_end(self, transfer: Transfer, p: int) -> bool:
        """Whether a WRITE's announced length ends before PSN ``p``: its last packet is in a hole."""
        if transfer.announced < 0 or self.connection.path_mtu is None or p <= transfer.first_psn:
            return False
        mtu, length = self.connection.path_mtu, transfer.announced
        return mtu > 0 and (p - transfer.first_psn) * mtu >= length

    def _finish(self, transfer: Transfer) -> None:
        """All requests of the message are there."""
        is_whole = transfer.missing is NOTHING or not transfer.missing
        if transfer.operation == "WRITE" and transfer.started and transfer.announced >= 0 and not is_whole:
            transfer.bytes = transfer.announced
        if transfer.started and not is_whole:
            transfer.packets = transfer.last_psn - transfer.first_psn + 1
            if transfer.announced < 0 and self.connection.path_mtu:
                transfer.bytes += len(transfer.missing) * self.connection.path_mtu
        if not self.progress.reliable:
            transfer.status = SENT if transfer.started and is_whole else INCOMPLETE
            self.ledger.sink.ended(transfer)
        elif self.progress.acked > transfer.first_psn:
            self.outcomes.settle()

    def _close(self, transfer: Transfer) -> None:
        """The message's end is in a hole that will not close."""
        self.ledger.building = None
        mtu = self.connection.path_mtu
        if transfer.started and transfer.operation == "WRITE" and transfer.announced >= 0 and mtu:
            last = transfer.first_psn + wire.psns_of(transfer.announced, mtu) - 1
            transfer.miss(transfer.last_psn + 1, last)
            transfer.last_psn = max(transfer.last_psn, last)
            transfer.ended = True
            self._finish(transfer)
            return
        transfer.status = INCOMPLETE
        self.outcomes.drop_unacked(transfer)
        self.ledger.sink.ended(transfer)

    def drain(self) -> None:
        """Take the packets behind a hole that has closed."""
        while self.ahead:
            row = self.ahead.pop(self.progress.expected, None)
            if row is None or self.ledger.open_read is not None:
                if row is not None:
                    self.ahead[self.progress.expected] = row
                return
            rows, i = row
            self.assemble(rows, i, self.progress.expected)

    def skip(self, upto: int) -> None:
        """Give up the holes below ``upto``: they are not in the capture."""
        given_up = 0
        while self.progress.expected < upto:
            given_up += 1
            if given_up % OFTEN == 0:
                take_signals()
            self.drain()
            self._guess_read()  # of the READ open before, or of one that was kept behind a hole
            self.ledger.open_read = None
            self.drain()
            if self.progress.expected >= upto:
                return
            # Requests inside the PSNs of a READ belong nowhere: only a damaged capture has them.
            while self.ahead and self._lowest() < self.progress.expected:
                del self.ahead[self._lowest()]
            to = min(self._lowest(), upto) if self.ahead else upto
            if (
                to <= self.progress.expected
            ):  # what was drained opened a READ, and the next one waits behind it
                continue
            first, last = self.progress.expected, to - 1
            acked = self.progress
            event = happened("missed", acked.acked_ns, acked.acked_frame, first, last, to - first)
            event.side = self.ledger.side
            building = self.ledger.building
            if building is not None:
                if self._past_end(building, to) or (to in self.ahead and STARTS[self.opcode_ahead(to)]):
                    self._close(building)
                elif self._hides_an_end(building, to):
                    self._part(building)
                else:
                    building.miss(first, last)
            if first < self.progress.acked:
                self.connection.note_missed(event)
            else:
                self.connection.note_unfilled(event)
            self.progress.expected = to
            if self.progress.high < to:
                self.progress.high = to
        self.drain()

    def _hides_an_end(self, building: Transfer, to: int) -> bool:
        """Whether a message ended, unseen, between the last packet of ``building`` and PSN ``to``.

        Two missed packets may be the last of one message and the first of another. The responder's count of
        messages decides (see ``msn_count``); where it does not, the transfer notes that it may be several.
        """
        missed = to - building.last_psn - 1
        if building.length is not None or (missed < 2 and to in self.ahead):
            return False
        unseen = self._counts().ended_unseen(building, to)
        if unseen is None:
            building.maybe_several = building.maybe_several or missed > 1
        return bool(unseen)

    def _counts(self) -> MsnCount:
        """What the responder's count of messages says; made when it is asked for, which is seldom."""
        return MsnCount(self.ledger, self.progress, self.recent, self.ahead)

    def _part(self, building: Transfer) -> None:
        """The message ended in a hole, and another one started there."""
        building.missing.keep_below(building.last_psn)
        building.maybe_several = False
        self._close(building)

    def opcode_ahead(self, p: int) -> int:
        r, i = self.ahead[p]
        return r.opcode[i]

    def _guess_read(self) -> None:
        """Size the open READ by the next request's PSN, where no response shows the path MTU."""
        while self.ledger.open_read is not None and self.ahead:
            transfer = self.ledger.open_read
            span, sure = size_before(self.connection, self._counts(), transfer, self._lowest())
            if not span:
                return
            if sure and span > 1 and transfer.length is not None:
                self.connection.observe_mtu(mtu_for(transfer.length or 0, span))
            transfer.maybe_several = not sure
            self.size_read(span)

    def size_read(self, span: int) -> None:
        """The open READ takes ``span`` PSNs: go on behind it."""
        transfer = self.ledger.open_read
        assert transfer is not None
        self.ledger.open_read = None
        transfer.last_psn = transfer.first_psn + span - 1
        transfer.packets = span
        self.progress.expected = max(self.progress.expected, transfer.last_psn + 1)
        self.progress.high = max(self.progress.high, self.progress.expected)
        self.drain()

    def size_by_part(self, r: Rows, i: int, p: int) -> bool:
        """Learn the path MTU from a READ that was requested again in part, where no response shows it."""
        open_read = self.ledger.open_read
        if open_read is None or OPERATION[r.opcode[i]] != "READ" or p in self.ahead:
            return False
        if open_read.length is None or r.dma_length[i] < 0:
            return False
        asked, rows, row = -1, r, -1
        for q in self._asked_before(p):
            batch, k = self.ahead[q]
            if OPERATION[batch.opcode[k]] == "READ":
                asked, rows, row = q, batch, k
                break
        if row >= 0:
            key, read = rows.rkey[row], (rows.remote_va[row], rows.dma_length[row])
        else:
            asked, key = open_read.first_psn, open_read.rkey or 0
            read = open_read.remote_va or 0, open_read.length or 0
        mtu = mtu_of_part(read, (r.remote_va[i], r.dma_length[i]), p - asked) if r.rkey[i] == key else 0
        if mtu:
            self.connection.observe_mtu(mtu)
            self._size_by_mtu(open_read, mtu)
        return mtu > 0

    def _size_by_mtu(self, open_read: Transfer, mtu: int) -> None:
        """The open READ takes as many PSNs as the path MTU says, unless no message takes so many.

        More than half of the PSNs cannot be told from earlier ones (9.7.2): then one of the numbers is wrong.
        """
        span = wire.psns_of(open_read.length or 0, mtu)
        if span <= HALF:
            self.size_read(span)

    def _asked_before(self, p: int) -> list[int]:
        """The PSNs below ``p`` of READs, atomics and so on that are kept, the last first."""
        end = bisect_left(self._asking, p)
        return [q for q in reversed(self._asking[max(0, end - _OUTSTANDING) : end]) if q in self.ahead]

    def _grow(self, open_read: Transfer, p: int, asked: int, ends: bool) -> None:
        """A READ of unknown length takes the PSNs of its responses; ``p`` is one, if it was asked last."""
        if asked != open_read.first_psn or p < asked:
            return
        if ends:
            self.size_read(p - asked + 1)
        elif p >= open_read.last_psn:
            open_read.last_psn = p + 1
            open_read.packets = open_read.last_psn - asked + 1
            self.progress.expected = max(self.progress.expected, p + 2)
            self.progress.high = max(self.progress.high, self.progress.expected)

    def size_by_response(self, open_read: Transfer, r: Rows, i: int, p: int) -> None:
        """Learn from a response how many PSNs the open READ takes.

        A response that does not end its message is full, and shows the path MTU. One that does shows it by
        its distance from its request, which may be a later one than the open READ.
        """
        asked, length, operation = open_read.first_psn, open_read.length or 0, "READ"
        for q in self._asked_before(p + 1)[:1]:
            if q > asked:
                rows, k = self.ahead[q]
                asked, length, operation = q, rows.dma_length[k], OPERATION[rows.opcode[k]]
        if operation != "READ":  # a FLUSH, whose response looks like a READ's
            return
        if open_read.length is None:
            self._grow(open_read, p, asked, ENDS[r.opcode[i]])
            return
        if ENDS[r.opcode[i]]:
            if length < 0:
                return
            if p == asked:  # one response: the path MTU is at least the message's length
                if (open_read.length or 0) <= length:
                    self.size_read(1)
                return
            mtu = mtu_for(length, p - asked + 1)
            # This may be the response to a request that the capture missed.
            if r.payload_length[i] != length - (p - asked) * mtu:
                return
        else:
            mtu = r.payload_length[i]
        if mtu:
            self.connection.observe_mtu(mtu)
            self._size_by_mtu(open_read, mtu)


def ends(connection: Connection, transfer: Transfer, r: Rows, i: int) -> None:
    """The packet at row ``i`` is the last one of its message."""
    opcode = r.opcode[i]
    transfer.ended = True
    if r.payload_length[i] > connection.largest_payload:
        connection.largest_payload = r.payload_length[i]
    if _IMMEDIATE[opcode]:
        transfer.with_immediate, transfer.immediate = True, r.lesser("immediate")[i]
    elif _INVALIDATE[opcode]:
        transfer.with_invalidate = True
        transfer.invalidate_rkey = r.lesser("invalidate_rkey")[i]
