"""``counter-mismatch``: a device counted something else than the packets of the capture show."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.counters:
        return
    from rocekit.counters.comparison import DIFFERS

    differing = [c for c in evidence.counters if c.verdict == DIFFERS and c.certain]
    for (host, place), group in groupby(differing, key=lambda c: (c.host, c.place)):
        counters = list(group)
        worst = max(counters, key=lambda c: abs(c.difference or 0))
        more = f", and {plural(len(counters) - 1, 'further counter')}" if len(counters) > 1 else ""
        yield RULE.finding(
            f"{worst.counter} of {place} went up by {worst.went_up_by:,}, the packets account for "
            f"{worst.predicted:,}{more}",
            evidence={
                "host": host,
                "device": place.device,
                "interface": place.interface,
                "counters": [
                    {
                        "counter": c.counter,
                        "went_up_by": c.went_up_by,
                        "predicted": c.predicted,
                        "words": c.words,
                    }
                    for c in counters
                ],
            },
        )


RULE = Rule(
    "counter-mismatch",
    INFO,
    "a device's counters and the packets disagree",
    "Between two snapshots of a device's counters, a counter went up by another number than the packets of "
    "the capture account for. Where the counter saw more, the capture lacks packets, and what other findings "
    "say of missing packets is doubtful. Where it saw fewer, packets were lost between the capture and the "
    "device, or came for a QP that was gone.",
    "Snapshots in the journal, and a capture that was taken at the device. Reported only where the capture "
    "covers the time between the snapshots, and for drivers whose counters were checked (rxe).",
    "capture-gap: there the packets themselves show that some are missing.",
    "Compare `tc -s qdisc show dev IFACE` and the capture's own drops. Packets that a device sends to itself "
    "are counted and never captured.",
    _look,
)
