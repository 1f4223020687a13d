"""The columns of ``PacketStories`` while they are made, and their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.explanation.transfer_columns import TransferColumns
from rocekit.files.frame_names import FRAME_BITS
from rocekit.packets import CUT_SYNDROME, Packets
from rocekit.track.events import Event

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.cm_exchanges import CmRecord

#: Bits of an unwrapped PSN, beside the number of its PSN space in one integer.
PSN_BITS: Final = 44

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ROLES: Final = (
    *("other", "request", "response", "ack", "nak", "rnr_nak", "datagram", "cnp", "cm", "ignored"),
    "ack_or_nak",  # cut before its AETH
)
OTHER, REQUEST, RESPONSE, ACK, NAK, RNR_NAK, DATAGRAM, CNP, CM, IGNORED, ACK_OR_NAK = range(len(ROLES))
CAUSES: Final = ("", "nak", "rnr", "timeout", "implied_nak", "asked_again", "nak_missed")
NO_CAUSE, AFTER_NAK, AFTER_RNR, AFTER_TIMEOUT, AFTER_IMPLIED_NAK, ASKED_AGAIN, AFTER_MISSED_NAK = range(
    len(CAUSES)
)


def _role_table() -> NDArray[np.int8]:
    roles = np.full(257, OTHER, np.int8)
    for value, opcode in wire.OPCODES.items():
        if opcode.transport == "RD":
            continue
        if opcode.transport == "CNP":
            roles[value] = CNP
        elif opcode.transport == "UD":
            roles[value] = DATAGRAM
        elif opcode.operation == "ACK":
            roles[value] = ACK
        else:
            roles[value] = RESPONSE if opcode.response else REQUEST
    return roles


_ROLE_OF: Final = _role_table()
_IS_READ: Final = np.array([operation == "READ" for operation in wire.OPERATION] + [False])
_NAK_ROLE: Final = {wire.NAK: NAK, wire.RNR_NAK: RNR_NAK}


def references(packets: Packets) -> Ints:
    """Each packet's frame reference (see ``frame_names.frame_name``)."""
    found: Ints = packets.frame + (packets.file.astype(np.int64) << FRAME_BITS)
    return found


def among(codes: NDArray[np.int8], *wanted: int) -> Bools:
    """Which roles are any of the wanted ones."""
    table = np.zeros(len(ROLES), np.bool_)
    table[list(wanted)] = True
    return table[codes]


def packet_roles(packets: Packets) -> NDArray[np.int8]:
    """What each packet is by its opcode and syndrome alone, an index of ``ROLES``."""
    roles: NDArray[np.int8] = _ROLE_OF[packets.opcode].copy()
    syndromes = packets.syndromes()
    roles[(roles == ACK) & (syndromes == CUT_SYNDROME)] = ACK_OR_NAK
    for kind, role in _NAK_ROLE.items():
        roles[(roles == ACK) & (syndromes >> 5 & 3 == kind)] = role
    return roles


class Finder:
    """From frame references to rows, in any order."""

    def __init__(self, references: Ints) -> None:
        # Of one capture they are in order; where every frame has a RoCE packet, a row follows by subtraction.
        in_order = bool((references[1:] > references[:-1]).all())
        self._order = None if in_order else np.argsort(references, kind="stable")
        self._first: int | None = None
        self._count = len(references)
        if in_order and self._count and int(references[-1]) - int(references[0]) == self._count - 1:
            self._first = int(references[0])
            references = references[:0]
        self._sorted = references if self._order is None else references[self._order]

    def rows(self, references: Ints) -> Ints:
        if not self._count:
            return np.full(len(references), -1, np.int64)
        if self._first is not None:
            at = references - self._first
            at[(at < 0) | (at >= self._count)] = -1
            return at
        at = np.minimum(np.searchsorted(self._sorted, references), len(self._sorted) - 1)
        return np.where(self._sorted[at] == references, at if self._order is None else self._order[at], -1)


class Draft:
    """The columns of ``PacketStories`` in the making: each depends on those before.

    Those of what few packets have are one number for all packets, until ``own`` is asked for one to be
    written to.

    Attributes:
        is_read: which packets are READ requests.
        space: the PSN space of each packet, ``2 × connection + side`` of the requester; −1 without one.
        by_space: rows, sorted by PSN space and time.
    """

    def __init__(self, analysis: Results, packets: Packets) -> None:
        n = len(packets)
        self.analysis = analysis
        self.packets = packets
        self.transfers = TransferColumns(analysis.transfers)
        self.finder = Finder(references(packets))
        self.connection = np.full(n, -1, np.int32)
        self.sender = np.full(n, -1, np.int8)
        self.transfer = np.full(n, -1, np.int32)
        self.psn = np.full(n, -1, np.int64)
        self.round = np.zeros(n, np.int32)
        self.before: Ints = _for_all(np.int64(-1), n)
        self.duplicate: Bools = _for_all(np.False_, n)
        self.cause: NDArray[np.int8] = _for_all(np.int8(NO_CAUSE), n)
        self.cause_row: Ints = _for_all(np.int64(-1), n)
        self.event: NDArray[np.int32] = _for_all(np.int32(-1), n)
        self.gap: NDArray[np.int32] = _for_all(np.int32(-1), n)
        self.events: list[Event] = []
        self.cm: dict[int, CmRecord] = {}
        self.role = packet_roles(packets)
        self.is_read = _IS_READ[packets.opcode] & (self.role == REQUEST)
        self.space = np.full(n, -1, np.int64)
        self.by_space = np.empty(0, np.int64)

    def own(self, name: str) -> NDArray[Any]:
        """A column that can be written to."""
        column: NDArray[Any] = getattr(self, name)
        if not column.flags.writeable:
            column = column.copy()
            setattr(self, name, column)
        return column


def _for_all(value: Any, count: int) -> NDArray[Any]:
    """A column that is one number, which cannot be written to."""
    return np.broadcast_to(np.full(1, value), count)
