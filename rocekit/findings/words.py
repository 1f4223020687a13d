"""Numbers and places as findings write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.psn import MASK

if TYPE_CHECKING:
    from rocekit.connections import Connection


def duration(ns: float) -> str:
    """A time span with three digits that matter: ``412 µs``, ``1.07 s``."""
    for limit, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if abs(ns) < limit:
            return f"{ns / (limit / 1e3):.3g} {unit}"
    return f"{ns / 1e9:.3g} s" if abs(ns) < 1e12 else f"{ns / 1e9:,.0f} s"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """``1 packet``, ``1,234 packets``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def wire_psn(psn: int) -> int:
    """The 24 bits of an unwrapped PSN that travel."""
    return psn & MASK


def psn_range(first: int, last: int) -> str:
    """``PSN 7`` or ``PSN 7–12``."""
    return f"PSN {first & MASK}" if first == last else f"PSN {first & MASK}–{last & MASK}"


def end(connection: Connection, side: int) -> str:
    """``10.9.0.1 QP 0x11``; the QP is left out where nothing reveals it."""
    qpn = connection.qpns[side]
    place = connection.ips[side] or "?"
    return place if qpn is None else f"{place} QP {qpn:#x}"


def way(connection: Connection, side: int) -> str:
    """``10.9.0.1 QP 0x11 → 10.9.0.2 QP 0x12``, from ``side``."""
    return f"{end(connection, side)} → {end(connection, 1 - side)}"
