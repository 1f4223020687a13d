"""Packets by PSN space, as columns: the data of every graph over time.

A *lane* is the requests of one side of a connection and all responses to them: one PSN space, that of the
requester. A connection has two, with numbers ``2 × connection + side``. The same columns hold all lanes, one
after the other and each by time, so that a million packets take a fixed number of NumPy calls.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets import CUT_SYNDROME
from rocekit.report.collector import ACK, ATOMIC, KIND, RESPONSE

Ints = NDArray[np.int64]

#: Kinds of ``Marks``: packets outside any PSN space.
CNP, BAD_ICRC = 0, 1


@dataclass(frozen=True)
class Marks:
    """Packets outside any PSN space, by time: CNPs and packets with wrong ICRCs."""

    kind: NDArray[np.uint8]
    lane: Ints
    time_ns: Ints
    frame: Ints


@dataclass(frozen=True)
class Lanes:
    """The packets of all lanes, one lane after the other.

    Attributes:
        first: where each lane starts, and the end.
        time_ns: since the epoch; frame: frame references; psn: unwrapped as in transfers.
        span: how many PSNs the packet takes; a READ request takes one for each response.
        opcode, bytes (payload), syndrome (of ACKs and NAKs, else 0).
        packets: how many packets the row stands for: more than one only after ``thinned``.
        round: 1 for what is sent the first time, 2 for the second time …; responses likewise.
        flags: ``RESPONSE``, ``CE``, ``DUPLICATE`` (came twice), ``LATE`` (reordered), ``LOST``
            (a NAK says that it did not arrive).
        acked: the PSN below which everything is acknowledged, after this packet.
        outstanding, outstanding_bytes: PSNs and bytes requested and not yet acknowledged, after this packet;
            0 for UC and UD.
        rtt_ns: of a response, the time since its request if that was sent once; else −1.
    """

    first: Ints
    time_ns: Ints
    frame: Ints
    psn: Ints
    span: Ints
    opcode: NDArray[np.uint8]
    bytes: Ints
    syndrome: NDArray[np.uint8]
    packets: Ints
    round: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    acked: Ints
    outstanding: Ints
    outstanding_bytes: Ints
    rtt_ns: Ints
    marks: Marks

    def __len__(self) -> int:
        return len(self.time_ns)

    def rows(self, lane: int) -> slice:
        """The rows of a lane."""
        return slice(int(self.first[lane]), int(self.first[lane + 1]))

    def lane(self, number: int) -> Lanes:
        """One lane alone."""
        rows, marks = self.rows(number), self.marks.lane == number
        columns = {
            f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("first", "marks")
        }
        return Lanes(
            first=np.array([0, rows.stop - rows.start]),
            marks=Marks(*(getattr(self.marks, f.name)[marks] for f in fields(Marks))),
            **columns,
        )

    def thinned(self, limit: int) -> Lanes:
        """At most about ``limit`` rows: runs of plain packets of one kind share the first one's row (of ACKs
        the last one's). Packets sent again, NAKs, marked packets and those that came
        twice keep their own rows.
        """
        n = len(self)
        if n <= limit:
            return self
        ack = KIND[self.opcode] == ACK
        cut = self.syndrome == CUT_SYNDROME
        kind = np.where(ack, 2 + cut, self.flags & RESPONSE)
        alone = (
            (self.flags & ~np.uint8(RESPONSE) != 0)
            | (self.round != 1)
            | ((self.syndrome >> 5 != wire.ACK) & ~cut)
        )
        alone |= (self.span != 1) | (KIND[self.opcode] == ATOMIC)
        lane = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        order = np.lexsort((kind, lane))
        after, before = order[1:], order[:-1]
        goes_on = np.zeros(n, np.bool_)
        goes_on[1:] = ~alone[after] & ~alone[before] & (kind[after] == kind[before])
        goes_on[1:] &= (lane[after] == lane[before]) & (
            ack[after] | (self.psn[after] == self.psn[before] + 1)
        )
        begins = np.flatnonzero(~goes_on)
        place = np.arange(n) - np.repeat(begins, np.diff(np.append(begins, n)))
        share = max(2, -(-n // limit))
        heads = np.flatnonzero(place % share == 0)
        while len(heads) > max(limit, len(begins)):
            share *= 2
            heads = np.flatnonzero(place % share == 0)
        first, last = order[heads], order[np.append(heads[1:], n) - 1]
        row = np.where(ack[first], last, first)
        back = np.lexsort((self.time_ns[row], lane[row]))
        row, span = (
            row[back],
            np.where(ack[first], 1, self.psn[last] + self.span[last] - self.psn[first])[back],
        )

        def sums(values: Ints) -> Ints:
            return np.add.reduceat(values[order], heads)[back]

        def peaks(values: Ints) -> Ints:
            return np.maximum.reduceat(values[order], heads)[back]

        same = ("time_ns", "frame", "psn", "opcode", "syndrome", "round", "flags", "acked")
        return replace(
            self,
            **{name: getattr(self, name)[row] for name in same},
            first=np.searchsorted(lane[row], np.arange(len(self.first))),
            span=span,
            bytes=sums(self.bytes),
            packets=sums(self.packets),
            outstanding=peaks(self.outstanding),
            outstanding_bytes=peaks(self.outstanding_bytes),
            rtt_ns=peaks(self.rtt_ns),
        )
