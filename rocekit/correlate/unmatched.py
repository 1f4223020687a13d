"""Why nothing of a journal is in the capture: it is of other hosts, of another time, or empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rocekit.correlate.places import named_alike, places_by_qpn
from rocekit.wire.words import duration

if TYPE_CHECKING:
    from rocekit.journal import Journal
    from rocekit.journal.work_requests import JournalQp
    from rocekit.track.cm_exchanges import Exchange
    from rocekit.track.connections import Connection

_HOUR_NS: Final = 3600 * 10**9


def why_nothing(
    journal: Journal,
    qps: Sequence[JournalQp],
    connections: Sequence[Connection],
    exchanges: Sequence[Exchange],
) -> str:
    """The reasons in words, for a journal of which no QP and no CM event was found in the capture."""
    if not journal.events:
        return "the journal is empty"
    reasons = [_about_qps(qps, connections)]
    apart = _apart(journal, connections, exchanges)
    return "; ".join([*reasons, apart] if apart else reasons)


def _about_qps(qps: Sequence[JournalQp], connections: Sequence[Connection]) -> str:
    if not qps:
        return "the journal has no QP"
    places = places_by_qpn(connections)
    if any(named_alike(qp, places) for qp in qps):
        return "QPs of the capture have the same addresses and QPNs, but neither the time nor the PSNs fit"
    known = {ip for c in connections for ip in c.ips}
    own = {ip for qp in qps if (ip := qp.attributes.get("local_ip")) is not None}
    if connections and own and not own & known:
        return f"no QP of it is in the capture, which has no packets of its host ({', '.join(sorted(own))})"
    return "no QP of it is in the capture"


def _long(ns: int) -> str:
    """A time span in words, hours and days included."""
    if ns < 2 * _HOUR_NS:
        return duration(ns)
    return f"{ns / _HOUR_NS:.1f} h" if ns < 48 * _HOUR_NS else f"{ns / _HOUR_NS / 24:.1f} days"


def _apart(journal: Journal, connections: Sequence[Connection], exchanges: Sequence[Exchange]) -> str:
    """How long the journal ended before the capture began, or began after it; empty if they overlap."""
    starts = [c.first_ns for c in connections if c.first_ns is not None]
    ends = [c.last_ns for c in connections if c.last_ns is not None]
    times = [r.time_ns for x in exchanges for r in x.records]
    if not starts + times:
        return ""
    first, last = min(starts + times), max(ends + times)
    if journal.events[-1].time_ns < first:
        return f"it ends {_long(first - journal.events[-1].time_ns)} before the capture starts"
    if journal.events[0].time_ns > last:
        return f"it starts {_long(journal.events[0].time_ns - last)} after the capture ends"
    return ""
