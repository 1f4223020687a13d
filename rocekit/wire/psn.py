"""Packet sequence numbers: 24-bit serial numbers that wrap (IBA Vol. 1, 9.2 and 9.7.1).

Inside the analysis PSNs are *unwrapped*: plain integers that keep growing, whose low 24 bits are the PSN on
the wire.
"""

from __future__ import annotations

from rocekit.wire import PSN_BITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MODULO: Final = 1 << PSN_BITS
MASK: Final = MODULO - 1
HALF: Final = MODULO >> 1


def add(psn: int, count: int) -> int:
    """The PSN ``count`` places after ``psn`` (before it, if negative)."""
    return (psn + count) & MASK


def diff(a: int, b: int) -> int:
    """How far ``a`` is ahead of ``b``: −2^23 … 2^23 − 1.

    Half of the space is behind: the region of duplicates (9.7.1).
    """
    return ((a - b + HALF) & MASK) - HALF


def unwrap(psn: int, near: int) -> int:
    """The unwrapped PSN closest to ``near`` whose low 24 bits are ``psn``."""
    return near + diff(psn, near & MASK)


def wire_psn(psn: int) -> int:
    """The PSN on the wire: the low 24 bits of an unwrapped one."""
    return psn & MASK
