"""What makes a packet the same in every capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import HAS, HAS_OF, ICRC_INVALID, ICRC_UNCHECKED
from rocekit.packets.flow_numbers import MIXER

if TYPE_CHECKING:
    from rocekit.packets import Packets

#: Nothing on the way changes these. TTL, DSCP, ECN, MAC addresses and VLAN tags may change at each hop.
_IDENTITY: Final = ("src", "dst", "dest_qpn", "opcode", "psn", "ip_id", "payload_length")
_AETH: Final = ("syndrome", "msn")
_ICRC: Final = ("icrc", "icrc_state")


class Whole(NamedTuple):
    """What captures have of all packets: one that is cut before a field does not tell packets apart by it.

    Attributes:
        aeth: all AETHs; icrc: all ICRCs, and most are right.
    """

    aeth: bool
    icrc: bool

    @classmethod
    def of(cls, packets: Packets) -> Whole:
        """What a capture has whole."""
        wrong = int((packets.icrc_state == ICRC_INVALID).sum())
        unchecked = (packets.icrc_state == ICRC_UNCHECKED).any()
        return cls(not cut_in_aeth(packets), not unchecked and wrong * 2 <= len(packets))

    def both(self, other: Whole) -> Whole:
        return Whole(self.aeth and other.aeth, self.icrc and other.icrc)


def cut_in_aeth(packets: Packets) -> int:
    """How many packets are cut before the end of their AETH."""
    lacking = packets.lacking()
    if not len(lacking):
        return 0
    without = HAS_OF[packets.opcode[lacking]] & ~packets.has[lacking]
    return int(np.count_nonzero(without & HAS["AETH"]))


def identities(packets: Packets, whole: Whole) -> NDArray[np.uint64]:
    """A 64-bit identity of each packet, the same in every capture; a corrupted copy has another one.

    Args:
        whole: what all captures that are compared have whole.
    """
    packets = packets.where(slice(None))  # derived columns are kept for this only
    value = np.zeros(len(packets), np.uint64)
    for name in (*_IDENTITY, *(_AETH if whole.aeth else ()), *(_ICRC if whole.icrc else ())):
        column = packets[name] == ICRC_INVALID if name == "icrc_state" else packets[name]
        value = (value ^ column.astype(np.int64).view(np.uint64)) * np.uint64(MIXER)
        value ^= value >> np.uint64(29)
    return value
