# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Packets in the middle of a message that wait, taken together.

Most packets of large messages are in the middle, full, and follow the one before. Those of a flow whose other
half is not known are chained, as far as its lobby has room for them, and wait there: each packet that the
lobby keeps by itself notes here which one would go on like that. The result is as if each waited by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from rocekit import wire
from rocekit.packets.rows import COMPILED
from rocekit.wire.network import ECN_CE
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows

# For each flow: the packet that would go on, how many such may come, the chain, and the lobby it waits in.
_PSN, _OPCODE, _PAYLOAD, _ROOM, _COUNT, _FIRST, _LAST, _LOBBY, _WIDTH = range(9)
# For each lobby: how many packets may be chained before it is full, how many are, and until when.
_MOST, _CHAINED, _DUE_NS, _LOBBY_WIDTH = range(4)
_NOTHING: Final = -1
#: The order of packets is their number above this many bits, which count what comes between two of them.
_BETWEEN_BITS: Final = 24


def _middle(value: int) -> int:
    opcode = wire.OPCODES.get(value)
    if opcode is None or opcode.operation not in ("SEND", "WRITE"):
        return _NOTHING
    wanted = (opcode.transport, opcode.operation, wire.MIDDLE)
    return next(
        (v for v, o in wire.OPCODES.items() if (o.transport, o.operation, o.position) == wanted), _NOTHING
    )


#: By opcode: the MIDDLE opcode of such a message.
_MIDDLE: Final = tuple(_middle(v) for v in range(256))


def _column(size: int, value: int) -> Any:
    return np.full(size, value, np.int64) if COMPILED else [value] * size


def _state(size: int) -> Any:
    """Numbers of flows: all of them fit into 32 bits, and there are many flows."""
    return np.full(size, _NOTHING, np.int32) if COMPILED else [_NOTHING] * size


class Batch:
    """A batch of packets whose chains may be kept.

    Attributes:
        rows: the packets; after: by row: the next one of its chain.
        base: the order of row 0.
    """

    def __init__(self, rows: Rows, after: Any, base: int) -> None:
        self.rows = rows
        self.after = after
        self.base = base


class Chain:
    """Packets of one flow in the middle of a message, which follow one another.

    Attributes:
        batch: where they are; first, last: rows of the first and the last; count: how many they are.
    """

    def __init__(self) -> None:
        self.batch: Batch
        self.first = self.last = self.count = 0

    def order(self, i: int) -> int:
        """The order of row ``i``."""
        return self.batch.base + (i << _BETWEEN_BITS)

    def cut(self, order: int) -> Chain | None:
        """Keep what comes before ``order``, as the first does, and give the rest; None: there is none."""
        batch = self.batch
        if batch.base + (self.last << _BETWEEN_BITS) < order:
            return None
        i, count = self.first, 1
        while batch.base + (batch.after[i] << _BETWEEN_BITS) < order:
            i, count = batch.after[i], count + 1
        rest = chained(batch, batch.after[i], self.last, self.count - count)
        self.last, self.count = i, count
        return rest

    def places(self) -> list[int]:
        """Its rows."""
        found, i = [self.first], self.first
        for _ in range(self.count - 1):
            i = self.batch.after[i]
            found.append(i)
        return found


def chained(batch: Batch, first: int, last: int, count: int) -> Chain:
    """A chain, without the time that a constructor's arguments take."""
    chain: Chain = Chain.__new__(Chain)
    chain.batch, chain.first, chain.last, chain.count = batch, first, last, count
    return chain


Of = TypeVar("Of")


def singles(
    waiting: Iterable[tuple[int, Of, Rows, int, Chain | None]],
) -> Iterator[tuple[int, Of, Rows, int, Chain | None]]:
    """Waiting packets (see ``lobby``), each by itself."""
    for entry in waiting:
        chain = entry[4]
        if chain is None:
            yield entry
        else:
            for place in chain.places():
                yield chain.order(place), entry[1], entry[2], place, None


class Chains:
    """The chains of all flows within a batch of packets.

    Attributes:
        after: by row: the next one of its chain.
        rows: the batch.
        open: numbers of flows that have a chain in this batch.
        row: the batch's packet at hand, where one of no batch comes before it.
        lobbies: how many have numbers.
        held, waiters: packets that wait in all lobbies, those chained aside, and their flows.
    """

    def __init__(self) -> None:
        self._state = _state(0)
        self._flows = 0
        self._lobbies = _column(0, 0)
        self.lobbies = self.held = self.waiters = 0
        self.after = _column(0, 0)
        self._batch: Batch | None = None
        self.row = 0
        self._before = 0
        self._between = 0
        self.open: list[int] = []
        self.rows: Rows | None = None

    def begin(self, r: Rows, flows: int) -> None:
        """A batch, in which flows have numbers below ``flows``."""
        if self.rows is not None:
            self._before += len(self.rows)
        self._between = 0
        self.rows = r
        self.open = []
        if self._batch is not None or len(self.after) < len(r):
            self.after = _column(len(r), 0)
            self._batch = None
        if flows > self._flows:
            grown = _state(2 * flows * _WIDTH)
            grown[: self._flows * _WIDTH] = self._state
            self._state, self._flows = grown, 2 * flows

    def size(self) -> int:
        """How many packets the batch has."""
        return 0 if self.rows is None else len(self.rows)

    def takes(self, start: int, end: int) -> int:
        """Chain the rows from ``start`` on that go on as noted; gives the first that does not, or ``end``.

        Flows and rows are those that ``begin`` made room for; compiled code does not check that again.
        """
        r = self.rows
        assert r is not None
        i = start
        while i < end:
            flow = r.flow[i]
            at = flow * _WIDTH
            if self._state[at + _PSN] != r.psn[i] or self._state[at + _OPCODE] != r.opcode[i]:
                break
            if self._state[at + _PAYLOAD] != r.payload_length[i] or self._state[at + _ROOM] <= 0:
                break
            if r.ecn[i] == ECN_CE:
                break
            if self._state[at + _LOBBY] >= 0:
                lobby = self._state[at + _LOBBY] * _LOBBY_WIDTH
                if self._lobbies[lobby + _CHAINED] >= self._lobbies[lobby + _MOST]:
                    break
                if r.time_ns[i] > self._lobbies[lobby + _DUE_NS]:
                    break
                self._lobbies[lobby + _CHAINED] += 1
            self._state[at + _PSN] = (r.psn[i] + 1) & MASK
            self._state[at + _ROOM] -= 1
            if self._state[at + _LAST] < 0:
                self._state[at + _FIRST] = i
                self._state[at + _COUNT] = 0
                self.open.append(flow)
            else:
                self.after[self._state[at + _LAST]] = i
            self._state[at + _LAST] = i
            self._state[at + _COUNT] += 1
            i += 1
        return i

    def last(self, flow: int) -> int:
        """The last row of a flow's chain; -1 when it has none."""
        return self._state[flow * _WIDTH + _LAST]

    def first(self, flow: int) -> int:
        return self._state[flow * _WIDTH + _FIRST]

    def count(self, flow: int) -> int:
        return self._state[flow * _WIDTH + _COUNT]

    def clear(self, flow: int) -> None:
        """A flow's chain was taken; what may go on stays noted."""
        self._state[flow * _WIDTH + _LAST] = _NOTHING

    def request(self, flow: int, opcode: int) -> None:
        """The last request on a flow had this opcode."""
        self._state[flow * _WIDTH + _OPCODE] = _MIDDLE[opcode]

    def opcode(self, flow: int) -> int:
        """The opcode that goes on with the last request; -1: none."""
        return self._state[flow * _WIDTH + _OPCODE]

    def expect(self, flow: int, psn: int, payload: int, room: int) -> None:
        """Note what may go on: up to ``room`` packets of ``payload`` bytes from ``psn`` on."""
        at = flow * _WIDTH
        self._state[at + _PSN] = psn & MASK if room > 0 else _NOTHING
        self._state[at + _PAYLOAD], self._state[at + _ROOM] = payload, room
        self._state[at + _LOBBY] = _NOTHING

    # ------------------------------------------------------------------ flows that wait

    def order_of(self, r: Rows, i: int) -> int:
        """The order in which a packet came, of this batch or of none (see ``suspect_icrcs``)."""
        if r is self.rows:
            return (self._before + i) << _BETWEEN_BITS
        self._between += 1
        return ((self._before + self.row - 1) << _BETWEEN_BITS) + self._between

    def lobby(self) -> int:
        """A number for a lobby."""
        if (self.lobbies + 1) * _LOBBY_WIDTH > len(self._lobbies):
            grown = _column(2 * (self.lobbies + 1) * _LOBBY_WIDTH, 0)
            grown[: self.lobbies * _LOBBY_WIDTH] = self._lobbies[: self.lobbies * _LOBBY_WIDTH]
            self._lobbies = grown
        self.lobbies += 1
        return self.lobbies - 1

    def limit(self, lobby: int, most: int, due_ns: int) -> None:
        """A lobby has room for ``most`` chained packets, and until ``due_ns``."""
        self._lobbies[lobby * _LOBBY_WIDTH + _MOST] = most
        self._lobbies[lobby * _LOBBY_WIDTH + _DUE_NS] = due_ns

    def chained(self, lobby: int) -> int:
        """How many packets of a lobby's flows are chained."""
        return self._lobbies[lobby * _LOBBY_WIDTH + _CHAINED]

    def await_more(self, flow: int, psn: int, payload: int, room: int, lobby: int) -> None:
        """Note what may go on of a flow that waits."""
        self.expect(flow, psn, payload, room)
        self._state[flow * _WIDTH + _LOBBY] = lobby

    def take(self, flow: int) -> Chain | None:
        """The chain of a flow that waits, which ends here; None: there is none."""
        at = flow * _WIDTH
        last, count, lobby = self._state[at + _LAST], self._state[at + _COUNT], self._state[at + _LOBBY]
        if last < 0 or lobby < 0 or self.rows is None:
            return None
        self._state[at + _LAST] = _NOTHING
        self._lobbies[lobby * _LOBBY_WIDTH + _CHAINED] -= count
        self._lobbies[lobby * _LOBBY_WIDTH + _MOST] -= count
        if self._batch is None:
            self._batch = Batch(self.rows, self.after, self._before << _BETWEEN_BITS)
        return chained(self._batch, self._state[at + _FIRST], last, count)
