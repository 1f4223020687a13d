"""Frames to packet columns: one row a RoCE packet, one NumPy column a field of ``wire``.

A batch costs some fixed number of NumPy calls, whatever is in it: the BTH and what follows it are gathered
once, as ten big-endian words a packet, and :class:`rocekit.packets.Packets` derives columns from them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rocekit import link
from rocekit.arrays import first_of_each
from rocekit.flow_numbers import FlowNumbers
from rocekit.frames import FrameBatch
from rocekit.icrc_columns import icrc_columns
from rocekit.link import MALFORMED
from rocekit.packets import (
    BLOCK_WORDS,
    COLUMNS,
    FIELD_HOMES,
    HAS,
    HAS_OF,
    HEADERS_BYTES,
    ICRC_INVALID,
    ICRC_STATES,
    ICRC_UNCHECKED,
    ICRC_VALID,
    KNOWN,
    NO_OPCODE,
    NO_PAYLOAD,
    PLACE_WORDS,
    Column,
    Packets,
    Row,
    bth_column,
    empty_packets,
)
from rocekit.wire import BTH, HEADERS, ICRC_BYTES

__all__ = [
    "Decoder",
    "Counts",
    "Pause",
    "Packets",
    "Row",
    "empty_packets",
    "COLUMNS",
    "FIELD_HOMES",
    "HAS",
    "ICRC_VALID",
    "ICRC_INVALID",
    "ICRC_UNCHECKED",
    "ICRC_STATES",
    "MALFORMED",
    "NO_OPCODE",
]


@dataclass(slots=True)
class Counts:
    """What a decoder has seen.

    Attributes:
        frames: all of them; roce_packets: those that became rows.
        truncated_packets: cut by the snaplen; malformed_packets: with a code in ``malformed``.
        bad_icrc, unchecked_icrc: verdicts that were not "valid".
        fragments: first fragments (rows) and later ones of UDP datagrams (no rows).
        pause_frames: 802.3 PAUSE and PFC.
        non_roce: frames of neither kind.
    """

    frames: int = 0
    roce_packets: int = 0
    truncated_packets: int = 0
    malformed_packets: int = 0
    bad_icrc: int = 0
    unchecked_icrc: int = 0
    fragments: int = 0
    pause_frames: int = 0
    non_roce: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


FEW = 8
"""Addresses that are compared one by one; more are looked up."""

MAX_PAUSES = 100_000
"""Pause frames kept one by one; beyond, they are only counted."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An 802.3 PAUSE or PFC frame: who asked for silence, of which priorities, for how long.

    Attributes:
        source: MAC address of the sender.
        priorities: bit mask of the priorities meant; all eight for 802.3 PAUSE.
        quanta: the longest pause asked for, in units of 512 bit times; 0 lets the traffic go on.
    """

    file: int
    frame: int
    time_ns: int
    source: str
    priorities: int
    quanta: int


class _Addresses:
    """Addresses to small numbers, whole columns at a time."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._index: dict[tuple[int, int], int] = {}
        self._keys = np.empty(0, np.uint64)  # sorted
        self._pairs = np.empty((0, 2), np.uint64)
        self._numbers = np.empty(0, np.int32)

    def numbers(self, pairs: NDArray[np.uint64]) -> NDArray[np.int32]:
        keys = link.address_keys(pairs)
        found = self._look_up(keys, pairs)
        strange = np.flatnonzero(found < 0)
        if len(strange):
            self._learn(pairs[strange])
            found[strange] = self._look_up(keys[strange], pairs[strange])
            for i in np.flatnonzero(found < 0):  # two addresses share a key: one of them is found here
                found[i] = self._index[int(pairs[i, 0]), int(pairs[i, 1])]
        return found

    def _look_up(self, keys: NDArray[np.uint64], pairs: NDArray[np.uint64]) -> NDArray[np.int32]:
        if len(self._keys) <= FEW:
            numbers = np.full(len(keys), -1, np.int32)
            for (high, low), number in zip(self._pairs.tolist(), self._numbers.tolist(), strict=True):
                numbers[(pairs[:, 1] == low) & (pairs[:, 0] == high)] = number
            return numbers
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = self._pairs[place]
        same = (known[:, 0] == pairs[:, 0]) & (known[:, 1] == pairs[:, 1])
        numbers = self._numbers[place]
        numbers[~same] = -1
        return numbers

    def _learn(self, pairs: NDArray[np.uint64]) -> None:
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
        fresh = np.append(True, (pairs[1:] != pairs[:-1]).any(axis=1))
        new = [pair for pair in map(tuple, pairs[fresh].tolist()) if pair not in self._index]
        numbers = np.arange(len(self.texts), len(self.texts) + len(new), dtype=np.int32)
        self._index.update(zip(new, numbers.tolist(), strict=True))
        self.texts += [link.address_text(high, low) for high, low in new]
        known = np.concatenate([self._pairs, np.array(new, np.uint64).reshape(-1, 2)])
        keys, first = first_of_each(link.address_keys(known))
        self._keys, self._pairs = keys, known[first]
        self._numbers = np.concatenate([self._numbers, numbers])[first]


_NO_ROWS = np.empty(0, np.int64)


class Decoder:
    """Turns batches of frames into packets; addresses and counts go on from batch to batch.

    Args:
        check_icrc: whether to compute every packet's ICRC; without, all are ``ICRC_UNCHECKED``.

    Attributes:
        counts: what was seen so far.
        pauses: the pause frames among it.
    """

    def __init__(self, *, check_icrc: bool = True) -> None:
        self.others = _NO_ROWS
        self.counts = Counts()
        self.pauses: list[Pause] = []
        self._check_icrc = check_icrc
        self._addresses = _Addresses()
        self._flows = FlowNumbers()

    @property
    def addresses(self) -> list[str]:
        return self._addresses.texts

    def decode(self, batch: FrameBatch) -> Packets:
        """The RoCE packets of a batch, in its order; a malformed one is a row with a code, never an error."""
        network = link.find_roce(batch)
        n = len(network)
        counts = self.counts
        counts.frames += len(batch)
        counts.roce_packets += n
        counts.pause_frames += len(network.pauses)
        counts.fragments += network.later_fragments
        counts.non_roce += len(batch) - n - len(network.pauses) - network.later_fragments
        if len(network.pauses):
            self._note_pauses(batch, network.pauses)
        self.others = _NO_ROWS if n == len(batch) else np.setdiff1d(np.arange(len(batch)), network.index)
        if not n:
            return empty_packets(self.addresses)

        block = link.words(batch.buffer, network.bth, BLOCK_WORDS)
        opcode = (block[:, 0] >> 24).astype(np.int64)
        readable = link.least_end(network) - network.bth
        has, malformed = self._headers(network, block, opcode, readable)

        need = HEADERS_BYTES[opcode]
        pad = (block[:, 0] >> 20 & 3).astype(np.int64)
        room = network.end - network.bth - need - ICRC_BYTES
        payload_length = np.where(opcode == NO_OPCODE, 0, room - pad)
        _mark(malformed, link.PAD, (payload_length < 0) & (room >= 0) & (opcode >= 0))
        _mark(malformed, link.PAYLOAD, NO_PAYLOAD[opcode] & (room > 0))

        checkable = (
            ~network.truncated & ~network.fragment & (network.end - network.bth >= BTH.length + ICRC_BYTES)
        )
        icrc, state = np.zeros(n, np.uint32), np.full(n, ICRC_UNCHECKED, np.uint8)
        rows = np.flatnonzero(checkable) if self._check_icrc else np.empty(0, np.int64)
        if len(rows):
            sent = link.gather(batch.buffer, network.end[rows] - ICRC_BYTES, ICRC_BYTES).view("<u4")[:, 0]
            computed = icrc_columns(
                batch.buffer,
                network.start[rows],
                network.bth[rows],
                network.end[rows] - ICRC_BYTES,
                network.roce_version[rows] == 2,
            )
            icrc[rows] = sent
            state[rows] = np.where(sent == computed, ICRC_VALID, ICRC_INVALID)

        counts.truncated_packets += int(network.truncated.sum())
        counts.malformed_packets += int(np.count_nonzero(malformed))
        counts.fragments += int(network.fragment.sum())
        counts.bad_icrc += int((state == ICRC_INVALID).sum())
        counts.unchecked_icrc += int((state == ICRC_UNCHECKED).sum())

        every = n == len(batch)
        src, dst = self._addresses.numbers(network.source), self._addresses.numbers(network.destination)
        columns: dict[str, Column] = {
            "frame": batch.number if every else batch.number[network.index],
            "file": np.full(n, batch.file, np.int32),
            "time_ns": batch.time_ns if every else batch.time_ns[network.index],
            "ip_version": network.ip_version,
            "roce_version": network.roce_version,
            "src": src,
            "dst": dst,
            "flow": self._flows.of(src, dst, bth_column(block, "dest_qpn")),
            "udp_sport": network.udp_sport,
            "tclass": network.tclass,
            "hop_limit": network.hop_limit,
            "flow_label": network.flow_label,
            "ip_id": network.ip_id,
            "vlan": network.vlan,
            "priority": network.priority,
            "opcode": opcode,
            "has": has,
            "payload_length": np.maximum(payload_length, 0).astype(np.int32),
            "icrc": icrc,
            "icrc_state": state,
            "truncated": network.truncated,
            "malformed": malformed,
            "fragment": network.fragment,
            "limit": np.minimum(network.limit, network.end),
        }
        return Packets(columns, block, self.addresses, batch.buffer, network.bth + need)

    def _note_pauses(self, batch: FrameBatch, pauses: NDArray[np.int64]) -> None:
        for index, priorities, quanta in pauses[: MAX_PAUSES - len(self.pauses)].tolist():
            source = int(batch.offset[index]) + 6
            mac = batch.buffer[source : source + 6].tobytes().hex(":")
            self.pauses.append(
                Pause(
                    batch.file, int(batch.number[index]), int(batch.time_ns[index]), mac, priorities, quanta
                )
            )

    def _headers(
        self,
        network: link.Network,
        block: NDArray[np.uint32],
        opcode: NDArray[np.int64],
        readable: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
        """Which headers each packet has and what is wrong with it; clears what is beyond a packet's end."""
        malformed = network.malformed
        has = HAS_OF[opcode]
        cut = np.flatnonzero(readable < HEADERS_BYTES[opcode])
        if len(cut):
            bare = cut[readable[cut] < BTH.length]
            opcode[bare] = NO_OPCODE
            has[bare] = 0
            for name, places in PLACE_WORDS.items():
                place = places[opcode[cut]].astype(np.int64)
                gone = (place > 0) & (place * 4 + HEADERS[name].length > readable[cut])
                has[cut[gone]] &= ~np.uint16(HAS[name])
            beyond = np.arange(4, 4 * block.shape[1] + 1, 4) > readable[cut, None]
            block[cut] = np.where(beyond, 0, block[cut])
            by_snaplen = network.truncated[cut] & (network.limit[cut] < network.end[cut])
            _mark(malformed, link.CUT, cut[by_snaplen])
            _mark(malformed, link.SHORT, cut[~by_snaplen])
        _mark(malformed, link.UNKNOWN_OPCODE, ~KNOWN[opcode] & (opcode >= 0))
        _mark(malformed, link.VERSION, block[:, 0] >> 16 & 0xF != 0)
        has[network.roce_version == 1] |= HAS["GRH"]
        return has, malformed


def _mark(malformed: NDArray[np.uint8], code: int, rows: Column) -> None:
    """Give ``code`` to the rows that have none yet: the first thing wrong is the one named."""
    chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    if len(chosen):
        chosen = chosen[malformed[chosen] == 0]
        malformed[chosen] = code
