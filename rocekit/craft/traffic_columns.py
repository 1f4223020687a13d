"""Synthetic messages and their packets, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rocekit.craft.traffic import OPERATIONS

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ECT, CE = 2, 3  # RFC 3168
_FIRST_QPN: Final = 0x11


@dataclass(slots=True)
class Messages:
    """A round's messages, and what an analysis must find: one value for each message in each array.

    Attributes:
        stream: which side of which pair is the requester (see ``Traffic.streams``).
        operation: its index in ``OPERATIONS``.
        size: payload bytes; span: its PSNs; first_psn: 24 bits.
        lost: the index in the message of the packet that is lost, −1 for none.
        retransmitted, naks, timeouts: what the loss causes.
    """

    stream: Ints
    operation: Ints
    size: Ints
    span: Ints
    first_psn: Ints
    lost: Ints

    def __len__(self) -> int:
        return len(self.stream)

    def take(self, rows: Ints | slice) -> Messages:
        return Messages(*(getattr(self, name)[rows] for name in Messages.__slots__))

    @property
    def is_read(self) -> Bools:
        return self.operation == OPERATIONS.index("READ")

    @property
    def naks(self) -> Ints:
        return self.before_capture.astype(np.int64)

    @property
    def timeouts(self) -> Ints:
        """Losses that only a timeout reveals: of the last packet, or a READ's last response."""
        return ((self.lost >= 0) & (self.lost == self.span - 1)).astype(np.int64)

    @property
    def before_capture(self) -> Bools:
        """Whether the lost packet is lost before the capture point, so it is not in the capture."""
        return (self.lost >= 0) & ~self.is_read & (self.span > 1)

    @property
    def repeated(self) -> Ints:
        """Packets of the message sent again: all from the lost one on."""
        return np.where(self.lost >= 0, self.span - self.lost, 0)

    @property
    def retransmitted(self) -> Ints:
        """Packets sent again, a READ's request among them."""
        return self.repeated + (self.is_read & (self.lost >= 0))


@dataclass(slots=True)
class Columns:
    """Packets in the order of the capture: one value for each packet in each array.

    Attributes:
        pair, from_b: which QP pair, and whether its side ``b`` sends.
        message: the index of its message in the round; again: whether it was sent before.
    """

    time_ns: Ints
    pair: Ints
    from_b: Bools
    opcode: Ints
    psn: Ints
    payload: Ints
    remote_va: Ints
    dma_length: Ints
    syndrome: Ints
    msn: Ints
    ecn: Ints
    ip_id: Ints
    message: Ints
    again: Bools

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: Ints | slice) -> Columns:
        return Columns(*(getattr(self, name)[rows] for name in Columns.__slots__))


@dataclass(slots=True)
class Round:
    """Some messages of every stream, and their packets."""

    messages: Messages
    packets: Columns


def qpn(pair: Ints, b: Bools, pairs: int) -> Ints:
    """The QPN of a side of a pair: ``a``'s from 0x11 on, ``b``'s after all of ``a``'s."""
    return _FIRST_QPN + pair + np.where(b, pairs, 0)
