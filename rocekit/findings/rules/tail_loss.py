"""``tail-loss``: the last packets of a burst were lost, so nothing behind them showed the gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.costs import all_frames, costs, main_transfer, price, timeout_evidence, timer_words
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories.places import places
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        open_ = [s.go_backs[0].opener for s in stories if not s.certain]
        doubtful = sum(not e.mid_message for e in open_)
        stalled = len(open_) - doubtful
        found = costs(stories) | timeout_evidence(evidence, stories)
        placed, told = places(evidence, stories)
        found |= placed | {"or_acknowledgement_lost": doubtful, "or_sender_stalled": stalled}
        waited = duration(found.get("waited_max_ns", 0))
        if len(stories) == 1:
            what = f"PSN {wire_psn(stories[0].psn)}{' or its acknowledgement' if doubtful else ''} was lost"
        else:
            what = plural(len(stories), "loss", "losses")
        advice = RULE.what_to_do
        if doubtful:
            advice += (
                " These packets do not tell whether the request or its acknowledgement was lost: a capture "
                "at the responder does, and so does its duplicate_request counter (it counts only if the "
                "request arrived)."
            )
        advice += timer_words(found)
        yield RULE.finding(
            f"{what} at the end of a burst on {connection.way(side)}, noticed after {waited} of silence: "
            f"{price(stories)}{told}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=advice,
        )


RULE = Rule(
    "tail-loss",
    WARNING,
    "the last packets of a burst were lost",
    "The last packets of a burst were lost. Nothing came behind them that the responder could have refused, "
    "so only the local ACK timeout (4.096 µs × 2^timeout, and up to four times that) brought them back.",
    "The last PSNs sent again after a silence, without a NAK; what the responder acknowledges when the "
    "repeat begins shows that it had not had them.",
    "ack-loss (the request arrived, its acknowledgement did not): a single packet and its acknowledgement "
    "look the same from the requester's side. A capture at the responder decides. A responder slower than "
    "the timeout looks so too; then its acknowledgement comes twice.",
    "Find the drops as for a loss (counters along the path). The wait is the local ACK timeout: where "
    "latency matters, a smaller timeout code (rdma_cm: RDMA_OPTION_ID_ACK_TIMEOUT; perftest: --qp-timeout) "
    "shortens it, but not below the path's worst round trip.",
    _look,
)
