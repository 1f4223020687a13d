# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Transfers to which nothing has happened, as rows of one table of numbers (see ``clean_lane``).

A row is a message whose packets came in order, one after the other, or a READ whose responses do. The rows
of one side are chained, and become ``Transfer`` objects when somebody asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rocekit.packets.rows import COMPILED
from rocekit.track.lane.row_layout import (
    ACK_FRAME,
    ACK_NS,
    ANNOUNCED,
    BYTES,
    EXTRA,
    FIRST_FRAME,
    FIRST_NS,
    FIRST_PSN,
    HAS_IMMEDIATE,
    HAS_INVALIDATE,
    ID,
    IS_A_READ,
    IS_ACKED,
    IS_ENDED,
    IS_MADE,
    KEY,
    LAST_FRAME,
    LAST_NS,
    NEXT,
    OPCODE_MASK,
    PACKETS,
    VA,
    WHAT,
    WIDTH,
)
from rocekit.track.transfers import ACKED, NOTHING, SENT, UNACKNOWLEDGED, Transfer
from rocekit.wire import OPERATION

if TYPE_CHECKING:
    from rocekit.packets.rows import Rows
    from rocekit.track.connections import Connection

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

_FEW: Final = 256


def table(size: int) -> Any:
    """So many numbers, all 0."""
    return np.zeros(size, np.int64) if COMPILED else [0] * size


class TransferRows:
    """The table.

    Attributes:
        words: the rows, side by side; a row is named by the place of its first word.
        objects: the transfers whose objects somebody has, by their numbers.
    """

    def __init__(self) -> None:
        self.words: Any = table(0)
        self._free = -1
        self._end = self._room = 0
        self.objects: dict[int, Transfer] = {}

    def new(self) -> int:
        """A free row."""
        at = self._free
        if at >= 0:
            self._free = self.words[at]
            return at
        if self._end == self._room:
            with cython.gil:
                self._grow()
        at = self._end
        self._end += WIDTH
        return at

    def _grow(self) -> None:
        grown = table(max(_FEW * WIDTH, 2 * self._end))
        grown[: self._end] = self.words
        self.words, self._room = grown, len(grown)

    def begin(self, id: int, psn: int, r: Rows, i: int, with_reth: bool) -> int:
        """A row of a transfer whose first packet is at row ``i`` of a batch."""
        at = self.new()
        self.words[at + NEXT], self.words[at + ID] = -1, id
        self.words[at + FIRST_PSN], self.words[at + PACKETS] = psn, 1
        self.words[at + FIRST_NS] = self.words[at + LAST_NS] = r.time_ns[i]
        self.words[at + FIRST_FRAME] = self.words[at + LAST_FRAME] = r.frame[i]
        self.words[at + BYTES], self.words[at + WHAT] = r.payload_length[i], r.opcode[i]
        self.words[at + VA], self.words[at + KEY], self.words[at + ANNOUNCED] = 0, -1, -1
        if with_reth:
            if r.rkey[i] >= 0:
                self.words[at + VA], self.words[at + KEY] = r.remote_va[i], r.rkey[i]
            if r.dma_length[i] >= 0:
                self.words[at + ANNOUNCED] = r.dma_length[i]
        return at

    def complete(self, at: int, time_ns: int, frame: int) -> None:
        """A response completes the transfer."""
        self.words[at + WHAT] |= IS_ACKED
        self.words[at + ACK_NS], self.words[at + ACK_FRAME] = time_ns, frame

    def free(self, at: int) -> int:
        """A row is not used any more; gives the one that followed it."""
        following: int = self.words[at + NEXT]
        self.words[at] = self._free
        self._free = at
        return following

    def is_over(self, at: int, reliable: bool) -> bool:
        """Whether a transfer has all that it waits for."""
        return (self.words[at + WHAT] & (IS_ACKED if reliable else IS_ENDED)) != 0

    def duration_ns(self, at: int) -> int:
        """As ``Transfer.duration_ns``."""
        last_ns: int = self.words[at + LAST_NS]
        if self.words[at + WHAT] & IS_ACKED and self.words[at + ACK_NS] > last_ns:
            last_ns = self.words[at + ACK_NS]
        return last_ns - self.words[at + FIRST_NS]

    def note_extra(self, at: int, flag: int, value: int | None) -> None:
        """The last packet has an immediate or a key; None: it is cut before it."""
        self.words[at + WHAT] |= flag
        self.words[at + EXTRA] = -1 if value is None else value

    def last_psn(self, at: int) -> int:
        """The PSN of its last packet so far."""
        return self.words[at + FIRST_PSN] + self.words[at + PACKETS] - 1

    def fill(self, at: int, transfer: Transfer, opcode: int) -> None:
        """Make a row of a transfer under way, whose object stays that of its number."""
        w = self.words
        w[at + NEXT], w[at + ID] = -1, transfer.id
        w[at + FIRST_PSN], w[at + PACKETS] = transfer.first_psn, transfer.packets
        w[at + FIRST_NS], w[at + FIRST_FRAME] = transfer.first_ns, transfer.first_frame
        w[at + LAST_NS], w[at + LAST_FRAME] = transfer.last_ns, transfer.last_frame
        w[at + BYTES], w[at + WHAT] = transfer.bytes, opcode | IS_MADE
        w[at + VA], w[at + KEY], w[at + ANNOUNCED] = transfer.va, transfer.key, transfer.announced
        self.objects[transfer.id] = transfer

    def keep(self, at: int, transfer: Transfer) -> None:
        """Somebody has the row's object."""
        self.words[at + WHAT] |= IS_MADE
        self.objects[transfer.id] = transfer

    def object_of(self, at: int, connection: Connection, side: int, reliable: bool) -> Transfer:
        """The row as an object."""
        w = self.words
        what = w[at + WHAT]
        if what & IS_MADE:
            transfer = self.objects.pop(w[at + ID])
        else:
            operation = OPERATION[what & OPCODE_MASK]
            transfer = Transfer(
                w[at + ID],
                connection,
                side,
                operation,
                w[at + FIRST_PSN],
                w[at + FIRST_NS],
                w[at + FIRST_FRAME],
            )
            transfer.va, transfer.key, transfer.announced = w[at + VA], w[at + KEY], w[at + ANNOUNCED]
        transfer.last_psn, transfer.packets = self.last_psn(at), w[at + PACKETS]
        transfer.last_ns = transfer.request_end_ns = w[at + LAST_NS]
        transfer.last_frame, transfer.bytes = w[at + LAST_FRAME], w[at + BYTES]
        if what & IS_A_READ:  # one packet asks for all
            transfer.request_end_ns, transfer.response_next = w[at + FIRST_NS], w[at + EXTRA]
        if what & IS_ENDED:
            transfer.ended = True
            extra = w[at + EXTRA]
            if what & HAS_IMMEDIATE:
                transfer.with_immediate, transfer.immediate = True, None if extra < 0 else extra
            elif what & HAS_INVALIDATE:
                transfer.with_invalidate, transfer.invalidate_rkey = True, None if extra < 0 else extra
            if not reliable:
                transfer.status = SENT
        if what & IS_ACKED:
            transfer.status = ACKED
            transfer.ack_ns, transfer.ack_frame = w[at + ACK_NS], w[at + ACK_FRAME]
            if transfer.ack_ns >= transfer.last_ns:
                transfer.last_frame = transfer.ack_frame
        return transfer


def is_plain(transfer: Transfer) -> bool:
    """Whether a message under way is all that a row can say."""
    return (
        transfer.started
        and not transfer.ended
        and not transfer.events
        and transfer.missing is NOTHING
        and transfer.particulars is None
        and not transfer.maybe_several
        and not transfer.retransmitted_packets
        and transfer.status == UNACKNOWLEDGED
        and transfer.packets == transfer.last_psn - transfer.first_psn + 1
        and transfer.request_end_ns == transfer.last_ns
    )
