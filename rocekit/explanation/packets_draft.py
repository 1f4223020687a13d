"""The columns of ``PacketStories`` while they are made, and their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
        self._sorted = references if self._order is None else references[self._order]
        self._first: int | None = None
        if in_order and len(references) and int(references[-1]) - int(references[0]) == len(references) - 1:
            self._first = int(references[0])

    def rows(self, references: Ints) -> Ints:
        if not len(self._sorted):
            return np.full(len(references), -1, np.int64)
        if self._first is not None:
            at = references - self._first
            at[(at < 0) | (at >= len(self._sorted))] = -1
            return at
        at = np.minimum(np.searchsorted(self._sorted, references), len(self._sorted) - 1)
        return np.where(self._sorted[at] == references, at if self._order is None else self._order[at], -1)


class Draft:
    """The columns of ``PacketStories`` in the making: each depends on those before.

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
        self.before = np.full(n, -1, np.int64)
        self.duplicate = np.zeros(n, np.bool_)
        self.cause = np.zeros(n, np.int8)
        self.cause_row = np.full(n, -1, np.int64)
        self.event = np.full(n, -1, np.int32)
        self.gap = np.full(n, -1, np.int32)
        self.events: list[Event] = []
        self.cm: dict[int, CmRecord] = {}
        self.role = packet_roles(packets)
        self.is_read = _IS_READ[packets.opcode] & (self.role == REQUEST)
        self.space = np.full(n, -1, np.int64)
        self.by_space = np.empty(0, np.int64)
