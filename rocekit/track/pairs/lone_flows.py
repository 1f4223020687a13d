# cython: boundscheck=False
"""Flows of which one request came so far, and those whose other half never comes: what floods consist of.

A flow of one packet waits for its other half as a few numbers. As soon as another packet may have to do with
it, it and all others between its hosts become flows like any, as if they had been from the start. At the end
of a capture most of a flood are still numbers, and each becomes a connection that never was a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.machine.signals import OFTEN, take_signals
from rocekit.packets.rows import COMPILED
from rocekit.track.connections import Connection, connected
from rocekit.track.lobby import Lobby, is_due
from rocekit.track.pairing import Pairing
from rocekit.track.pairs.waiting import LONE, NONE_HELD, Flow, hosts_key
from rocekit.wire import ENDS
from rocekit.wire.packet_kinds import REQUEST, TRANSPORT

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.pairs.handshake import Offer
    from rocekit.track.pairs.known_pairs import Pair

# Of each: its batch, its row there, in which order it came, and the place of the next one between its hosts.
# Of the first one there: the place of the last, and how many they are.
_BATCH, _ROW, _ORDER, _NEXT, _LAST, _COUNT, _WIDTH = range(7)
_LEAST: Final = 64 * _WIDTH
_NONE: Final = -1
_BATCHES: Final = 16
_FOREVER_NS: Final = (1 << 63) - 1


def _words(size: int) -> Any:
    """Numbers that say nothing yet, in memory that is not touched."""
    return np.empty(size, np.int64) if COMPILED else [0] * size


class LoneTable:
    """The packets of lone flows: a chain of them for each two hosts.

    Attributes:
        count: how many are lone still; end: behind the place of the last one that came.
    """

    def __init__(self) -> None:
        self.count = self.end = self._batch = 0
        self._words = _words(0)
        self._room = 0
        # What the packets came in, while one of each is lone, and how many of each are.
        self._batches: list[Rows | None] = []
        self._left: Any = _words(0)
        self._latest: Rows | None = None

    def add(self, r: Rows, i: int, order: int, first: int) -> int:
        """One more, behind the ``first`` one between its hosts; −1: it is that. Gives its place."""
        if self._latest is not r:
            self._begin(r)
        batch = self._batch
        at = self.end
        if at == self._room:
            self._grow()
        self.end += _WIDTH
        self.count += 1
        self._left[batch] += 1
        self._words[at + _BATCH], self._words[at + _ROW], self._words[at + _ORDER] = batch, i, order
        self._words[at + _NEXT] = _NONE
        if first < 0:
            first = at
            self._words[at + _COUNT] = 0
        else:
            self._words[self._words[first + _LAST] + _NEXT] = at
        self._words[first + _LAST] = at
        self._words[first + _COUNT] += 1
        return at

    def _begin(self, r: Rows) -> None:
        """Those that come now are of another batch, or of one of which none is lone any more."""
        self._batch = len(self._batches)
        self._batches.append(r)
        self._latest = r
        if self._batch == len(self._left):
            grown = _words(2 * self._batch + _BATCHES)
            grown[: self._batch] = self._left
            self._left = grown
        self._left[self._batch] = 0

    def _grow(self) -> None:
        grown = _words(2 * self._room + _LEAST)
        grown[: self._room] = self._words
        self._words = grown
        self._room = len(grown)

    def rows(self, at: int) -> Rows | None:
        """What it came in; None: it and all others of that are lone no longer."""
        return self._batches[self._words[at + _BATCH]]

    def row(self, at: int) -> int:
        found: int = self._words[at + _ROW]
        return found

    def order(self, at: int) -> int:
        found: int = self._words[at + _ORDER]
        return found

    def after(self, at: int) -> int:
        """The next one between the same hosts; −1: it is the last."""
        found: int = self._words[at + _NEXT]
        return found

    def together(self, first: int) -> int:
        """How many there are between the hosts of the first one there."""
        found: int = self._words[first + _COUNT]
        return found

    def time_ns(self, at: int) -> int:
        """When its packet came."""
        r = self.rows(at)
        assert r is not None
        return r.time_ns[self.row(at)]

    def lead(self, at: int, first: int, gone: int) -> None:
        """The first one between its hosts is another now: so many before it are gone."""
        self._words[at + _LAST], self._words[at + _COUNT] = (
            self._words[first + _LAST],
            self._words[first + _COUNT] - gone,
        )

    def take_out(self, at: int) -> None:
        """It is lone no longer."""
        batch = self._words[at + _BATCH]
        self._left[batch] -= 1
        if not self._left[batch]:
            if self._batches[batch] is self._latest:
                self._latest = None
            self._batches[batch] = None
        self.count -= 1
        if not self.count:  # most captures have few, and one after the other
            self.end = 0
            self._batches = []


class LoneFlows(Pairing):
    """Pairing of flows, of which those that have one packet are numbers."""

    def __init__(self, pairs: Iterable[Pair], on_connection: Callable[[Connection], None] | None) -> None:
        super().__init__(pairs, on_connection)
        self._lone = LoneTable()

    def _stays_lone(self, r: Rows, i: int) -> bool:
        """Whether the request at row ``i`` is the first packet of a flow, which is now among the lone ones.

        A lobby would be overdue at the same packet.
        """
        number, lone, chains = r.flow[i], self._lone, self._chains
        if number < len(self._by_number) and self._by_number[number] is not None:
            return False
        opcode = r.opcode[i]
        if not self._may_be_lone or not ENDS[opcode] or TRANSPORT[opcode] == "UC" or r is not chains.rows:
            return False
        key = hosts_key(r.src[i], r.dst[i])
        found: Any = self._lobbies.get(key)
        if found is not None and not isinstance(found, int):
            return False
        order = chains.order_of(r, i)
        if found is None:
            self._lobbies[key] = lone.add(r, i, order, _NONE)
        else:
            first = found
            before = lone.rows(first)
            assert before is not None
            if is_due(lone.together(first) + 1, r.time_ns[i] - before.time_ns[lone.row(first)]):
                return False
            lone.add(r, i, order, first)
        if number >= len(self._by_number):
            self._by_number += [None] * (2 * number + 1 - len(self._by_number))
        self._by_number[number] = LONE
        chains.waiters += 1
        chains.held += 1
        return True

    def _know(self, key: int) -> Lobby | Flow | None:
        """Make the lone flows between two hosts flows like any; gives what is there then."""
        at: Any = self._lobbies[key]
        self._lobbies[key] = None
        while at >= 0:
            r = self._lone.rows(at)
            assert r is not None
            i, order, after = self._lone.row(at), self._lone.order(at), self._lone.after(at)
            self._lone.take_out(at)
            if self._lone.count % OFTEN == 0:
                take_signals()
            self._chains.waiters -= 1
            self._chains.held -= 1
            self._by_number[r.flow[i]] = None
            flow = self._flow(r, i)
            self._wait(flow, r, i, REQUEST, order)
            lobby: Lobby | None = flow.lobby
            if lobby is not None:
                self._chains.request(r.flow[i], r.opcode[i])
                lobby.go_on(flow, r, i)
            at = after
        found: Any = self._lobbies[key]
        return found

    def _know_any(self, key: int) -> None:
        """Make the lone flows between two hosts flows like any, if there are such."""
        if isinstance(self._lobbies.get(key), int):
            self._know(key)

    def _know_all(self) -> None:
        """Make all lone flows flows like any."""
        lone, at = self._lone, 0
        while lone.count:  # none is left behind the last
            r = lone.rows(at)
            if r is not None:
                i = lone.row(at)
                self._know_any(hosts_key(r.src[i], r.dst[i]))
            at += _WIDTH

    # ------------------------------------------------------------------ letting go (see ``eviction``)

    def _lone_times(self) -> list[int]:
        """When the packets of all lone flows came."""
        times: list[int] = []
        for found in self._lobbies.values():
            at = found if isinstance(found, int) else _NONE
            while at >= 0:
                times.append(self._lone.time_ns(at))
                at = self._lone.after(at)
        return times

    def _let_all_go(self, key: int, since_ns: int) -> None:
        """Track all that waits between two hosts alone; its other halves may still be found.

        Lone flows of before ``since_ns`` never become flows: they are about to be forgotten.
        """
        found: Any = self._lobbies[key]
        if isinstance(found, int):
            first = self._end_lone(found, since_ns)
            self._lobbies[key] = None if first < 0 else first
            found = None if first < 0 else self._know(key)
        if isinstance(found, Lobby):
            self._empty(found, resting=True)
        elif found is not None and found.connection is None:
            self._end_flow(found)

    def _put_back(self, flow: Flow) -> None:
        """The other half of a flow that is tracked alone may still be found."""
        key = hosts_key(flow.src, flow.dst)
        found = self._lobbies.get(key)
        if found is None:
            self._lobbies[key] = flow
        else:
            lobby = flow.lobby = self._lobby_at(key, found)
            lobby.take_in(flow)

    def learn(self, first: Offer, second: Offer) -> None:
        self._know_all()
        super().learn(first, second)
        self._may_be_lone = False

    # ------------------------------------------------------------------ the end of the capture

    def _end_waiting(self, found: Lobby | Flow | int | None) -> None:
        """Pair what can be paired of all that waits between two hosts; the rest is alone for good."""
        if isinstance(found, int):
            self._end_lone(found)
            return
        if isinstance(found, Flow):
            if found.connection is None:
                self._end_flow(found)
            return
        lobby: Any = found
        self._pair_rest(lobby)
        flows = [*reversed(lobby.flows)]
        lobby.flows, lobby._queue = {}, []
        while flows:
            flow = flows.pop()  # its memory is used again while others end
            flow.lobby = None
            if flow.connection is None:
                self._end_flow(flow)

    def _end_flow(self, flow: Flow) -> None:
        """Track the packets of a flow that waited for another half in vain."""
        waited, flow.held = flow.held, NONE_HELD
        self._chains.held -= flow.waits
        flow.waits = 0
        if flow.turn >= 0:
            self._chains.waiters -= 1
            flow.turn = -1
        if flow.transport == "CNP":  # nothing but CNPs, to a QP of which nothing else is known
            self.stray_cnps += len(waited)
            return
        connection = self._connect_alone(flow)
        if len(waited) == 1 and self._keeps_alone(flow, waited[0]):
            self._count(connection, waited[0][2], waited[0][3])
        else:
            self._replay(waited)

    def _end_lone(self, first: int, since_ns: int = _FOREVER_NS) -> int:
        """Each of the lone flows between two hosts becomes a connection, but those that came since a time.

        Gives the place of the first of these; −1: there is none.
        """
        lone, addresses, at, gone = self._lone, self._addresses, first, 0
        while at >= 0:
            r = lone.rows(at)
            assert r is not None
            i, after = lone.row(at), lone.after(at)
            if r.time_ns[i] >= since_ns:
                lone.lead(at, first, gone)
                break
            gone += 1
            connection = connected(
                len(self.connections),
                TRANSPORT[r.opcode[i]],
                [addresses[r.src[i]], addresses[r.dst[i]]],
                [None, r.dest_qpn[i]],
                None,
            )
            around = r.around(i)
            connection.is_in(around, around)
            self._add(connection)
            self._sides[2 * connection.id] = r, i
            self._count(connection, r, i)
            lone.take_out(at)
            self._chains.waiters -= 1
            self._chains.held -= 1
            at = after
        return at
