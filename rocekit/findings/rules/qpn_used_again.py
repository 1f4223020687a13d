"""``qpn-used-again``: a requester is back at its first PSN, although all that it had sent was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames
from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.findings.stories import USED_AGAIN
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        story, repeats = stories[0], stories[0].repeats
        waited_ns = repeats[0].waited_ns if repeats else 0
        after = f" after {duration(waited_ns)}" if waited_ns > 0 else ""
        yield RULE.finding(
            f"{story.connection.way(story.side)} begins again at PSN {wire_psn(story.psn)}{after}, and "
            "all before was answered: another QP with the same number, or everything sent again",
            connection=story.connection,
            transfer=story.transfer,
            frames=all_frames([story]),
            evidence={
                "psn": wire_psn(story.psn),
                "waited_ns": max(0, waited_ns),
                "packets": sum(s.repeated_packets for s in stories),
            },
        )


RULE = Rule(
    USED_AGAIN,
    INFO,
    "a requester begins again at its first PSN, or before it, although it had answers",
    "A program that ends and starts again may get a QP with the same number, and many start with the same "
    "PSN each time. Its packets look like those of a requester that got no response and sends everything "
    "again. They count as sent again, and nothing is said of a loss.",
    "The requester is back at the first PSN of the capture, or before it, and the capture has several "
    "responses to all that it had sent.",
    "ack-loss: the responses were lost behind the capture point, all of them. A capture at the requester, "
    "its journal or the CM's messages tell which of the two it is.",
    "Capture the connection's start too: the exchange of the CM, or of the program over TCP, separates the "
    "two QPs.",
    _look,
)
