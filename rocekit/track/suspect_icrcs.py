"""Packets with wrong ICRCs: corrupted ones, which no receiver accepts, or a capture without valid ICRCs.

A receiver drops a packet whose ICRC is wrong (IBA Vol. 1, 9.6), so it is not tracked: its fields may be
damaged, addresses and QPN included. But some captures, devices and middleboxes do not keep ICRCs. So the
wrong packets of a flow that has had no valid one wait here. If they become many, the flow has no others and
is tracked as it is; so is a whole capture without a single valid ICRC. How packets are batched does not
matter.
"""

from __future__ import annotations

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
    """A waiting packet, alone in its rows, and its MAD if it is one."""

    rows: Rows
    mad: Mad | None


class Suspects:
    """The waiting packets, and the frames of those judged to be corrupted.

    Attributes:
        wrong: (flow key, frame reference) of corrupted packets.
    """

    def __init__(self) -> None:
        self.wrong: list[tuple[int, int]] = []
        self._held: dict[int, list[Suspect]] = {}
        self._count = 0

    def note(self, key: int, frame: int) -> None:
        """A corrupted packet of a flow whose other ICRCs are valid."""
        self._forget(key)
        self.wrong.append((key, frame))

    def hold(self, key: int, packets: Packets, i: int) -> list[Suspect]:
        """Keep packet ``i`` waiting; once its flow has enough of them, give them back to be tracked."""
        row = packets.where(slice(i, i + 1))
        rows = Rows(row)
        if self._count >= MAX_KEPT:
            self.wrong.append((key, rows.frame[0]))
            return []
        from rocekit.wire.mad import parse_mad

        mad = parse_mad(row.payload(0)) if rows.dest_qpn[0] in MAD_QPNS and row.has_payload else None
        held = self._held.setdefault(key, [])
        held.append(Suspect(rows, mad))
        self._count += 1
        if len(held) < ENOUGH:
            return []
        self._count -= len(held)
        return self._held.pop(key)

    def settle(self, *, believe: bool) -> list[Suspect]:
        """The end: if no ICRC of the capture was valid, give back what waits, in order; else note it."""
        if believe:
            waiting = [s for held in self._held.values() for s in held]
            self._held.clear()
            return sorted(waiting, key=lambda s: s.rows.frame[0])
        for key in list(self._held):
            self._forget(key)
        return []

    def _forget(self, key: int) -> None:
        for suspect in self._held.pop(key, ()):
            self._count -= 1
            self.wrong.append((key, suspect.rows.frame[0]))
