"""What findings need of packets beside their messages: corrupted packets, and each one-way flow.

The tracker follows messages. What needs no order of messages (a flow's traffic classes, congestion marks,
wrong ICRCs, sizes of full packets) is collected here, a batch at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frame_names import FRAME_BITS
from rocekit.flows.first_messages import FirstMessages
from rocekit.flows.scopes import FlowKey
from rocekit.flows.silences import Silences
from rocekit.flows.table import CNP, REQUEST, RESPONSE, FlowTable
from rocekit.packets import ICRC_INVALID, ICRC_UNCHECKED
from rocekit.packets.flow_numbers import ADDRESS_BITS, FlowNumbers
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.flows.view import FlowView
    from rocekit.packets import Packets
    from rocekit.track.connections import Connection

__all__ = ["BadPacket", "Observer", "REQUEST", "RESPONSE", "CNP"]

Ints = NDArray[np.int64]

#: By opcode; the 257th row (also index −1) is that of a packet without one.
_VENDOR: Final = np.array([*wire.VENDOR, False])
_FIRST_VENDOR: Final = wire.VENDOR.index(True)
#: Corrupted packets kept one by one; more are only counted.
MAX_KEPT: Final = 10_000


class BadPacket(NamedTuple):
    """A packet with a wrong ICRC, or malformed. Its fields may be damaged.

    Attributes:
        frame: frame reference.
        malformed: 0, or a code of ``packets.malformed.MALFORMED``.
        icrc_wrong: whether the ICRC is wrong.
    """

    frame: int
    time_ns: int
    src: str
    dst: str
    dest_qpn: int
    psn: int
    opcode: int
    malformed: int
    icrc_wrong: bool


class Observer:
    """Collects from batches of packets what findings need and the tracker does not keep.

    Attributes:
        first_ns, last_ns: of all RoCE packets.
        bad: packets with wrong ICRCs or malformed, in the capture's order; bad_count: how many there are.
        flows: by their keys (see ``scopes``), without management datagrams.
        messages: what the first messages of each flow say; fed apart, with batches that have their payloads.
        silences: when a host sent nothing of a traffic class.
        vendor: by opcode that is left to vendors, the first ``MAX_KEPT`` frames whose ICRC is not wrong.
        vendor_counts: how many there are; vendor_unchecked: whether the ICRC of some was not checked.
        table: the same flows as columns; ``number`` gives a flow's row.
        heard: by (source, destination address), the time of the last packet.
        addresses: by number.
    """

    def __init__(self) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.bad: list[BadPacket] = []
        self.bad_count = 0
        self.vendor: dict[int, list[int]] = {}
        self.vendor_counts: dict[int, int] = {}
        self.vendor_unchecked = False
        self.messages = FirstMessages()
        self.silences = Silences()
        self.table = FlowTable()
        self._numbers: dict[FlowKey, int] | None = None
        self._views: dict[int, FlowView] = {}
        self._heard: dict[tuple[str, str], int] | None = None
        self.addresses: list[str] = []
        self._forget_others()

    @property
    def flows(self) -> dict[FlowKey, FlowView]:
        return self.table.views()

    @property
    def heard(self) -> dict[tuple[str, str], int]:
        if self._heard is None:
            self._heard = self.table.heard()
        return self._heard

    def _forget_others(self) -> None:
        # The ways of packets that are not in flows: their numbers, and by number (see ``FlowTable.ways``).
        self._others = FlowNumbers()
        self._other_ways: list[Ints] = []

    def _note_others(self, packets: Packets, rows: Ints) -> None:
        known = self._others.count
        src, dst = packets.src[rows].astype(np.int64), packets.dst[rows].astype(np.int64)
        is_new = self._others.of(src, dst, np.zeros(len(rows), np.int64)) >= known
        self._other_ways.append(distinct(src[is_new] << ADDRESS_BITS | dst[is_new]))

    def ways(self) -> Ints:
        """The ways of all packets, as ``FlowTable.ways`` has them."""
        ways = self.table.ways()
        return distinct(np.concatenate([ways, *self._other_ways])) if self._other_ways else ways

    def number(self, src: str | None, dst: str | None, qpn: int | None, scope: int = 0) -> int | None:
        """The row in ``table`` of the flow from ``src`` to a QP at ``dst``; None if nothing was seen."""
        if self._numbers is None:
            self._numbers = self.table.numbers()
        return self._numbers.get((src, dst, qpn, scope))  # type: ignore[arg-type]

    def flow(self, connection: Connection, side: int) -> FlowView | None:
        """What ``side`` of a connection sends; None if nothing was seen or its peer's QPN is unknown."""
        number = self.number(*connection.way_key(side))
        if number is None:
            return None
        view = self._views.get(number)
        if view is None:
            view = self._views[number] = self.table.view(number)
        return view

    def begin_anew(self) -> None:
        """Forget all flows; from now on the numbers of flows and addresses are others."""
        self.table, self.silences = FlowTable(), Silences()
        self._numbers = self._heard = None
        self._views.clear()
        self._forget_others()
        self.messages.begin_anew()

    def feed(self, packets: Packets) -> None:
        """Add a batch of packets; batches come in order of time."""
        if not len(packets):
            return
        self.addresses = packets.addresses
        first, last = int(packets.time_ns.min()), int(packets.time_ns.max())
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.last_ns = last if self.last_ns is None else max(last, self.last_ns)
        wrong = (packets.icrc_state == ICRC_INVALID) | (packets.malformed != 0)
        if wrong.any():
            self._note_bad(packets, np.flatnonzero(wrong))
        usable = (packets.opcode >= 0) & (packets.dest_qpn > max(wire.MAD_QPNS))
        if (packets.opcode >= _FIRST_VENDOR).any():
            vendor = _VENDOR[packets.opcode] & ~wrong
            usable &= ~vendor
            self._note_vendor(packets, np.flatnonzero(vendor))
        self._note_flows(packets, wrong, usable)

    def _note_bad(self, packets: Packets, rows: Ints) -> None:
        self.bad_count += len(rows)
        for i in rows[: max(0, MAX_KEPT - len(self.bad))].tolist():
            self.bad.append(
                BadPacket(
                    int(packets.file[i]) << FRAME_BITS | int(packets.frame[i]),
                    int(packets.time_ns[i]),
                    packets.addresses[int(packets.src[i])],
                    packets.addresses[int(packets.dst[i])],
                    int(packets.dest_qpn[i]),
                    int(packets.psn[i]),
                    int(packets.opcode[i]),
                    int(packets.malformed[i]),
                    bool(packets.icrc_state[i] == ICRC_INVALID),
                )
            )

    def _note_vendor(self, packets: Packets, rows: Ints) -> None:
        frames = packets.frame[rows] + (packets.file[rows].astype(np.int64) << FRAME_BITS)
        self.vendor_unchecked |= bool((packets.icrc_state[rows] == ICRC_UNCHECKED).any())
        for opcode, frame in zip(packets.opcode[rows].tolist(), frames.tolist(), strict=True):
            self.vendor_counts[opcode] = self.vendor_counts.get(opcode, 0) + 1
            kept = self.vendor.setdefault(opcode, [])
            if len(kept) < MAX_KEPT:
                kept.append(frame)

    def _note_flows(self, packets: Packets, wrong: NDArray[np.bool_], usable: NDArray[np.bool_]) -> None:
        if np.count_nonzero(wrong) * 2 < len(packets):  # else all ICRCs here are wrong: see the rule icrc-bad
            usable &= ~wrong
        if not usable.all():
            self._note_others(packets, np.flatnonzero(~usable))
        if usable.any():
            self._numbers = self._heard = None
            self._views.clear()
            self.table.feed(packets, usable)
            self.silences.feed(packets, usable)
