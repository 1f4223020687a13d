"""``needless-repeat``: packets sent again although nothing shows a loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames, costs, main_transfer, timeout_evidence
from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        packets = sum(s.repeated_packets for s in stories)
        found = costs(stories) | timeout_evidence(evidence, stories)
        found["in_mid_message"] = sum(s.go_backs[0].opener.mid_message for s in stories)
        waits = duration(found["waited_min_ns"])
        if found["waited_max_ns"] > found["waited_min_ns"]:
            waits += f" to {duration(found['waited_max_ns'])}"
        yield RULE.finding(
            f"{plural(packets, 'packet')} sent again on {connection.way(side)} after {waits}, but nothing "
            "shows a loss",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
        )


RULE = Rule(
    "needless-repeat",
    INFO,
    "sent again although nothing shows a loss",
    "A requester sent packets again although the capture shows no loss: before its local ACK timeout can "
    "have expired, just after the ACK, or in the middle of a message before an ACK was due.",
    "Repeats without NAK or hole, sooner than the timeout or at the same time as the ACK; no other losses "
    "in that direction of the capture.",
    "tail-loss: the rest of the message was lost before the capture point; known by a wait as long as the "
    "timeout, or by other losses in that direction. ack-loss: the wait is as long as the timeout.",
    "Nothing, as long as it is rare. A stalled sender (a busy host, soft RoCE in an emulator) does this. "
    "If it is frequent, the local ACK timeout is probably shorter than the time in which the responder "
    "answers: raise it.",
    _look,
)
