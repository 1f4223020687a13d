"""The transfers that a summary keeps: those with trouble, and a few of the others.

In a large capture most transfers are plain: nothing happened to them. Where nobody will ask for each, they
are counted and dropped as soon as nothing can change them. The largest of each direction of each connection
stay, so that what rules ask of all transfers (was any acknowledged? how large was the largest?) has the same
answer. A capture of one direction has no ACKs: there the same is done with unacknowledged transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappush, heappushpop
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from rocekit.machine.signals import OFTEN, take_signals
from rocekit.track.ledger import READ_KIND
from rocekit.track.transfers import ACKED, INCOMPLETE, SENT, UNACKNOWLEDGED
from rocekit.wire import READ_DEPTH

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

_ID: Final = attrgetter("id")
#: The rest of so many dropped messages is waited for; what comes of older ones is not counted.
MOST_UNDER_WAY: Final = 4096


class Kept:
    """Takes every transfer and gives back those that are kept.

    Args:
        slowest: how many of the plain transfers to keep, the slowest of all connections.
    """

    def __init__(self, slowest: int) -> None:
        self._left_out: dict[str, int] = {}
        self._slowest = slowest
        self._slow: list[tuple[int, int, Transfer]] = []
        self._slow_unanswered: list[tuple[int, int, Transfer]] = []
        # In no order; each transfer has its own ``place`` here.
        self._kept: list[Transfer] = []
        self._standing: dict[int, Transfer] = {}
        # Dropped by ``forget`` in the middle of their messages, and the bytes that are counted of each.
        self._under_way: list[tuple[Transfer, int]] = []

    def add(self, transfer: Transfer) -> None:
        transfer.place = len(self._kept)
        self._kept.append(transfer)

    def _take_out(self, transfer: Transfer) -> None:
        """The last one takes its place."""
        last = self._kept.pop()
        if last is not transfer:
            self._kept[transfer.place] = last
            last.place = transfer.place
        transfer.place = -1

    def settle(self, transfers: Iterable[Transfer]) -> None:
        """Nothing changes these transfers any more."""
        for n, transfer in enumerate(transfers, 1):
            if n % OFTEN == 0:  # at the end, all that are kept
                take_signals()
            if transfer.events or transfer.status not in (ACKED, SENT):
                continue
            if transfer.operation in READ_DEPTH and _is_counted(transfer):
                continue
            if transfer.place >= 0:
                self._take_out(transfer)
                self._drop(transfer)

    def give_up(self, transfers: Iterable[Transfer]) -> None:
        """These transfers ended without a response."""
        for transfer in transfers:
            if not transfer.events and transfer.status == UNACKNOWLEDGED and transfer.place >= 0:
                self._take_out(transfer)
                self._drop(transfer)

    def _drop(self, transfer: Transfer) -> None:
        connection, last_ns = transfer.connection, transfer.last_ns
        connection.bytes += transfer.bytes
        self._left_out[transfer.status] = self._left_out.get(transfer.status, 0) + 1
        kind = READ_KIND * (transfer.operation == "READ") + (transfer.last_psn > transfer.first_psn)
        unanswered = transfer.status == UNACKNOWLEDGED
        key = connection.id << 4 | unanswered << 3 | transfer.side << 2 | kind
        standing = self._standing.get(key)
        if (
            standing is None
            or standing.bytes < transfer.bytes
            or (standing.bytes == transfer.bytes and standing.id > transfer.id)
        ):
            self._standing[key] = transfer
        if transfer.ack_ns > last_ns:
            last_ns = transfer.ack_ns
        duration_ns = last_ns - transfer.first_ns
        slow = self._slow_unanswered if unanswered else self._slow
        if len(slow) < self._slowest:
            heappush(slow, (duration_ns, -transfer.id, transfer))
        elif slow:
            least_ns, number, _ = slow[0]  # else this one would leave at once
            if duration_ns > least_ns or (duration_ns == least_ns and -transfer.id > number):
                heappushpop(slow, (duration_ns, -transfer.id, transfer))

    def leaves_out(
        self, connection: Connection, side: int, kind: int, status: str, size: int, duration_ns: int
    ) -> bool:
        """Count and drop a plain transfer that is no object, unless it is to be kept."""
        if kind >= READ_KIND and _are_counted(connection, side):
            return False
        slow = self._slow
        if slow and duration_ns >= slow[0][0]:
            return False
        if len(slow) < self._slowest:
            return False
        standing = self._standing.get(connection.id << 4 | side << 2 | kind)
        if standing is None or standing.bytes < size:
            return False
        connection.bytes += size
        self._left_out[status] = self._left_out.get(status, 0) + 1
        return True

    def _in_order(self) -> list[Transfer]:
        return in_order(self._kept)

    def forget(self) -> None:
        """Count and drop everything kept so far, for whoever follows a port for days."""
        self._count_rest()
        dropped = self._in_order()
        for transfer in dropped:
            transfer.place = -1
            self._drop(transfer)
        waiting = [t for t, _ in self._under_way] + dropped
        self._under_way = [(t, t.bytes) for t in waiting if not is_over(t)][-MOST_UNDER_WAY:]
        self._kept.clear()
        self._standing.clear()
        self._slow.clear()
        self._slow_unanswered.clear()

    def _count_rest(self) -> None:
        """Count the bytes that came since of messages that were dropped."""
        for transfer, counted in self._under_way:
            connection = transfer.connection
            connection.bytes += transfer.bytes - counted

    @property
    def left_out(self) -> Counter[str]:
        """How many were dropped, by status; final after :meth:`finish`."""
        return +Counter(self._left_out)

    def finish(self) -> list[Transfer]:
        """The transfers that were kept, in order of their ids; none will change any more."""
        self.settle(self._in_order())
        for transfer in self._kept:
            connection = transfer.connection
            connection.bytes += transfer.bytes
        take_signals()
        self._count_rest()
        slow = [entry[2] for entry in (*self._slow, *self._slow_unanswered)]
        plain = {t.id: t for t in (*self._standing.values(), *slow)}
        for transfer in plain.values():
            self._left_out[transfer.status] -= 1
        return in_order([*self._kept, *plain.values()])


def is_over(transfer: Transfer) -> bool:
    """Whether no packet will add bytes to a message."""
    return transfer.ended or transfer.status == INCOMPLETE


def _is_counted(transfer: Transfer) -> bool:
    """Whether a rule counts how many of these are outstanding at a time: their number was agreed on."""
    return transfer.operation in READ_DEPTH and _are_counted(transfer.connection, transfer.side)


def _are_counted(connection: Connection, side: int) -> bool:
    negotiated = connection.negotiated
    return (
        negotiated[side].initiator_depth is not None or negotiated[1 - side].responder_resources is not None
    )


def in_order(transfers: list[Transfer]) -> list[Transfer]:
    """Transfers in order of their ids; a flood has them in it, and a number for each takes long."""
    before = -1
    for transfer in transfers:
        if transfer.id < before:
            return sorted(transfers, key=_ID)
        before = transfer.id
    return [*transfers]
