"""``tail-loss``: the last packets of a burst were lost, so only the timeout brought them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer, timeout_evidence, timer_words
from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.stories.doubts import doubt_words
from rocekit.findings.stories.places import lost, places
from rocekit.findings.witnesses import silence_evidence, silence_words
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        # A loss that the journal shows has no repeat: the packet that the capture has is the repeat.
        lacking = sum(
            not s.certain and (s.naks_lacking or s.gappy or s.early or s.or_overtaken or not s.go_backs)
            for s in stories
        )
        open_ = [
            s
            for s in stories
            if s.go_backs and not (s.certain or s.naks_lacking or s.gappy or s.or_overtaken)
        ]
        doubtful = sum(not s.go_backs[0].opener.mid_message for s in open_)
        stalled = sum(s.go_backs[0].opener.mid_message and not s.early for s in open_)
        likely = stalled + lacking
        found = costs(stories) | timeout_evidence(evidence, stories)
        placed, where = places(evidence, stories)
        found |= placed | {"or_acknowledgement_lost": doubtful, "or_sender_stalled": stalled}
        ips = connection.ips
        other = next((said for s in stories if (said := silence_evidence(evidence, ips, *s.stall))), {})
        found |= other
        overtaken = sum(s.or_overtaken for s in stories)
        if overtaken:
            found["or_overtaken"] = overtaken
        if lacking > overtaken:
            found["or_not_in_capture"] = lacking - overtaken
        waited = duration(found.get("waited_max_ns", 0))
        if len(stories) == 1:
            either = " or its response" if doubtful else ""
            what = f"PSN {wire_psn(stories[0].psn)}{either} was{' probably' if likely else ''} lost"
        else:
            every = likely == len(stories)
            degrees = [f"{'all' if every else f'{likely:,}'} of them probably"] if likely else []
            degrees += [f"{doubtful:,} of them of the request or its response"] if doubtful else []
            what = plural(len(stories), "loss", "losses") + (f" ({', '.join(degrees)})" if degrees else "")
        advice = silence_words(other) + RULE.what_to_do + timer_words(found)
        advice += _STALL if stalled else ""
        advice += _EITHER if doubtful else ""
        advice += doubt_words(stories)
        yield RULE.finding(
            f"{what} at the end of a burst on {connection.way(side)}, noticed after {waited} of silence: "
            f"{cost_words(stories)}{lost(where)}",
            connection=connection,
            transfer=main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=advice,
        )


_STALL: Final = (
    " “Probably” means: the sender may also have stalled in the middle of the message, or waited there for "
    "ACKs with its window full; but other packets of this direction were lost, or the wait is as long as its "
    "timer."
)
_EITHER: Final = (
    " Open: whether the request was lost, or its response was lost or came too late. A capture at the "
    "responder decides, and so does its counter duplicate_request (it counts only if the request arrived)."
)
RULE = Rule(
    "tail-loss",
    WARNING,
    "the last packets of a burst were lost",
    "The last packets of a burst were lost. No packet behind them made the responder send a NAK, so only "
    "the local ACK timeout (4.096 µs × 2^timeout, and up to four times that) brought them back.",
    "The last PSNs sent again after a silence, without a NAK. The responder's ACK at the start of the "
    "repeat shows that it did not have them.",
    "ack-loss: the request arrived, its ACK did not. A single packet and its ACK look the same from the "
    "requester's side; a capture at the responder decides. A responder slower than the timeout looks the "
    "same too; then its ACK comes twice.",
    "Find the drops as for a loss (counters along the path). The wait is the local ACK timeout: if latency "
    "matters, set a smaller timeout code (rdma_cm: RDMA_OPTION_ID_ACK_TIMEOUT; perftest: --qp-timeout), "
    "but not below the worst round trip of the path.",
    _look,
)
