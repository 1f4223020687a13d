# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""Sums and first values of each one-way flow, taken packet by packet in one pass over a batch.

A flow has a row of numbers in one table, and a chain of counts: one for each (opcode, DSCP) in it. UDP ports
and sizes of full packets seldom have several values: the first one stands in the row, all of them in a set or
dict from the second on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frame_names import FRAME_BITS
from rocekit.packets.rows import COMPILED, column
from rocekit.wire.network import DSCP_BITS, ECN_BITS
from rocekit.wire.packet_kinds import KINDS, REQUEST

if TYPE_CHECKING:
    from rocekit.packets import Packets

try:
    import cython
except ImportError:
    from rocekit import _cython as cython

UNKNOWN: Final = -1

#: The numbers in a flow's row, and their first values. ``kinds`` is the head of its chain of counts.
COLUMNS: Final = {
    "src": UNKNOWN,
    "dst": UNKNOWN,
    "qpn": UNKNOWN,
    "packets": 0,
    "payload": 0,
    "first_ns": UNKNOWN,
    "last_ns": UNKNOWN,
    "first_psn": UNKNOWN,
    "first_frame": 0,
    "shape": UNKNOWN,
    "size": UNKNOWN,
    "size_frame": 0,
    "kinds": UNKNOWN,
}
_SRC, _DST, _QPN, _PACKETS, _PAYLOAD, _FIRST_NS, _LAST_NS = range(7)
_FIRST_PSN, _FIRST_FRAME, _SHAPE, _SIZE, _SIZE_FRAME, _KINDS = range(7, 13)
_WIDTH: Final = len(COLUMNS)
_FRAME_BITS: Final = FRAME_BITS
_DSCP_BITS: Final = DSCP_BITS
_ECN_BITS: Final = ECN_BITS
_UNKNOWN: Final = UNKNOWN
#: From so many flows on, their rows are read for so many packets together: one after the other each would be
#: waited for, since no cache has them all.
_MANY: Final = 1024
#: There is room for so many rows or counts at least.
_LEAST: Final = 64
_AHEAD: Final = 32

# A count in a chain: its (opcode, DSCP), packets, the first packet and its frame, the next count. That which
# was counted last is the first of its chain: the next packet is often like it.
_KEY, _COUNT, _FIRST, _FRAME, _NEXT, _SLOT = range(6)


def _is_full(value: int) -> bool:
    """Whether packets with this opcode are as large as the path MTU: they do not end their message."""
    opcode = wire.OPCODES.get(value)
    return opcode is not None and opcode.position in (wire.FIRST, wire.MIDDLE)


def _longer(table: Any, used: int, size: int) -> Any:
    """A table of ``size`` numbers with those of another one, of which so many are used.

    What follows them says nothing, and is in memory that nobody touches before it is used.
    """
    if not COMPILED:
        return table[:used] + [0] * (size - used)
    longer = np.empty(size, np.int64)
    longer[:used] = table[:used]
    return longer


class FlowSums:
    """The rows and chains of all flows, by the decoder's numbers.

    Attributes:
        shapes: UDP port, VLAN priority and RoCE version in one number, of flows with several such numbers.
        sizes: payloads of packets that do not end their message to the first frame with each, of flows with
            several: each size that was the smallest or the largest so far.
    """

    def __init__(self) -> None:
        self.shapes: dict[int, set[int]] = {}
        self.sizes: dict[int, dict[int, int]] = {}
        self._extremes: dict[int, tuple[int, int]] = {}
        self._flows = self._slots = self._room = self._fed = 0
        self._touched = 0
        self._rows: Any = column(())
        self._chains: Any = column(())
        self._requests = column([KINDS[v] == REQUEST for v in range(256)])
        self._full = column([_is_full(v) for v in range(256)])

    def add(self, packets: Packets, keep: NDArray[np.bool_]) -> None:
        """Add the packets of a batch that ``keep`` chooses; batches come in order of time."""
        most = int(packets.flow.max()) + 1
        if most > self._flows:
            self._begin_rows(most)
        self._loop(
            column(keep.view(np.uint8), np.uint8),
            column(packets.flow),
            column(packets.src),
            column(packets.dst),
            column(packets.dest_qpn),
            column(packets.opcode),
            column(packets.tclass, np.uint8),
            column(packets.payload_length, np.int32),
            column(packets.time_ns),
            column(packets.frame),
            column(packets.file, np.int32),
            column(packets.psn),
            column(packets.udp_sport, np.uint16),
            column(packets.vlan, np.int32),
            column(packets.priority, np.uint8),
            column(packets.roce_version, np.uint8),
        )

    def _begin_rows(self, flows: int) -> None:
        """From now on there are rows for so many flows, more than before."""
        used, wanted = self._flows * _WIDTH, flows * _WIDTH
        rows: Any = np.asarray(self._rows) if COMPILED else self._rows
        if wanted > len(rows):
            rows = _longer(rows, used, max(wanted, 2 * len(rows), _LEAST * _WIDTH))
        fresh = list(COLUMNS.values())
        if COMPILED:
            rows[used:wanted].reshape(-1, _WIDTH)[:] = fresh
        else:
            rows[used:wanted] = fresh * (flows - self._flows)
        self._rows, self._flows = rows, flows

    def _loop(
        self,
        keep: Any,
        flow: Any,
        src: Any,
        dst: Any,
        qpn: Any,
        opcode: Any,
        tclass: Any,
        payload: Any,
        time_ns: Any,
        frame: Any,
        file: Any,
        psn: Any,
        sport: Any,
        vlan: Any,
        priority: Any,
        version: Any,
    ) -> None:
        fetched = 0 if COMPILED and self._flows > _MANY else len(keep)
        with cython.nogil:
            for i in range(len(keep)):
                if i >= fetched:
                    fetched = min(i + _AHEAD, len(keep))
                    self._touched = self._fetch(flow, i, fetched)
                if not keep[i]:
                    continue
                number, code, at = flow[i], opcode[i], flow[i] * _WIDTH
                # In wide variables before they are shifted: compiled, narrow ones would make a C int.
                capture, port = file[i], sport[i]
                reference = capture << _FRAME_BITS | frame[i]
                if self._rows[at + _PACKETS] == 0:
                    self._rows[at + _SRC], self._rows[at + _DST] = src[i], dst[i]
                    self._rows[at + _QPN] = qpn[i]
                self._rows[at + _PACKETS] += 1
                self._rows[at + _PAYLOAD] += payload[i]
                if self._rows[at + _FIRST_NS] == _UNKNOWN or time_ns[i] < self._rows[at + _FIRST_NS]:
                    self._rows[at + _FIRST_NS] = time_ns[i]
                if time_ns[i] > self._rows[at + _LAST_NS]:
                    self._rows[at + _LAST_NS] = time_ns[i]
                if self._requests[code] and self._rows[at + _FIRST_PSN] == _UNKNOWN:
                    self._rows[at + _FIRST_PSN], self._rows[at + _FIRST_FRAME] = psn[i], reference
                tag = priority[i] + 1 if vlan[i] >= 0 else 0
                shape = port << 16 | tag << 8 | version[i]
                if self._rows[at + _SHAPE] == _UNKNOWN:
                    self._rows[at + _SHAPE] = shape
                elif self._rows[at + _SHAPE] != shape:
                    with cython.gil:
                        self._note_shape(number, shape)
                if self._full[code] and self._rows[at + _SIZE] != payload[i]:
                    with cython.gil:
                        self._note_size(number, payload[i], reference)
                self._count(at, code << _DSCP_BITS | tclass[i] >> _ECN_BITS, reference)

    def _fetch(self, flow: Any, start: int, end: int) -> int:
        """Read the rows of some packets' flows; gives a number that says nothing."""
        touched = 0
        for i in range(start, end):
            at = flow[i] * _WIDTH
            touched ^= self._rows[at + _PACKETS] ^ self._rows[at + _SHAPE] ^ self._rows[at + _KINDS]
        for i in range(start, end):
            slot = self._rows[flow[i] * _WIDTH + _KINDS]
            if slot >= 0:
                touched ^= self._chains[slot + _KEY] ^ self._chains[slot + _NEXT]
        return touched

    def _count(self, at: int, key: int, reference: int) -> int:
        """Count one more packet of an opcode and DSCP in the flow whose row starts at ``at``."""
        head = slot = self._rows[at + _KINDS]
        before = _UNKNOWN
        while slot >= 0 and self._chains[slot + _KEY] != key:
            before, slot = slot, self._chains[slot + _NEXT]
        if slot < 0:
            if self._slots == self._room:
                with cython.gil:
                    self._make_room()
            slot = self._new_count(key, reference, head)
        elif slot != head:
            self._chains[before + _NEXT] = self._chains[slot + _NEXT]
            self._chains[slot + _NEXT] = head
        self._rows[at + _KINDS] = slot
        self._chains[slot + _COUNT] += 1
        self._fed += 1
        return slot

    def _make_room(self) -> None:
        self._room = max(2 * self._room, _LEAST)
        self._chains = _longer(self._chains, self._slots * _SLOT, self._room * _SLOT)

    def _new_count(self, key: int, reference: int, following: int) -> int:
        slot = self._slots * _SLOT
        self._chains[slot + _KEY], self._chains[slot + _COUNT] = key, 0
        self._chains[slot + _FIRST], self._chains[slot + _FRAME] = self._fed, reference
        self._chains[slot + _NEXT] = following
        self._slots += 1
        return slot

    def _note_shape(self, number: int, shape: int) -> None:
        before = self._rows[number * _WIDTH + _SHAPE]
        self._rows[number * _WIDTH + _SHAPE] = shape
        self.shapes.setdefault(number, {before}).add(shape)

    def _note_size(self, number: int, size: int, reference: int) -> None:
        at = number * _WIDTH
        before = self._rows[at + _SIZE]
        self._rows[at + _SIZE] = size
        if before == _UNKNOWN:
            self._rows[at + _SIZE_FRAME] = reference
            return
        seen = self.sizes.get(number)
        if seen is None:
            seen = self.sizes[number] = {before: self._rows[at + _SIZE_FRAME]}
            self._extremes[number] = min(before, size), max(before, size)
            seen[size] = reference
            return
        least, most = self._extremes[number]
        if size < least or size > most:
            self._extremes[number] = min(least, size), max(most, size)
            seen[size] = reference

    # ------------------------------------------------------------------ results

    def column(self, name: str) -> NDArray[np.int64]:
        """One of ``COLUMNS`` of all flows, by flow number."""
        values: NDArray[np.int64] = np.asarray(self._rows[: self._flows * _WIDTH], np.int64)
        values = values.reshape(-1, _WIDTH)
        return values[:, list(COLUMNS).index(name)]

    def row(self, number: int) -> dict[str, int]:
        """All of ``COLUMNS`` of one flow."""
        start = number * _WIDTH
        return dict(zip(COLUMNS, [int(self._rows[start + i]) for i in range(_WIDTH)], strict=True))

    def kinds(self, number: int) -> list[tuple[int, int, int, int]]:
        """A flow's kinds of packets, in order of the first: (opcode, DSCP, packets, frame of the first)."""
        found = []
        slot = int(self._rows[number * _WIDTH + _KINDS])
        while slot >= 0:
            key, count, first, frame, slot = (int(self._chains[slot + i]) for i in range(_SLOT))
            found.append((first, key >> DSCP_BITS, key & (1 << DSCP_BITS) - 1, count, frame))
        return [(opcode, dscp, count, frame) for _, opcode, dscp, count, frame in sorted(found)]

    def every_kind(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The kinds of packets of all flows, each once: flow numbers, opcodes and DSCPs."""
        chains = np.asarray(self._chains[: self._slots * _SLOT], np.int64).reshape(-1, _SLOT)
        heads = self.column("kinds")
        flow, slot = np.flatnonzero(heads >= 0), heads[heads >= 0]
        flows, keys = [flow[:0]], [flow[:0]]
        while len(slot):
            flows.append(flow)
            keys.append(chains[slot // _SLOT, _KEY])
            slot = chains[slot // _SLOT, _NEXT]
            flow, slot = flow[slot >= 0], slot[slot >= 0]
        key = np.concatenate(keys)
        return np.concatenate(flows), key >> DSCP_BITS, key & (1 << DSCP_BITS) - 1
