"""``implied-nak``: a READ or atomic response was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories.doubts import doubt_words, probably
from rocekit.findings.stories.places import lost, places, probably_words, sides
from rocekit.findings.stories.story import affected
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        operations = sorted({t.operation for t in affected(stories)})
        again = [e for t in affected(stories) for e in t.events if e.kind == "response_repeat"]
        holes = [e for t in affected(stories) for e in t.events if e.kind == "response_hole"]
        either = sum(s.or_overtaken for s in stories)
        guessed = sum(not (s.certain or s.or_overtaken) for s in stories)
        if len(stories) == 1:
            likely = " lost or overtaken" if either else " probably lost" if guessed else " lost"
            what = f"The response with PSN {wire_psn(stories[0].psn)} was{likely}"
        elif either == len(stories):
            what = f"{plural(either, 'response')} were lost or overtaken"
        else:
            likely = probably(guessed, len(stories))
            likely += f", and {plural(either, 'response')} lost or overtaken" if either else ""
            what = f"{plural(len(stories) - either, 'loss', 'losses')} of responses{likely}"
        placed, where = places(evidence, stories)
        found = (
            costs(stories)
            | placed
            | sides(stories)
            | {
                "operations": operations,
                "or_overtaken": either,
                "repeated_responses": sum(e.count for e in again),
                "repeated_response_bytes": sum(e.bytes for e in again),
                "skipped_responses": sum(e.count for e in holes),
            }
        )
        yield RULE.finding(
            f"{what} on {connection.way(1 - side)}: {cost_words(stories)}, "
            f"{plural(found['repeated_responses'], 'response')} sent again{lost(where)}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=RULE.what_to_do
            + (_EITHER if either else "")
            + probably_words([s for s in stories if not (s.or_overtaken or s.gappy)], _GROUND)
            + doubt_words([s for s in stories if s.gappy and not s.or_overtaken]),
        )


_GROUND: Final = (
    "either the request or its response was lost, and the other losses in this capture make the response "
    "likelier"
)
_EITHER: Final = (
    " Open: which responses were lost, and which arrived out of order at a requester that does not take them "
    "so. A capture at the requester decides; if nothing is lost there, keep "
    "a flow on one path, or enable out-of-order support on its NIC."
)
RULE = Rule(
    "implied-nak",
    WARNING,
    "a READ or atomic response was lost",
    "A READ or atomic response was lost. A requester cannot send a NAK for a response: it noticed the gap "
    "(or waited for its timeout) and requested everything again from the first missing response on (an "
    "implied NAK; IBA Vol. 1, 9.9.2).",
    "Response PSNs that were skipped, then a READ request for the rest with a later address and a shorter "
    "length; or an atomic sent again although it had been answered.",
    "loss and tail-loss: the READ request itself was lost; then no response to it was captured. Reordered "
    "responses are requested again too.",
    "Look for drops on the way from the responder to the requester. READ data is in the responses, so "
    "check the responder's egress queue and the requester's ingress buffers (mlx5: the "
    "counters implied_nak_seq_err and rx_discards_phy at the requester).",
    _look,
)
