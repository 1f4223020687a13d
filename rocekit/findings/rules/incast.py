"""``incast``: packets of many hosts to one are marked at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.finding import INFO, MAX_LISTED, Finding, Rule
from rocekit.flows import RATE_NS

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

#: Fewer senders than this at once are not called an incast.
_SENDERS: Final = 3


def _look(evidence: Evidence) -> Iterator[Finding]:
    if evidence.observer is None:
        return
    marks: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # by receiver: time, frame, sender
    known: set[object] = set()
    for connection in evidence.survey.sending("marked", 1):
        for side in (0, 1):
            way = connection.way_key(side)
            view = None if way in known else evidence.observer.flow(connection, side)
            known.add(way)  # several connections may be of one QPN, one after the other
            if view is not None:
                marks[view.dst] += [(time, frame, view.src) for time, frame in view.marked]
    for receiver, marked in marks.items():
        spans: dict[int, set[str]] = defaultdict(set)
        for time, _, sender in marked:
            spans[time // RATE_NS].add(sender)
        at_once = {span: senders for span, senders in spans.items() if len(senders) >= _SENDERS}
        if not at_once:
            continue
        inside = sorted(m for m in marked if m[0] // RATE_NS in at_once)
        most = max(map(len, at_once.values()))
        often = f", in {len(at_once):,} milliseconds" if len(at_once) > 1 else ""
        yield RULE.finding(
            f"Packets of {most} hosts to {receiver} were marked CE in the same millisecond{often}",
            frames=[frame for _, frame, _ in inside[:MAX_LISTED]],
            evidence={
                "receiver": receiver,
                "senders_at_once": most,
                "senders": sorted({sender for _, _, sender in inside})[:MAX_LISTED],
                "milliseconds": len(at_once),
                "marked_packets": len(inside),
                "first_ns": inside[0][0],
                "last_ns": inside[-1][0],
            },
        )


RULE = Rule(
    "incast",
    INFO,
    "packets of many hosts to one were marked at the same time",
    "Several hosts sent to one at the same time, and switches marked packets of each of them (congestion). "
    "Probably their traffic meets in one queue, the one of the switch's port to the receiver: there it needs "
    "more than the link has.",
    "CE on data packets of at least three hosts to the same one within a millisecond.",
    "Senders that share another queue on their way, such as an uplink; packets do not say where they were "
    "marked. A capture at a sender has only its own packets.",
    "Look at the queue of the switch's port to the receiver (ECN marks, its length, PFC frames). Spread the "
    "senders in time or over more receivers (the application's all-to-all or its stragglers), give the "
    "receiver a faster link, and let senders react to CNPs (see ecn-unanswered and cnp-storm).",
    _look,
)
