"""Transfers beside a journal: which work request became which transfer, and where the transfer's time went.

Where a QP's starting PSN is known, from the journal's ``sq_psn`` or from what the ends exchanged when they
connected, the PSNs of every work request follow by arithmetic, and the match is certain: ``matched_by =
"psn"``. Otherwise operations, lengths and their order must agree: ``matched_by = "order"``.

Clocks differ between hosts. A WR is posted before its first packet, and its WC is polled after its last ACK.
This bounds the offset between a host's clock and the capture's clock from both sides; where zero lies between
the bounds, zero is assumed.
"""

from __future__ import annotations

from rocekit.correlate.clocks import Clock
from rocekit.correlate.cm_events import PlacedEvent
from rocekit.correlate.correlation import Correlation, correlate
from rocekit.correlate.pairs import journal_pairs
from rocekit.correlate.time_split import Timing, recovery_ns, timing

__all__ = [
    "Clock",
    "Correlation",
    "PlacedEvent",
    "Timing",
    "correlate",
    "journal_pairs",
    "recovery_ns",
    "timing",
]
