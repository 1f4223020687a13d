"""``needless-repeat``: sent again although nothing shows that anything was missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames, costs, main_transfer, timeout_evidence
from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        packets = sum(s.repeated_packets for s in stories)
        found = costs(stories) | timeout_evidence(evidence, stories)
        found["in_mid_message"] = sum(s.go_backs[0].opener.mid_message for s in stories)
        waits = duration(found["waited_min_ns"])
        if found["waited_max_ns"] > found["waited_min_ns"]:
            waits += f" to {duration(found['waited_max_ns'])}"
        yield RULE.finding(
            f"{plural(packets, 'packet')} on {connection.way(side)} sent again after {waits} though nothing "
            "shows a loss",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
        )


RULE = Rule(
    "needless-repeat",
    INFO,
    "sent again although nothing was missing",
    "A requester sent packets again although nothing in the capture was missing: before its local ACK "
    "timeout can have run out, right behind the acknowledgement, or in the middle of a message of which no "
    "acknowledgement was due yet.",
    "Repeats without NAK or hole, earlier than the timeout or crossing the acknowledgement; nothing else in "
    "the capture shows losses in that direction.",
    "tail-loss, where the rest of the message was lost before the capture point: known by a wait as long as "
    "the timeout, or by other losses in that direction. ack-loss, where the wait is as long as the timeout.",
    "Nothing, as long as it is rare. A sender that is held up (a busy host, soft RoCE under emulation) does "
    "this; if it is frequent, the local ACK timeout is shorter than the responder's answers take: raise it.",
    _look,
)
