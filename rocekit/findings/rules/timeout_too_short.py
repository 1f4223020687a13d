"""``timeout-too-short``: responses come later than the requester's timer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer, timeout_evidence
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories import TIMEOUT_TOO_SHORT
from rocekit.findings.stories.doubts import begins_in_part, doubt_words, probably
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

_GUESSED = (
    " “Probably” means: the response followed the repeat sooner than any response before followed its "
    "request. If a queue held up all the others, it may be to the repeat, and the requests were lost."
)
_IN_PART: Final = (
    " “Probably” means: the repeat begins in mid message, so the capture may lack its first packets, and the "
    "response may be to these."
)
_BETWEEN: Final = (
    " “Probably” means: the requests arrived, and the response to the last of them came behind the repeat. A "
    "response to an earlier copy came before it, or was lost; the requester may have gone back for that one."
)
_EARLIER: Final = (
    " “Probably” means: the READ had been requested before too, and a response to that request was lost, or "
    "came out of order; the requester may have gone back for that one."
)


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(TIMEOUT_TOO_SHORT):
        connection, side = stories[0].connection, stories[0].side
        found = costs(stories) | timeout_evidence(evidence, stories)
        waited = duration(found.get("waited_min_ns", 0))
        guessed = sum(not s.certain for s in stories)
        earlier = sum(not s.certain and s.of_response for s in stories)
        # Several captures show that these arrived.
        between = [s for s in stories if not (s.certain or s.of_response or s.places is None)]
        alone = [s for s in stories if not (s.certain or s.of_response) and s.places is None]
        in_part = sum(begins_in_part(s.runs()[0]) for s in alone)
        likely = probably(guessed, len(stories)) if len(stories) > 1 else " probably" * guessed
        late = f"{plural(len(stories), 'response')}{likely} came too late"
        what = "the requests" if alone else "earlier responses"
        lost = f"or {what} were lost" if guessed else "nothing was lost"
        yield RULE.finding(
            f"{late} for the timer of {connection.named(side)}, which went back after {waited} or more: "
            f"{cost_words(stories)}, {lost}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=RULE.what_to_do
            + _GUESSED * (len(alone) > in_part)
            + _IN_PART * bool(in_part)
            + _BETWEEN * bool(between)
            + _EARLIER * bool(earlier)
            + doubt_words(stories),
        )


RULE = Rule(
    TIMEOUT_TOO_SHORT,
    WARNING,
    "responses come later than the requester's timer",
    "The request arrived and its response came, but only after the requester's timer had expired. The "
    "requester sent everything again, although nothing was lost.",
    "An acknowledgement that the responder sent before the repeat arrived, and that passes the requester's "
    "capture point after the repeat: two captures show it, or more ACKs alike than packets were sent again. "
    "Probably also one that follows the repeat sooner than any response came.",
    "ack-loss: the acknowledgement never comes. tail-loss: the request did not arrive.",
    "Raise the timeout of the requester's QP (rdma_cm: RDMA_OPTION_ID_ACK_TIMEOUT; perftest: --qp-timeout) "
    "above the worst round trip. Look for what delays the packets: a long queue, pauses, a busy responder.",
    _look,
)
