"""Packets with wrong ICRCs: corrupted ones, which no receiver accepts, or a capture without valid ICRCs.

A receiver drops a packet whose ICRC is wrong (IBA Vol. 1, 9.6), so it is not tracked: its fields may be
damaged, addresses and QPN included. But some captures, devices and middleboxes do not keep ICRCs. So the
wrong packets of a flow that has had no valid one wait here. If they become many, the flow has no others and
is tracked as it is, with all flows between its two hosts that wait too: one READ request has many responses,
and what came before them must be tracked before them. So is a whole capture without a single valid ICRC. How
packets are batched does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.packets.rows import Rows
from rocekit.wire import MAD_QPNS

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.wire.mad import Mad

#: So many wrong packets in a row from a flow's start are no accident.
ENOUGH: Final = 16
#: Suspects kept of all flows together; more are only noted.
MAX_KEPT: Final = 4096


class Suspect(NamedTuple):
    """A waiting packet, alone in its rows, its MAD if it is one, and how many waited before it.

    Several captures are tracked in one order of time, which the frames of each do not tell.
    """

    rows: Rows
    mad: Mad | None
    place: int


class Suspects:
    """The waiting packets, and the frames of those judged to be corrupted.

    Attributes:
        wrong: (flow key, frame reference) of corrupted packets.
    """

    def __init__(self) -> None:
        self.wrong: list[tuple[int, int]] = []
        self._held: dict[int, list[Suspect]] = {}
        self._between: dict[tuple[int, int], dict[int, None]] = {}
        self._count = self._came = 0

    def note(self, key: int, frame: int) -> None:
        """A corrupted packet of a flow whose other ICRCs are valid."""
        self._forget(key)
        self.wrong.append((key, frame))

    def hold(self, key: int, packets: Packets, i: int) -> tuple[Iterable[int], list[Suspect]]:
        """Keep packet ``i`` waiting.

        Once its flow has enough of them: the keys of the flows that wait between its two hosts, and their
        packets in order, to be tracked.
        """
        row = packets.where(slice(i, i + 1))
        rows = Rows(row)
        if self._count >= MAX_KEPT:
            self.wrong.append((key, rows.frame[0]))
            return (), []
        from rocekit.wire.mad import parse_mad

        mad = parse_mad(row.payload(0)) if rows.dest_qpn[0] in MAD_QPNS and row.has_payload else None
        held = self._held.setdefault(key, [])
        held.append(Suspect(rows, mad, self._came))
        self._came += 1
        self._count += 1
        keys = self._between.setdefault(_hosts(held[0]), {})
        keys[key] = None
        if len(held) < ENOUGH:
            return (), []
        del self._between[_hosts(held[0])]
        waiting = _in_order(self._held.pop(key) for key in keys)
        self._count -= len(waiting)
        return keys, waiting

    def settle(self, *, believe: bool) -> list[Suspect]:
        """The end: if no ICRC of the capture was valid, give back what waits, in order; else note it."""
        if believe:
            waiting = _in_order(self._held.values())
            self._held.clear()
            self._between.clear()
            return waiting
        for key in list(self._held):
            self._forget(key)
        return []

    def _forget(self, key: int) -> None:
        held = self._held.pop(key, None)
        if held is None:
            return
        hosts = _hosts(held[0])
        self._between[hosts].pop(key)
        if not self._between[hosts]:
            del self._between[hosts]
        self._count -= len(held)
        self.wrong += [(key, suspect.rows.frame[0]) for suspect in held]


def _hosts(suspect: Suspect) -> tuple[int, int]:
    """The numbers of a packet's two addresses, the lower one first."""
    src, dst = suspect.rows.src[0], suspect.rows.dst[0]
    return (src, dst) if src < dst else (dst, src)


def _in_order(flows: Iterable[list[Suspect]]) -> list[Suspect]:
    return sorted((s for held in flows for s in held), key=lambda s: s.place)
