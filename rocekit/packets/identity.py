"""What makes a packet the same in every capture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID, ICRC_UNCHECKED
from rocekit.packets.flow_numbers import MIXER

if TYPE_CHECKING:
    from rocekit.packets import Packets

#: Nothing on the way changes these. TTL, DSCP, ECN, MAC addresses and VLAN tags may change at each hop.
_IDENTITY: Final = (
    *("src", "dst", "dest_qpn", "opcode", "psn", "ip_id", "payload_length", "syndrome", "msn"),
)


def identities(packets: Packets, *, by_icrc: bool = True) -> NDArray[np.uint64]:
    """A 64-bit identity of each packet, the same in every capture; a corrupted copy has another one."""
    packets = packets.where(slice(None))  # derived columns are kept for this only
    value = np.zeros(len(packets), np.uint64)
    for name in (*_IDENTITY, *(("icrc", "icrc_state") if by_icrc else ())):
        column = packets[name] == ICRC_INVALID if name == "icrc_state" else packets[name]
        value = (value ^ column.astype(np.int64).view(np.uint64)) * np.uint64(MIXER)
        value ^= value >> np.uint64(29)
    return value


def has_icrcs(packets: Packets) -> bool:
    """Whether all ICRCs are captured, and most are right."""
    wrong = int((packets.icrc_state == ICRC_INVALID).sum())
    return not (packets.icrc_state == ICRC_UNCHECKED).any() and wrong * 2 <= len(packets)
