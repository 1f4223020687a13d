# cython: boundscheck=False
"""The ledger of one side's requests: which transfer holds a PSN, and what happened to it there.

All PSNs are unwrapped. What happens to a PSN (sent again, NAK, late) is an ``Event`` on the transfer that
holds it. An event for a PSN that no transfer holds yet waits until one does.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.track.events import Event
from rocekit.track.transfers import Transfer, begun
from rocekit.wire import ATOMICS, OWN_RESPONSE, READ_DEPTH

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection
    from rocekit.track.progress import Progress

#: Finished transfers kept so that late repeats find theirs.
WINDOW: Final = 1024
#: What a READ adds to the number of a transfer's kind (see ``Sink.leaves_out``).
READ_KIND: Final = 2
#: What is sent again is among the last of them, as a rule: so many are looked at one by one.
_NEAR: Final = 8

_NUMBER: Final = attrgetter("waits")
#: By opcode: whether it says which memory it is for.
_HAS_RETH: Final = tuple(v in wire.OPCODES and wire.RETH in wire.OPCODES[v].headers for v in range(256))


class Sink:
    """Takes the transfers of all connections as they begin, change and end.

    Attributes:
        numbered: how many transfers have numbers, those that are no objects among them.
    """

    numbered: int

    def next_id(self) -> int:
        """The number of the next transfer."""
        raise NotImplementedError

    def began(self, transfer: Transfer) -> None:
        raise NotImplementedError

    def made(self, transfer: Transfer) -> None:
        """A transfer that was counted became an object."""
        raise NotImplementedError

    def leaves_out(
        self, connection: Connection, side: int, kind: int, status: str, size: int, duration_ns: int
    ) -> bool:
        """Whether a plain transfer, which is over, is counted and needs no object.

        Args:
            kind: 0 or, of a READ, ``READ_KIND``; 1 more if it has several packets.
        """
        raise NotImplementedError

    def changed(self, transfer: Transfer) -> None:
        """An event happened to it."""
        raise NotImplementedError

    def ended(self, transfer: Transfer) -> None:
        """It is acknowledged, refused, or will not go on; later repeats may still change it."""
        raise NotImplementedError

    def settled(self, transfers: list[Transfer]) -> None:
        """They are so old that no repeat changes them."""
        raise NotImplementedError

    def forgets(self) -> bool:
        """Whether plain transfers are counted and dropped, so that nobody may keep them."""
        return False

    def shortest(
        self, hosts: tuple[str | None, str | None], turnaround_ns: int, timed: int
    ) -> tuple[int, int]:
        """The shortest turnaround of these hosts that any of their connections has seen, 0: unknown.

        And of how many it is the shortest, at least.
        """
        return turnaround_ns, timed

    def given_up(self, transfers: list[Transfer]) -> None:
        """They ended without a response, and no response to come is theirs."""
        raise NotImplementedError


def _is_before(event: Event, other: Event) -> bool:
    """Whether an event that waits comes before another one in the heap."""
    return event.psn < other.psn or (event.psn == other.psn and event.waits < other.waits)


class Ledger:
    """The transfers of one side of a connection, by PSN.

    Args:
        side: 0 for ``a``, 1 for ``b``.
        sink: hears of transfers as they begin and change.

    Attributes:
        window: the last transfers, in the order of their first PSNs.
        building: the message whose last packet was not seen yet.
        open_read: a READ whose number of PSNs is not known yet.
        pending: events of PSNs that no transfer holds yet, a heap by their PSNs and numbers; None before the
        first.
        asks: whether a transfer came that needs a response of its own.
        troubles: the ``Troubles`` of this side, None before the first.
    """

    def set_up(self, connection: Connection, side: int, sink: Sink, progress: Progress) -> None:
        self.connection = connection
        self.side = side
        self.sink = sink
        self.progress = progress
        self.window: list[Transfer] = []
        self.building: Transfer | None = None
        self.open_read: Transfer | None = None
        self.pending: list[Event] | None = None
        self.asks = False
        self.troubles: Any = None
        self._numbers = 0

    def find(self, p: int) -> Transfer | None:
        """The transfer that holds PSN ``p``."""
        at = self._before(p)
        if at < 0:
            return None
        transfer = self.window[at]
        return transfer if p <= transfer.last_psn else None

    def _before(self, p: int) -> int:
        """The place of the last transfer that begins at PSN ``p`` or before it; −1: there is none.

        By hand, because ``bisect`` compares Python's numbers, and every packet sent again is looked up.
        """
        at = len(self.window) - 1
        near = max(-1, at - _NEAR)
        while at > near:
            transfer = self.window[at]
            if transfer.first_psn <= p:
                return at
            at -= 1
        low, high = 0, at + 1
        while low < high:
            at = (low + high) >> 1
            transfer = self.window[at]
            if transfer.first_psn <= p:
                low = at + 1
            else:
                high = at
        return low - 1

    def has_answered_between(self, first: int, end: int) -> bool:
        """Whether a request that needs a response of its own has a PSN from ``first`` to before ``end``."""
        at = self._before(end - 1)
        while at >= 0 and self.window[at].last_psn >= first:
            if self.window[at].operation in OWN_RESPONSE:
                return True
            at -= 1
        return False

    def is_full(self) -> bool:
        """Whether the oldest transfers must leave before the next one begins."""
        return len(self.window) >= 2 * WINDOW

    def drop_oldest(self) -> list[Transfer]:
        """Forget the oldest transfers, and give them."""
        settled = self.window[:WINDOW]
        del self.window[:WINDOW]
        return settled

    def open(self, r: Rows, i: int, p: int, operation: str) -> Transfer:
        """Begin a transfer at PSN ``p`` with the packet at row ``i``."""
        transfer = opened(self.sink, self.connection, self.side, r, i, p, operation)
        self.add(transfer)
        self.sink.began(transfer)
        return transfer

    def add(self, transfer: Transfer) -> None:
        """Append a transfer to the window."""
        self.window.append(transfer)
        if not self.asks and transfer.operation in READ_DEPTH:
            self.asks = True

    def touch(self, transfer: Transfer, r: Rows, i: int) -> None:
        """The packet at row ``i`` is one of the transfer's requests."""
        self.touch_at(transfer, r.time_ns[i], r.frame[i])

    def touch_at(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        """A packet of this time is one of the transfer's requests."""
        if time_ns < transfer.first_ns:
            transfer.first_ns, transfer.first_frame = time_ns, frame
        if time_ns > transfer.request_end_ns:
            transfer.request_end_ns = time_ns
        self.extend(transfer, time_ns, frame)

    def extend(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        """The transfer lasts until this packet at least."""
        if time_ns >= transfer.last_ns:
            transfer.last_ns = time_ns
            if time_ns >= transfer.ack_ns:
                transfer.last_frame = frame

    def attribute(self, event: Event) -> Event:
        """Put an event on the transfer that holds its PSN, or keep it until there is one."""
        transfer = self.find(event.psn)
        if transfer is None:
            self._wait(self._numbers, event)
            self._numbers += 1
            return event
        return self.give(transfer, event)

    def _wait(self, number: int, event: Event) -> None:
        """Put an event on the heap, which is made by hand: ``heapq`` takes a tuple for each, and long."""
        if self.pending is None:
            self.pending = []
        heap = self.pending
        event.waits = number
        at = len(heap)
        heap.append(event)
        while at > 0:
            parent = (at - 1) >> 1
            above = heap[parent]
            if not _is_before(event, above):
                break
            heap[at] = above
            at = parent
        heap[at] = event

    def _take_first(self, heap: list[Event]) -> Event:
        """Take the event with the lowest PSN from the heap."""
        first, last = heap[0], heap.pop()
        end = len(heap)
        if end:
            at, child = 0, 1
            while child < end:
                below = heap[child]
                if child + 1 < end and _is_before(heap[child + 1], below):
                    child += 1
                    below = heap[child]
                if not _is_before(below, last):
                    break
                heap[at] = below
                at, child = child, 2 * child + 1
            heap[at] = last
        return first

    def give(self, transfer: Transfer, event: Event) -> Event:
        """Put an event on a transfer; gives the event that now says so, which may be an earlier one."""
        kind = event.kind
        if kind == "repeat":
            transfer.timeouts += event.opens and event.cause == "timeout"
            last = self.go_on(
                transfer, event.run, event.psn, event.time_ns, event.frame, event.bytes, event.first_sight
            )
            if last is not None:
                last.resent += event.resent
                return last
            self._sent_again(transfer, event.last_ns, event.last_frame)
        elif kind == "nak":
            transfer.naks += 1
        elif kind == "rnr_nak":
            transfer.rnr_naks += 1
        elif kind == "duplicate":
            transfer.duplicates += 1
            self.connection.duplicates += 1
        elif kind == "hole" and transfer.is_read and event.psn > transfer.first_psn:
            return event  # the PSNs of a READ's responses, before their number was known
        transfer.note(event)
        self.sink.changed(transfer)
        return event

    def go_on(
        self, transfer: Transfer, run: int, p: int, time_ns: int, frame: int, size: int, first_sight: int
    ) -> Event | None:
        """Add the packet ``p`` of a go-back to the event that has those before it, if the transfer has it."""
        last = transfer.events[-1] if transfer.events else None
        if last is None or last.kind != "repeat" or last.run != run or p <= last.last_psn:
            return None
        if time_ns < last.last_ns:  # what waited for its transfer may be older
            return None
        self._sent_again(transfer, time_ns, frame)
        last.last_psn, last.last_ns, last.last_frame = p, time_ns, frame
        last.count += 1
        last.bytes += size
        last.first_sight += first_sight
        return last

    def _sent_again(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        """A packet of the transfer came again."""
        transfer.retransmitted_packets += 1
        self.connection.retransmitted_packets += 1
        self.extend(transfer, time_ns, frame)
        transfer.request_end_ns = max(transfer.request_end_ns, time_ns)

    def take_back_duplicate(self, event: Event) -> None:
        """An event that said ``duplicate`` is none."""
        transfer = self.find(event.psn)
        if transfer is not None:
            transfer.duplicates -= 1
            self.connection.duplicates -= 1

    def give_pending(self) -> None:
        """Put the events that waited on their transfers; PSNs that are over and have none go astray."""
        end = self.progress.expected
        if self.window:
            last = self.window[-1]
            if last.last_psn >= end:  # a transfer may hold PSNs that are not seen yet
                end = last.last_psn + 1
        # All from this PSN on go on waiting, however many they are.
        heap = self.pending
        if not heap:
            return
        first = heap[0]
        if first.psn >= end:
            return
        due = []
        while first.psn < end:
            due.append(self._take_first(heap))
            if not heap:
                break
            first = heap[0]
        if len(due) > 1:
            due.sort(key=_NUMBER)  # in the order in which they happened
        for event in due:
            number, event.waits = event.waits, -1
            transfer = self.find(event.psn)
            if transfer is not None:
                self.give(transfer, event)
            elif event.psn >= self.progress.expected:
                self._wait(number, event)
            else:
                self.stray(event)

    def give_up_pending(self) -> None:
        """No transfer will hold the events that wait."""
        for event in sorted(self.pending or (), key=_NUMBER):
            self.stray(event)
        self._forget_pending()

    def _forget_pending(self) -> None:
        for event in self.pending or ():
            event.waits = -1
        self.pending = None

    def stray(self, event: Event) -> None:
        """An event of no transfer stays with the connection."""
        event.side = self.side
        self.connection.note_stray(event)

    def clear(self) -> None:
        """The PSNs begin anew: nothing before counts."""
        self.window = []
        self._forget_pending()
        self.open_read = None


def opened(
    sink: Sink, connection: Connection, side: int, r: Rows, i: int, p: int, operation: str
) -> Transfer:
    """A transfer that begins at PSN ``p`` with the packet at row ``i``, of which the sink is to hear."""
    time_ns, frame, opcode = r.time_ns[i], r.frame[i], r.opcode[i]
    transfer = begun(sink.next_id(), connection, side, operation, p, time_ns, frame)
    if _HAS_RETH[opcode] or operation in ATOMICS:
        if r.rkey[i] >= 0:
            transfer.va, transfer.key = r.remote_va[i], r.rkey[i]
        if operation == "WRITE" and r.dma_length[i] >= 0:
            transfer.announced = r.dma_length[i]
    return transfer
