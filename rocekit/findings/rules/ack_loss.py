"""``ack-loss``: the request arrived, its ACK was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer, timeout_evidence, timer_words
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories.doubts import probably
from rocekit.findings.stories.places import lost, places, probably_words, sides
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        seen = sum(s.go_backs[0].after_ack for s in stories)
        guessed = sum(not s.certain for s in stories)
        if len(stories) == 1:
            likely = " probably" if guessed else ""
            what = f"The ACK of PSN {wire_psn(stories[0].psn)} was{likely} lost"
        else:
            likely = probably(guessed, len(stories))
            what = f"{plural(len(stories), 'ACK')} lost{likely}"
        placed, where = places(evidence, stories)
        found = costs(stories) | timeout_evidence(evidence, stories) | placed | sides(stories)
        found["acknowledgement_captured"] = seen
        yield RULE.finding(
            f"{what} on {connection.way(1 - side)}: {cost_words(stories)}{lost(where)}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=RULE.what_to_do + timer_words(found) + probably_words(stories, _GROUND),
        )


_GROUND: Final = (
    "either the request or its ACK was lost, and the other losses in this capture make the ACK likelier"
)
RULE = Rule(
    "ack-loss",
    WARNING,
    "the request arrived, its ACK was lost",
    "The responder received and executed the request, but its ACK was lost on the way back. The requester "
    "waited for its timeout and sent the request again; the responder acknowledged the duplicates.",
    "Packets sent again after a silence although their ACK was captured. Or the first packet of the repeat "
    "is answered by an ACK of packets that had not been repeated yet.",
    "tail-loss: the request itself was lost. A responder slower than the requester's timeout: then both "
    "ACKs are captured in the end; raise the timeout.",
    "Look for drops on the way from the responder to the requester. ACKs often use another traffic class "
    "or another path than the data: compare DSCP and UDP source port of both directions. The counter "
    "duplicate_request at the responder counts these repeats.",
    _look,
)
