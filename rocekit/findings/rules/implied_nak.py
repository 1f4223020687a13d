"""``implied-nak``: a READ response or an atomic's answer was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames, costs, main_transfer, price, touched
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories.places import places
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        operations = sorted({t.operation for t in touched(stories)})
        again = [e for t in touched(stories) for e in t.events if e.kind == "response_repeat"]
        holes = [e for t in touched(stories) for e in t.events if e.kind == "response_hole"]
        if len(stories) == 1:
            what = f"The response with PSN {wire_psn(stories[0].psn)} was lost"
        else:
            what = f"{plural(len(stories), 'loss', 'losses')} of responses"
        placed, told = places(evidence, stories)
        found = (
            costs(stories)
            | placed
            | {
                "operations": operations,
                "repeated_responses": sum(e.count for e in again),
                "repeated_response_bytes": sum(e.bytes for e in again),
                "skipped_responses": sum(e.count for e in holes),
            }
        )
        yield RULE.finding(
            f"{what} on {connection.way(1 - side)}, and asked for again: {price(stories)}, "
            f"{plural(found['repeated_responses'], 'response')} repeated{told}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
        )


RULE = Rule(
    "implied-nak",
    WARNING,
    "a READ response or an atomic's answer was lost",
    "A READ response or an atomic's answer was lost. Nobody can NAK a response: the requester noticed the "
    "gap (or waited for its timeout) and asked again from the first missing response on (IBA Vol. 1, "
    "9.7.5.2.3).",
    "A response PSN passed over, then a READ request for the rest, its address moved and its length "
    "shortened; or an atomic sent again although it had been answered.",
    "loss and tail-loss (the READ request itself was lost: then no response to it was captured). Responses "
    "that came out of order are asked for again too.",
    "Look for drops on the way from the responder to the requester: the data of READs travels in the "
    "responses, so the responder's egress queue and the requester's ingress buffers are the places to look "
    "at (implied_nak_seq_err and rx_discards counters at the requester).",
    _look,
)
