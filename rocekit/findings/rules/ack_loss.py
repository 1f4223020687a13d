"""``ack-loss``: the request arrived, its acknowledgement did not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames, costs, main_transfer, price, timeout_evidence, timer_words
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories.places import places
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        seen = sum(s.go_backs[0].after_ack for s in stories)
        if len(stories) == 1:
            what = f"The acknowledgement of PSN {wire_psn(stories[0].psn)} was lost"
        else:
            what = f"{plural(len(stories), 'acknowledgement')} lost"
        placed, told = places(evidence, stories)
        found = costs(stories) | timeout_evidence(evidence, stories) | placed
        found["acknowledgement_captured"] = seen
        yield RULE.finding(
            f"{what} on {connection.way(1 - side)}: {price(stories)} for nothing{told}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=RULE.what_to_do + timer_words(found),
        )


RULE = Rule(
    "ack-loss",
    WARNING,
    "the request arrived, its acknowledgement did not",
    "The responder received and executed the request, but its acknowledgement was lost on the way back. The "
    "requester waited for its timeout and sent again what had arrived; the responder answered the "
    "duplicates.",
    "Packets sent again after a silence although their acknowledgement was captured; or the repeat's first "
    "packet is answered by an acknowledgement of packets that had not been repeated yet.",
    "tail-loss (the request itself was lost). A responder that answers more slowly than the requester's "
    "timeout: then both acknowledgements are captured in the end; raise the timeout.",
    "Look for drops on the way from the responder to the requester: acknowledgements often ride another "
    "class or another path than the data (compare DSCP and UDP source port of both directions). At the "
    "responder duplicate_request counts these repeats.",
    _look,
)
