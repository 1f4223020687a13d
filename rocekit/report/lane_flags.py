"""What the tracker judged of single packets, laid onto the rows of lanes."""

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
    from rocekit.track.transfers import Event

Ints = NDArray[np.int64]


def events_by_lane(analysis: Results) -> dict[int, list[Event]]:
    """Every event, by its lane's number."""
    found: dict[int, list[Event]] = defaultdict(list)
    for transfer in analysis.transfers:
        events = transfer.events
        if events:
            found[2 * transfer.connection.id + transfer.side] += events
    for connection in analysis.connections:
        for event in connection.stray_events:
            found[2 * connection.id + event.side].append(event)
    return found


def flag_judged(
    flags: NDArray[np.uint8], frame: Ints, time_ns: Ints, psn: Ints, events: Iterable[Event]
) -> None:
    """Mark of a lane's packets those doubled by the network, overtaken by others, or that did not arrive."""
    bits = {"duplicate": DUPLICATE, "late": LATE}
    refusals = []
    for event in events:
        bit = bits.get(event.kind)
        if bit is not None:
            at = int(np.searchsorted(frame, event.frame))
            while at < len(frame) and frame[at] <= max(event.last_frame, event.frame):
                if event.psn <= psn[at] <= event.last_psn:
                    flags[at] |= bit
                at += 1
        elif event.kind in ("nak", "rnr_nak"):
            refusals.append(event)
    if refusals:
        _flag_lost(flags, time_ns, psn, refusals)


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
