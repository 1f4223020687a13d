"""The ledger of one side's requests: which transfer holds a PSN, and what befell it there.

Everything works on unwrapped PSNs. What happens to a PSN (sent again, refused, late) is an ``Event`` on the
transfer that holds it; an event for a PSN that no transfer holds yet waits until one does.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.track.transfers import Event, Transfer, begun

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection

#: Finished transfers kept so that late repeats find theirs.
WINDOW: Final = 1024
#: More PSNs than a requester has outstanding: 64 MB at the largest path MTU, which is 400 Gb/s for over a
#: millisecond. What lies farther back was answered, whether the capture shows it or not.
OUTSTANDING: Final = 1 << 14

ATOMICS: Final = frozenset({"FETCH_ADD", "CMP_SWAP"})
#: Operations that an answer of their own completes, and no acknowledgement of a later PSN.
NEEDS_ANSWER: Final = ATOMICS | {"READ", "FLUSH", "ATOMIC_WRITE"}
_HAS_RETH: Final = frozenset(v for v, o in wire.OPCODES.items() if wire.RETH in o.headers)


class Sink:
    """Takes the transfers of all connections as they begin, change and end."""

    def next_id(self) -> int:
        """The number of the next transfer."""
        raise NotImplementedError

    def began(self, transfer: Transfer) -> None:
        raise NotImplementedError

    def changed(self, transfer: Transfer) -> None:
        """An event befell it."""
        raise NotImplementedError

    def ended(self, transfer: Transfer) -> None:
        """It is acknowledged, refused, or will not go on; later repeats may still change it."""
        raise NotImplementedError

    def settled(self, transfers: list[Transfer]) -> None:
        """They lie too far back for a repeat to change them."""
        raise NotImplementedError

    def forgets(self) -> bool:
        """Whether transfers that tell nothing more are dropped, so that they must not be held on to."""
        return False

    def given_up(self, transfers: list[Transfer]) -> None:
        """They have ended unanswered, and no answer that is to come is to them."""
        raise NotImplementedError


class Ledger:
    """The transfers of one side of a connection, by PSN.

    Attributes:
        expected: every PSN below is assembled into a transfer, or given up as never shown by the capture.
        high: one past the highest PSN seen.
        acked: every PSN below is acknowledged.
        open_read: a READ whose number of PSNs is not known yet.
        building: the message whose last packet has not come.
        unacked: transfers in order that nothing acknowledged.
    """

    def __init__(self, connection: Connection, side: int, sink: Sink, reliable: bool) -> None:
        self._set_up(connection, side, sink, reliable)

    def _set_up(self, connection: Connection, side: int, sink: Sink, reliable: bool) -> None:
        """What each class of the chain begins with; compiled, calling it takes a fraction of ``__init__``."""
        self.connection = connection
        self.side = side
        self.sink = sink
        self.reliable = reliable
        self.expected = 0
        self.high = 0
        self.acked = 0
        self.open_read: Transfer | None = None
        self.building: Transfer | None = None
        self.unacked: list[Transfer] = []
        self.window: list[Transfer] = []
        self.firsts: list[int] = []
        self.pending: list[Event] = []

    def _find(self, p: int) -> Transfer | None:
        """The transfer that holds PSN ``p``."""
        at = bisect_right(self.firsts, p) - 1
        if at < 0:
            return None
        transfer = self.window[at]
        return transfer if p <= transfer.last_psn else None

    def _open(self, r: Rows, i: int, p: int, operation: str) -> Transfer:
        time_ns, frame, opcode = r.time_ns[i], r.frame[i], r.opcode[i]
        transfer = begun(self.sink.next_id(), self.connection, self.side, operation, p, time_ns, frame)
        if opcode in _HAS_RETH or operation in ATOMICS:
            transfer.remote_va, transfer.rkey = r.remote_va[i], r.rkey[i]
            if operation == "WRITE":
                transfer.length = r.dma_length[i]
        self.window.append(transfer)
        self.firsts.append(p)
        if len(self.window) > 2 * WINDOW:
            settled = self.window[:WINDOW]
            del self.window[:WINDOW], self.firsts[:WINDOW]
            self._give_up(p)
            self.sink.settled(settled)
        self.sink.began(transfer)
        if self.reliable:
            self.unacked.append(transfer)
        return transfer

    def _give_up(self, p: int) -> None:
        """Wait no longer for answers to what lies far before PSN ``p``."""
        raise NotImplementedError

    def _touch(self, transfer: Transfer, r: Rows, i: int) -> None:
        time_ns, frame = r.time_ns[i], r.frame[i]
        if time_ns < transfer.first_ns:
            transfer.first_ns, transfer.first_frame = time_ns, frame
        if time_ns > transfer.request_end_ns:
            transfer.request_end_ns = time_ns
        self._extend(transfer, time_ns, frame)

    def _extend(self, transfer: Transfer, time_ns: int, frame: int) -> None:
        if time_ns >= transfer.last_ns:
            transfer.last_ns = time_ns
            if transfer.acked_ns is None or time_ns >= transfer.acked_ns:
                transfer.last_frame = frame

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
                and event.time_ns >= last.last_ns  # what waited for its transfer may be older
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
        self.sink.changed(transfer)
        return event

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
