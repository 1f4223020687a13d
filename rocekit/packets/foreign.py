"""Packets to UDP port 4791 that are no RoCE: DNS answers to a client's port 4791, or another program's data.

A packet is doubtful if its ICRC is not right and its BTH is impossible, or if it is the answer of a known UDP
service with a wrong ICRC. Its hosts decide: if one valid packet goes between them, or if most packets between
them have a possible BTH, it is a corrupted RoCE packet. Else all packets between them are foreign. Until the
hosts are known, doubtful packets are held back; the capture's end decides.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID, ICRC_VALID, KNOWN, Packets
from rocekit.packets.flow_numbers import ADDRESS_BITS
from rocekit.packets.malformed import CHECKSUM, PAD, PAYLOAD, SHORT
from rocekit.wire import MAD_QPNS, OPCODES
from rocekit.wire.other_protocols import SERVICE_PORTS

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Opcodes from here on belong to manufacturers (IBA Vol. 1, 9.2.1: the top bits 11).
_VENDOR_OPCODES: Final = 0xC0
_ROCE_V2: Final = 2
_IS_SERVICE: Final = np.zeros(1 << 16, np.bool_)
_IS_SERVICE[list(SERVICE_PORTS)] = True
#: Opcodes that may go to QP 0 or 1: those of UD.
_IS_UD = np.zeros(257, np.bool_)
_IS_UD[[value for value, opcode in OPCODES.items() if opcode.transport == "UD"]] = True
_IS_UD[_VENDOR_OPCODES:256] = True
_POSSIBLE = KNOWN.copy()
_POSSIBLE[_VENDOR_OPCODES:256] = True
_PARTITION: Final = 0x7FFF  # a P_Key without its membership bit; 0 is invalid (IBA Vol. 1, 10.9.1.1)
#: Packets held back one by one; more are only counted as foreign.
MOST_HELD: Final = 1 << 16


class ForeignPackets:
    """Tells RoCE packets from others to port 4791, a batch at a time.

    Attributes:
        held: packets held back, without their payloads.
    """

    def __init__(self) -> None:
        self.held: list[Packets] = []
        self._count = 0
        # By flow: its hosts, whether a packet of it was valid, and how many were possible.
        self._place_of_flow = np.empty(0, np.int64)
        self._proven = np.empty(0, np.bool_)
        self._possible = np.empty(0, np.int64)
        # By place: impossible packets; and possible ones that are not counted by flow.
        self._impossible: Counter[int] = Counter()
        self._possible_answers: Counter[int] = Counter()

    def split(self, packets: Packets) -> tuple[Packets, Packets | None]:
        """A batch's packets that are taken for RoCE, and those that are held back or foreign, if any."""
        self._know(packets)
        if not self._impossible and not self._has_odd(packets):
            return packets, None
        valid = packets.icrc_state == ICRC_VALID
        if valid.all():
            self._proven[packets.flow] = True
            return packets, None
        self._proven[packets.flow[valid]] = True
        doubtful = _doubtful(packets, valid)
        # The others have a possible BTH: only these are looked at one by one.
        odd = (packets.malformed != 0) | (packets.dest_qpn <= max(MAD_QPNS))
        odd |= packets.icrc_state == ICRC_INVALID
        odd &= doubtful
        looked_at = np.flatnonzero(odd)
        answer = _answers(packets, looked_at)
        impossible = _impossible(packets, looked_at, answer)
        odd[looked_at] = impossible | answer
        self._count_possible(packets.flow, doubtful & ~odd)
        if not self._impossible and not impossible.any():
            return packets, None
        place = _places(packets, looked_at, answer)
        self._impossible.update(place[impossible].tolist())
        self._possible_answers.update(place[answer & ~impossible].tolist())
        rows = np.flatnonzero(doubtful)
        place = _places(packets, rows, _answers(packets, rows))
        strange = np.isin(place, self._strange())
        if not strange.any():
            return packets, None
        out = np.zeros(len(packets), np.bool_)
        out[rows[strange]] = True
        left = packets.where(out).detached()
        if self._count < MOST_HELD:
            self.held.append(left)
            self._count += len(left)
        return packets.where(~out), left

    def _has_odd(self, packets: Packets) -> bool:
        """Whether any packet must be looked at one by one; else all of them are counted here."""
        states = packets.icrc_state
        if len(states) and states.min() == states.max() == ICRC_VALID:
            self._proven[packets.flow] = True
            return False
        if (packets.malformed != 0).any() or int(packets.dest_qpn.min(initial=2)) <= max(MAD_QPNS):
            return True
        if (states == ICRC_INVALID).any():
            return True
        self._proven[packets.flow[states == ICRC_VALID]] = True
        self._possible += np.bincount(packets.flow, minlength=len(self._possible))
        return False

    def _count_possible(self, flow: Ints, chosen: Bools) -> None:
        own = flow if chosen.all() else flow[chosen]
        self._possible += np.bincount(own, minlength=len(self._possible))

    def settle(self) -> Packets | None:
        """The capture has ended: the packets held back that are RoCE after all. They are held no longer."""
        held, self.held, self._count = self.held, [], 0
        if not held:
            return None
        packets = Packets.concat(held)
        every = np.arange(len(packets))
        place = _places(packets, every, _answers(packets, every))
        mine = ~np.isin(place, self._strange())
        return packets.where(mine) if mine.any() else None

    def _know(self, packets: Packets) -> None:
        """Note the hosts of flows that are new."""
        known = len(self._place_of_flow)
        more = int(packets.flow.max()) + 1 - known if len(packets) else 0
        if more <= 0:
            return
        rows = np.flatnonzero(packets.flow >= known)
        new = np.zeros(more, np.int64)
        new[packets.flow[rows] - known] = _hosts(packets, rows)
        self._place_of_flow = np.append(self._place_of_flow, new)
        self._proven = np.append(self._proven, np.zeros(more, np.bool_))
        self._possible = np.append(self._possible, np.zeros(more, np.int64))

    def _strange(self) -> Ints:
        """The places whose packets are no RoCE, as far as is known."""
        places = np.array(sorted(self._impossible), np.int64)
        wrong = np.array([self._impossible[place] for place in places.tolist()], np.int64)
        right = np.array([self._possible_answers[place] for place in places.tolist()], np.int64)
        at = np.minimum(np.searchsorted(places, self._place_of_flow), len(places) - 1)
        own = places[at] == self._place_of_flow
        right += np.bincount(at[own], self._possible[own], len(places)).astype(np.int64)
        proven = np.bincount(at[own & self._proven], minlength=len(places))
        return places[(wrong > right) & (proven == 0)]


def _doubtful(packets: Packets, valid: Bools) -> Bools:
    """Packets that may be no RoCE. One cut before the end of its BTH shows nothing of it."""
    return ~valid & (packets.roce_version == _ROCE_V2) & ~((packets.opcode < 0) & packets.truncated)


def _hosts(packets: Packets, rows: Ints) -> Ints:
    """A number for the two hosts of each packet, whatever its direction."""
    src, dst = packets.src[rows], packets.dst[rows]
    numbers: Ints = np.minimum(src, dst) << ADDRESS_BITS | np.maximum(src, dst)
    return numbers


def _answers(packets: Packets, rows: Ints) -> Bools:
    """Which packets come from the port of a known UDP service, with a wrong ICRC."""
    found: Bools = _IS_SERVICE[packets.udp_sport[rows]] & (packets.icrc_state[rows] == ICRC_INVALID)
    return found


def _places(packets: Packets, rows: Ints, answer: Bools) -> Ints:
    """A number for the hosts of each packet; a service's answers have numbers of their own.

    So a DNS server's answers are no RoCE packets even where it speaks RoCE with the same host.
    """
    port = packets.udp_sport[rows].astype(np.int64) << 2 * ADDRESS_BITS
    return _hosts(packets, rows) | np.where(answer, port, 0)


def _impossible(packets: Packets, rows: Ints, answer: Bools) -> Bools:
    """Which packets, of those whose ICRC is not right, cannot be RoCE."""
    opcode, malformed = packets.opcode[rows], packets.malformed[rows]
    partition = packets.pkey[rows] & _PARTITION
    found = ~_POSSIBLE[opcode] | np.isin(malformed, (SHORT, PAD, PAYLOAD))
    found |= (packets.version[rows] != 0) | (partition == 0)
    found |= (packets.dest_qpn[rows] <= max(MAD_QPNS)) & ~_IS_UD[opcode]
    # RoCE from such a port is unusual: it must at least have the default P_Key, which no answer has there.
    found |= answer & (partition != _PARTITION)
    # The IPv4 header is damaged, so the addresses may be wrong: this packet says nothing of these hosts.
    found &= malformed != CHECKSUM
    return found
