"""UD messages: one packet each, acknowledged by nobody (IBA Vol. 1, 9.8.3).

The DETH names the sending QP, so two QPs that send to each other are known at once. A PSN that comes again
was duplicated by the network: a UD requester repeats nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rocekit.packets.rows import Rows
from rocekit.track.events import happened
from rocekit.track.ledger import Sink
from rocekit.track.pairs.waiting import SCOPE
from rocekit.track.repeats import NO_COPY_NS
from rocekit.track.transfers import SENT, Transfer
from rocekit.wire import IMMDT, OPCODES

if TYPE_CHECKING:
    from rocekit.packets.wrapping import Wrapping
    from rocekit.track.connections import Connection

#: A PSN that comes again within so many messages is a duplicate.
REMEMBERED: Final = 4096
_QPN_BITS: Final = 24
_NO_QPN: Final = (1 << _QPN_BITS) - 1
_HAS_IMMEDIATE: Final = tuple(v in OPCODES and IMMDT in OPCODES[v].headers for v in range(256))


class Datagrams:
    """The UD packets of a capture.

    Args:
        sink: takes the transfers.
        connect: makes a connection of two addresses and two QPNs, the sender's first, and what is around.
    """

    def __init__(
        self, sink: Sink, connect: Callable[[int, int, list[int | None], Wrapping], Connection]
    ) -> None:
        self._sink = sink
        self._connect = connect
        self._ends: dict[tuple[int, int], tuple[Connection, int]] = {}
        # Whether any packet has a scope: until then only the other direction's key finds a connection.
        self._scoped = False
        # Connections with packets of one direction only, by the key of the other one without its scope.
        self._one_way: dict[tuple[int, int], list[Connection]] = {}
        # Those of these that have packets of both directions by now: a list of many is not searched.
        self._both_ways: set[Connection] = set()
        self._seen: dict[tuple[int, int], tuple[Transfer, int]] = {}
        self._order: deque[tuple[int, int]] = deque()

    def _plain_key(self, r: Rows, i: int) -> tuple[int, int]:
        sender: int | None = r.lesser("src_qpn")[i]
        if sender is None:  # the packet is cut before its DETH
            sender = _NO_QPN
        return r.src[i] << _QPN_BITS | sender, r.dst[i] << _QPN_BITS | r.dest_qpn[i]

    def _key(self, r: Rows, i: int) -> tuple[int, int]:
        plain = self._plain_key(r, i)
        scope = r.around(i).scope
        if not scope:
            return plain
        if not self._scoped:
            self._begin_scopes()
        return plain[0] + scope * SCOPE, plain[1] + scope * SCOPE

    def _connected(self, r: Rows, i: int) -> Connection:
        """A new connection, whose ``a`` sends packet ``i``."""
        return self._connect(r.src[i], r.dst[i], [r.lesser("src_qpn")[i], r.dest_qpn[i]], r.around(i))

    def _begin_scopes(self) -> None:
        """The first packet in a scope came."""
        self._scoped = True
        for (here, there), (connection, side) in self._ends.items():
            if side == 0 and (there, here) not in self._ends:
                self._one_way[there, here] = [connection]

    def _meet(self, r: Rows, i: int, key: tuple[int, int]) -> tuple[Connection, int]:
        """The connection of the first packet that goes this way in its scope, and the side that sent it.

        It may be the other direction of a connection in another scope, if that has one direction only: a
        mirror may show a tag in one direction only.
        """
        known = self._ends.get((key[1], key[0]))
        if not self._scoped:
            if known is None:
                connection, side = self._connected(r, i), 0
            else:
                connection, side = known[0], 1 - known[1]
            self._ends[key] = connection, side
            return connection, side
        plain = self._plain_key(r, i)
        waiting = self._one_way.get(plain, []) if known is None else []
        while waiting and waiting[0] in self._both_ways:
            self._both_ways.remove(waiting.pop(0))
        if waiting:
            connection, side = waiting.pop(0), 1
            connection.has_around(1, r.around(i))
        elif known is None:
            connection, side = self._connected(r, i), 0
            self._one_way.setdefault((plain[1], plain[0]), []).append(connection)
        else:
            connection, side = known[0], 1 - known[1]
            if self._one_way.get(plain) == [connection]:
                del self._one_way[plain]
            else:
                self._both_ways.add(connection)
        self._ends[key] = connection, side
        return connection, side

    def knows(self, r: Rows, i: int) -> bool:
        """Whether the two QPs of packet ``i`` have been seen."""
        key = self._key(r, i)
        return key in self._ends or (key[1], key[0]) in self._ends

    def take(self, r: Rows, i: int) -> Connection:
        """Take packet ``i``; gives its connection."""
        key = self._key(r, i)
        known = self._ends.get(key)
        if known is None:
            known = self._meet(r, i, key)
        connection, side = known
        time_ns, frame, psn, length = r.time_ns[i], r.frame[i], r.psn[i], r.payload_length[i]
        identity = (connection.id << 1 | side, psn)
        ip_id = r.ip_id[i]
        before, before_id = self._seen.get(identity, (None, 0))
        # Another IPv4 identification is another datagram: a QP may start again with the PSNs that it had.
        is_like = before is not None and before.bytes == length and ip_id == before_id
        if before is not None and is_like and time_ns - before.first_ns < NO_COPY_NS:
            before.duplicates += 1
            connection.duplicates += 1
            copy = happened("duplicate", time_ns, frame, psn, psn, 1)
            copy.last_ns, copy.sent_psn, copy.copied = time_ns, psn, int(ip_id != 0)
            before.note(copy)
            return connection
        transfer = Transfer(self._sink.next_id(), connection, side, "SEND", psn, time_ns, frame)
        transfer.bytes, transfer.packets, transfer.status, transfer.ended = length, 1, SENT, True
        if _HAS_IMMEDIATE[r.opcode[i]]:
            transfer.with_immediate, transfer.immediate = True, r.lesser("immediate")[i]
        self._seen[identity] = transfer, ip_id
        self._order.append(identity)
        if len(self._order) > REMEMBERED:
            forgotten = self._seen.pop(self._order.popleft(), None)
            if forgotten is not None:
                self._sink.settled([forgotten[0]])
        self._sink.began(transfer)
        self._sink.ended(transfer)
        return connection
