"""What the tracker judged of single packets, laid onto the rows of lanes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.report.collect import DUPLICATE, LATE, LOST, RESPONSE

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.transfers import Event

Ints = NDArray[np.int64]


def _events(analysis: Analysis) -> Iterator[tuple[int, Event]]:
    """Every event and its lane."""
    for transfer in analysis.transfers:
        for event in transfer.events:
            yield 2 * transfer.connection.id + transfer.side, event
    for connection in analysis.connections:
        for event in connection.stray_events:
            yield 2 * connection.id + event.side, event


def flag_judged(
    flags: NDArray[np.uint8], frame: Ints, time_ns: Ints, psn: Ints, first: Ints, analysis: Analysis
) -> None:
    """Mark packets doubled by the network, those that others overtook, and those that did not arrive."""
    bits = {"duplicate": DUPLICATE, "late": LATE}
    refusals: dict[int, list[Event]] = defaultdict(list)
    for lane, event in _events(analysis):
        bit = bits.get(event.kind)
        if bit is not None:
            at, high = int(first[lane]), int(first[lane + 1])
            at += int(np.searchsorted(frame[at:high], event.frame))
            while at < high and frame[at] <= max(event.last_frame, event.frame):
                if event.psn <= psn[at] <= event.last_psn:
                    flags[at] |= bit
                at += 1
        elif event.kind in ("nak", "rnr_nak"):
            refusals[lane].append(event)
    for lane, events in refusals.items():
        rows = slice(int(first[lane]), int(first[lane + 1]))
        _flag_lost(flags[rows], time_ns[rows], psn[rows], events)


def _flag_lost(flags: NDArray[np.uint8], time_ns: Ints, psn: Ints, events: list[Event]) -> None:
    """What a NAK "PSN sequence error" names did not arrive when it was last sent.

    Unless an RNR NAK had turned it away: then it had arrived, and the NAK is its effect.
    """
    asked = np.flatnonzero(flags & RESPONSE == 0)
    order = asked[np.argsort(psn[asked], kind="stable")]
    known = psn[order]
    turned: dict[int, list[int]] = defaultdict(list)
    for event in events:
        if event.kind == "rnr_nak":
            turned[event.psn].append(event.time_ns)
    for event in events:
        if event.kind != "nak" or wire.syndrome_value(event.syndrome or 0) != wire.NAK_SEQUENCE_ERROR:
            continue
        low, high = np.searchsorted(known, [event.psn, event.psn + 1])
        sent = order[low:high]
        before = int(np.searchsorted(time_ns[sent], event.time_ns)) - 1
        if before < 0:
            continue
        row = int(sent[before])
        if not any(time_ns[row] < t <= event.time_ns for t in turned.get(event.psn, ())):
            flags[row] |= LOST
