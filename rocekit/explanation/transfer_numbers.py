# cython: boundscheck=False, wraparound=False, initializedcheck=False
"""What transfers have, as the rows of tables of numbers, filled in one pass over all of them.

A large capture has millions of transfers: to ask each for one attribute after the other takes many times as
long. Tables have integers of 64 bits, and a column for each transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocekit.track.transfers import NOTHING

if TYPE_CHECKING:
    from rocekit.track.transfers import Transfer

#: The rows that say where transfers are.
PLACES: Final = ("id", "connection", "side", "first_psn", "last_psn", "first_frame", "last_frame")
#: The others. ``va`` is split, as it has 64 bits without a sign; ``operation`` and ``status`` are the numbers
#: of their words; ``bits`` has those of ``BITS``, the lowest first.
FIGURES: Final = (
    *("operation", "status", "bits", "first_ns", "last_ns", "request_end_ns", "ack_ns", "ack_frame"),
    *("bytes", "packets", "retransmitted_packets", "naks", "rnr_naks", "timeouts", "duplicates"),
    *("va_high", "va_low", "key"),
)
#: ``lacks``: packets of it are missing. ``particular``: it has ``Particulars``.
BITS: Final = ("eventful", "acked", "particular", "started", "lacks")
#: No packet is as old. Without an acknowledgement, ``ack_ns`` is older still.
_OLDEST_NS: Final = -(1 << 61)
_LOW: Final = 0xFFFFFFFF


def fill_places(transfers: list[Transfer], table: Any) -> None:
    """Fill a table of ``PLACES``."""
    for i, t in enumerate(transfers):
        connection = t.connection
        table[0, i], table[1, i], table[2, i] = t.id, connection.id, t.side
        table[3, i], table[4, i] = t.first_psn, t.last_psn
        table[5, i], table[6, i] = t.first_frame, t.last_frame


def fill_figures(transfers: list[Transfer], table: Any, words: dict[str, int]) -> None:
    """Fill a table of ``FIGURES``.

    Args:
        words: numbers of operations and states; new words get the next ones.
    """
    for i, t in enumerate(transfers):
        eventful, particular = len(t.events) > 0, t.particulars is not None
        lacks = t.missing is not NOTHING or t.responses_missing is not NOTHING
        acked, started = t.ack_ns > _OLDEST_NS, t.started
        table[0, i] = words.setdefault(t.operation, len(words))
        table[1, i] = words.setdefault(t.status, len(words))
        table[2, i] = eventful | acked << 1 | particular << 2 | started << 3 | lacks << 4
        table[3, i], table[4, i], table[5, i] = t.first_ns, t.last_ns, t.request_end_ns
        table[6, i], table[7, i] = t.ack_ns, t.ack_frame
        table[8, i], table[9, i], table[10, i] = t.bytes, t.packets, t.retransmitted_packets
        table[11, i], table[12, i], table[13, i], table[14, i] = t.naks, t.rnr_naks, t.timeouts, t.duplicates
        table[15, i], table[16, i], table[17, i] = t.va >> 32, t.va & _LOW, t.key
