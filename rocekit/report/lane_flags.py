"""Flags of single packets in lanes: what the tracker found about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.report.collector import DUPLICATE, LATE, LOST, RESPONSE

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.events import Event

Ints = NDArray[np.int64]


def events_by_lane(analysis: Results) -> dict[int, list[Event]]:
    """Every event, by lane number."""
    found: dict[int, list[Event]] = defaultdict(list)
    for transfer in analysis.transfers:
        events = transfer.events
        if events:
            found[2 * transfer.connection.id + transfer.side] += events
    for connection in analysis.connections:
        for event in connection.stray_events:
            found[2 * connection.id + event.side].append(event)
    return found


def flag_packets(
    flags: NDArray[np.uint8], frame: Ints, time_ns: Ints, psn: Ints, events: Iterable[Event]
) -> None:
    """Flag the packets of a lane that came twice or reordered, or did not arrive."""
    bits = {"duplicate": DUPLICATE, "late": LATE}
    naks = []
    for event in events:
        bit = bits.get(event.kind)
        if bit is not None:
            at = int(np.searchsorted(frame, event.frame))
            while at < len(frame) and frame[at] <= max(event.last_frame, event.frame):
                if event.psn <= psn[at] <= event.last_psn:
                    flags[at] |= bit
                at += 1
        elif event.kind in ("nak", "rnr_nak"):
            naks.append(event)
    if naks:
        _flag_lost(flags, time_ns, psn, naks)


def _flag_lost(flags: NDArray[np.uint8], time_ns: Ints, psn: Ints, events: list[Event]) -> None:
    """The PSN in a NAK "PSN sequence error" did not arrive when it was last sent.

    Unless an RNR NAK had rejected it: then it had arrived, and the NAK is a consequence.
    """
    requests = np.flatnonzero(flags & RESPONSE == 0)
    order = requests[np.argsort(psn[requests], kind="stable")]
    known = psn[order]
    rejected: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.kind == "rnr_nak":
            rejected[event.psn].append(event.time_ns)
    for event in events:
        if event.kind != "nak" or wire.syndrome_value(event.syndrome or 0) != wire.NAK_SEQUENCE_ERROR:
            continue
        low, high = np.searchsorted(known, [event.psn, event.psn + 1])
        sent = order[low:high]
        before = int(np.searchsorted(time_ns[sent], event.time_ns)) - 1
        if before < 0:
            continue
        row = int(sent[before])
        if not any(time_ns[row] < t <= event.time_ns for t in rejected.get(event.psn, ())):
            flags[row] |= LOST
