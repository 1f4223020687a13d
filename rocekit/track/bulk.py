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
# Of each chained packet: its time, its frame reference, and which one it is (the number of its batch, its row
# there, and its IPv4 identification). Five of a chain are a block, with the place of the next one at its end.
_TIME, _FRAME, _WHICH, _PACKET_WIDTH = range(4)
_BLOCK: Final = 16
_LAST_OF_BLOCK: Final = 12
_NEXT_BLOCK: Final = 15
_ID_BITS: Final = 16
_ID_MASK: Final = (1 << _ID_BITS) - 1
_ROW_BITS: Final = 32
_ROW_MASK: Final = 0xFFFFFFFF  # compiled, 1 would be shifted as a C int
#: So many batches have numbers. There is room for the packets of one, of so many words each, and once
#: that was full for those of so many.
_BATCHES: Final = 1 << 14
_ROOM_FOR: Final = 8
_PER_PACKET: Final = 4
_LEAST_ROOM: Final = 64 * _BLOCK
# For each lobby: how many packets may be chained before it is full, how many are, and until when.
_MOST, _CHAINED, _DUE_NS, _LOBBY_WIDTH = range(4)
_NOTHING: Final = -1
#: The order of packets is their number above this many bits, which count what comes between two of them.
_BETWEEN_BITS: Final = 24


_MIDDLES: Final = {
    (o.transport, o.operation): v for v, o in wire.OPCODES.items() if o.position == wire.MIDDLE
}


def _middle(value: int) -> int:
    opcode = wire.OPCODES.get(value)
    if opcode is None or opcode.operation not in ("SEND", "WRITE"):
        return _NOTHING
    return _MIDDLES.get((opcode.transport, opcode.operation), _NOTHING)


#: By opcode: the MIDDLE opcode of such a message.
_MIDDLE: Final = tuple(_middle(v) for v in range(256))


def _column(size: int, value: int) -> Any:
    return np.full(size, value, np.int64) if COMPILED else [value] * size


def _state(size: int) -> Any:
    """Numbers of flows: all of them fit into 32 bits, and there are many flows."""
    return np.full(size, _NOTHING, np.int32) if COMPILED else [_NOTHING] * size


def _words(size: int) -> Any:
    """Numbers that say nothing yet, in memory that is not touched."""
    return np.empty(size, np.int64) if COMPILED else [0] * size


class ChainedPackets:
    """What goes on with a message needs of each packet, and where the rest of it is.

    Packets of thousands of connections come by turns, so that a batch has few of each. What is needed of them
    when the other half is known is here, side by side, and not in many columns of several batches. A packet
    is named by the place of its first word.

    Args:
        room: for how many words.

    Attributes:
        end: how many there are.
        batches: those that they came in; bases: the orders of their rows 0.
    """

    def __init__(self, room: int) -> None:
        self.words = _words(room)
        self.room = room
        self.end = 0
        self.batches: list[Rows] = []
        self.bases: list[int] = []

    def begin(self, r: Rows, base: int) -> int:
        """A number for a batch."""
        self.batches.append(r)
        self.bases.append(base)
        return len(self.batches) - 1

    def add(self, r: Rows, i: int, batch: int, before: int) -> int:
        """One more packet, after another one of its chain; −1: it is the first. Gives its place."""
        at = before + _PACKET_WIDTH
        if before < 0 or before & (_BLOCK - 1) == _LAST_OF_BLOCK:
            at = self.end
            self.end += _BLOCK
            if before >= 0:
                self.words[before - _LAST_OF_BLOCK + _NEXT_BLOCK] = at
        self.words[at + _TIME], self.words[at + _FRAME] = r.time_ns[i], r.frame[i]
        self.words[at + _WHICH] = (batch << _ROW_BITS | i) << _ID_BITS | r.ip_id[i] & _ID_MASK
        return at

    def after(self, packet: int) -> int:
        """The next packet of its chain, which is not the last."""
        following = packet + _PACKET_WIDTH
        if packet & (_BLOCK - 1) == _LAST_OF_BLOCK:
            following = self.words[packet - _LAST_OF_BLOCK + _NEXT_BLOCK]
        return following

    def time_ns(self, packet: int) -> int:
        found: int = self.words[packet + _TIME]
        return found

    def frame(self, packet: int) -> int:
        found: int = self.words[packet + _FRAME]
        return found

    def ip_id(self, packet: int) -> int:
        return self.words[packet + _WHICH] & _ID_MASK

    def row(self, packet: int) -> int:
        """Its row in its batch."""
        return self.words[packet + _WHICH] >> _ID_BITS & _ROW_MASK

    def rows(self, packet: int) -> Rows:
        """The batch that it came in."""
        return self.batches[self.words[packet + _WHICH] >> _ID_BITS + _ROW_BITS]

    def order(self, packet: int) -> int:
        """The order in which it came."""
        base = self.bases[self.words[packet + _WHICH] >> _ID_BITS + _ROW_BITS]
        return base + (self.row(packet) << _BETWEEN_BITS)


class Chain:
    """Packets of one flow in the middle of a message, which follow one another.

    Attributes:
        packets: where they are; first, last: the first and the last of them; count: how many they are.
    """

    def __init__(self) -> None:
        self.packets: ChainedPackets
        self.first = self.last = self.count = 0

    def begins(self) -> int:
        """The order of the first packet."""
        return self.packets.order(self.first)

    def ends(self) -> int:
        """The order of the last packet."""
        return self.packets.order(self.last)

    def last_ns(self) -> int:
        """The time of the last packet."""
        return self.packets.time_ns(self.last)

    def cut(self, order: int) -> Chain | None:
        """Keep what comes before ``order``, as the first does, and give the rest; None: there is none."""
        packets = self.packets
        if packets.order(self.last) < order:
            return None
        packet, count = self.first, 1
        after = packets.after(packet)
        while packets.order(after) < order:
            packet, count = after, count + 1
            after = packets.after(packet)
        rest = chained(packets, after, self.last, self.count - count)
        self.last, self.count = packet, count
        return rest

    def places(self) -> list[tuple[int, Rows, int]]:
        """The order, batch and row of each."""
        packets, packet = self.packets, self.first
        found = [(packets.order(packet), packets.rows(packet), packets.row(packet))]
        for _ in range(self.count - 1):
            packet = packets.after(packet)
            found.append((packets.order(packet), packets.rows(packet), packets.row(packet)))
        return found


def chained(packets: ChainedPackets, first: int, last: int, count: int) -> Chain:
    """A chain, without the time that a constructor's arguments take."""
    chain: Chain = Chain.__new__(Chain)
    chain.packets, chain.first, chain.last, chain.count = packets, first, last, count
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
            for order, rows, place in chain.places():
                yield order, entry[1], rows, place, None


class Chains:
    """The chains of all flows.

    Attributes:
        rows: the batch at hand.
        open: numbers of flows that may have a chain.
        row: the batch's packet at hand, where one of no batch comes before it.
        lobbies: how many have numbers.
        held, waiters: packets that wait in all lobbies, those chained aside, and their flows.
        chaining: packets of chains that are open.
    """

    def __init__(self) -> None:
        self._state = _state(0)
        self._flows = 0
        self._lobbies = _column(0, 0)
        self.lobbies = self.held = self.waiters = self.chaining = 0
        self._packets: ChainedPackets | None = None
        self._batch = _NOTHING
        self.row = 0
        self._before = 0
        self._between = 0
        self.open: list[int] = []
        self.rows: Rows | None = None

    def has_room(self, r: Rows) -> bool:
        """Whether a batch has room beside what is chained; else no chain may be open when it begins."""
        packets = self._packets
        if packets is None or len(packets.batches) >= _BATCHES:
            return False
        return packets.end + _PER_PACKET * len(r) <= packets.room

    def begin(self, r: Rows, flows: int) -> None:
        """A batch, in which flows have numbers below ``flows``."""
        if self.rows is not None:
            self._before += len(self.rows)
        self._between = 0
        self.rows = r
        self._batch = _NOTHING
        if not self.has_room(r):
            # Where many wait, it was full: else most of it would stay empty.
            batches = 1 if self._packets is None or not self._packets.end else _ROOM_FOR
            self._packets = ChainedPackets(batches * _PER_PACKET * len(r) + _LEAST_ROOM)
        if flows > self._flows:
            grown = _state(2 * flows * _WIDTH)
            grown[: self._flows * _WIDTH] = self._state
            self._state, self._flows = grown, 2 * flows

    def over(self) -> None:
        """The batch is over, and no chain is open: packets that are chained are those that wait."""
        self.open = []
        if self._packets is not None and self._packets.end:
            self._packets = None

    def size(self) -> int:
        """How many packets the batch has."""
        return 0 if self.rows is None else len(self.rows)

    def takes(self, start: int, end: int) -> int:
        """Chain the rows from ``start`` on that go on as noted; gives the first that does not, or ``end``.

        Flows and rows are those that ``begin`` made room for; compiled code does not check that again.
        """
        r, packets = self.rows, self._packets
        assert r is not None
        assert packets is not None
        i = start
        while i < end:
            flow = r.flow[i]
            at = flow * _WIDTH
            if self._state[at + _PSN] != r.psn[i] or self._state[at + _OPCODE] != r.opcode[i]:
                break
            if self._state[at + _PAYLOAD] != r.payload_length[i] or self._state[at + _ROOM] <= 0:
                break
            if r.ecn[i] == ECN_CE or packets.end + _BLOCK > packets.room:
                break
            if self._state[at + _LOBBY] >= 0:
                lobby = self._state[at + _LOBBY] * _LOBBY_WIDTH
                if self._lobbies[lobby + _CHAINED] >= self._lobbies[lobby + _MOST]:
                    break
                if r.time_ns[i] > self._lobbies[lobby + _DUE_NS]:
                    break
                self._lobbies[lobby + _CHAINED] += 1
                self.chaining += 1
            self._state[at + _PSN] = (r.psn[i] + 1) & MASK
            self._state[at + _ROOM] -= 1
            if self._batch < 0:
                self._batch = packets.begin(r, self._before << _BETWEEN_BITS)
            packet = packets.add(r, i, self._batch, self._state[at + _LAST])
            if self._state[at + _LAST] < 0:
                self._state[at + _FIRST] = packet
                self._state[at + _COUNT] = 0
                self.open.append(flow)
            self._state[at + _LAST] = packet
            self._state[at + _COUNT] += 1
            i += 1
        return i

    def last(self, flow: int) -> int:
        """The last packet of a flow's chain; -1 when it has none."""
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
        if last < 0 or lobby < 0 or self._packets is None:
            return None
        self._state[at + _LAST] = _NOTHING
        self._lobbies[lobby * _LOBBY_WIDTH + _CHAINED] -= count
        self._lobbies[lobby * _LOBBY_WIDTH + _MOST] -= count
        self.chaining -= count
        return chained(self._packets, self._state[at + _FIRST], last, count)
