# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Packets in the middle of a message, taken together.

Most packets of large messages are in the middle, full, and follow the one before. After each packet that it
handles by itself, the tracker notes here which packet would go on like that. As long as just that one comes,
it is only chained to the one before. The state machine gets the chain at the next other packet of the
connection, so that the result is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit import wire
from rocekit.packets.rows import COMPILED
from rocekit.wire.network import ECN_CE
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows

# For each flow: the packet that would go on, how many such may come, and the chain.
_PSN, _OPCODE, _PAYLOAD, _ROOM, _COUNT, _FIRST, _LAST, _WIDTH = range(8)
_NOTHING: Final = -1


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


class Chains:
    """The chains of all flows within a batch of packets.

    Attributes:
        after: by row: the next one of its chain.
        rows: the batch.
        open: numbers of flows that have a chain in this batch.
    """

    def __init__(self) -> None:
        self._state = _column(0, 0)
        self._flows = 0
        self.after = _column(0, 0)
        self.open: list[int] = []
        self.rows: Rows | None = None

    def begin(self, r: Rows, flows: int) -> None:
        """A batch, in which flows have numbers below ``flows``."""
        self.rows = r
        self.open = []
        if len(self.after) < len(r):
            self.after = _column(len(r), 0)
        if flows > self._flows:
            grown = _column(2 * flows * _WIDTH, _NOTHING)
            grown[: self._flows * _WIDTH] = self._state
            grown[self._flows * _WIDTH :] = _column((2 * flows - self._flows) * _WIDTH, _NOTHING)
            self._state, self._flows = grown, 2 * flows

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
