"""``rnr``: the responder had no receive posted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.findings.costs import all_frames, costs, main_transfer, price, touched
from rocekit.findings.evidence import status_of
from rocekit.findings.finding import ERROR, WARNING, Finding, Rule
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories import Story

_EXCEEDED: Final = "RNR_RETRY_EXC_ERR"
#: A requester that has not tried again after so many of the advertised waits, or so long, gave up.
_WAITS: Final = 4
_SLOW_TIMER_NS: Final = 20_000_000


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        naks = sum(len(s.rnrs) for s in stories)
        failed = _failed(evidence, stories)
        found = costs(stories) | _waits(stories) | {"rnr_naks": naks}
        configured = evidence.attribute(connection, 1 - side, "min_rnr_timer")
        if configured is not None:
            found["configured_timer_us"] = wire.RNR_TIMER_US[int(configured)]
        limit = connection.negotiated[side].rnr_retry_count
        if limit is not None:
            found |= {"rnr_retry_count": limit, "most_rnr_naks": max(len(s.rnrs) for s in stories)}
        timer = duration(found["advertised_timer_us"] * 1e3)
        title = (
            f"No receive was posted at {connection.named(1 - side)}: {plural(naks, 'RNR NAK')} "
            f"(timer {timer}), {price(stories)}"
        )
        advice = RULE.what_to_do + _odd(found)
        if failed is not None:
            found["gave_up_psn"] = psn = wire_psn(failed.psn)
            title += f"; the requester gave up on PSN {psn} after {plural(len(failed.rnrs), 'RNR NAK')}"
            advice = (
                "The requester's RNR retry count ran out (WC 13) and its QP is in error: raise rnr_retry (7 "
                "tries for ever) if the receiver is only slow, but first let it post receives before the "
                "sender may "
                "send. " + advice
            )
        yield RULE.finding(
            title,
            connection=connection,
            transfer=failed.transfer if failed is not None else main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=advice,
            severity=WARNING if failed is None else ERROR,
        )


def _odd(found: Mapping[str, Any]) -> str:
    """How what was done differs from what was agreed on, for the advice."""
    words = ""
    told, advertised = found.get("configured_timer_us"), found["advertised_timer_us"]
    if told is not None and told != advertised:
        words += (
            f" The responder asks for {duration(advertised * 1e3)}, though its QP was set to "
            f"{duration(told * 1e3)} (min_rnr_timer)."
        )
    if found.get("waited_too_short"):
        words += " The requester did not wait as long as it was asked to: that is its device's fault."
    limit, most = found.get("rnr_retry_count"), found.get("most_rnr_naks", 0)
    if limit is not None and limit != wire.RETRY_INFINITE and most > limit + 1:
        words += f" It tried {most} times, though its RNR retry count is {limit}."
    return words


def _failed(evidence: Evidence, stories: Sequence[Story]) -> Story | None:
    """The story in which the requester gave up, if it did."""
    for story in stories:
        if any(status_of(t) == _EXCEEDED for t in touched([story])):
            return story
        limit = story.connection.negotiated[story.side].rnr_retry_count
        if story.gave_up and limit is not None and limit != wire.RETRY_INFINITE and len(story.rnrs) > limit:
            return story
        asked_ns = wire.RNR_TIMER_US[wire.syndrome_value(story.rnrs[-1].syndrome or 0)] * 1000
        quiet_ns = evidence.last_ns - story.rnrs[-1].time_ns
        if story.gave_up and limit is None and quiet_ns > max(_WAITS * asked_ns, _SLOW_TIMER_NS):
            return story  # it should have tried again long ago
    return None


def _waits(stories: Sequence[Story]) -> dict[str, Any]:
    """How long the requester was asked to wait and how long it did."""
    timers = [wire.RNR_TIMER_US[wire.syndrome_value(e.syndrome or 0)] for s in stories for e in s.rnrs]
    waits = []
    for story in stories:
        for nak in story.rnrs:
            after = [
                g.time_ns for g in story.repeats if g.time_ns >= nak.time_ns and g.first_psn <= story.psn
            ]
            if after:
                waits.append(min(after) - nak.time_ns)
    found: dict[str, Any] = {"advertised_timer_us": max(timers)}
    if waits:
        found |= {"waited_min_ns": min(waits), "waited_max_ns": max(waits)}
        found["waited_too_short"] = sum(w < min(timers) * 1000 * 0.9 for w in waits)
    return found


RULE = Rule(
    "rnr",
    WARNING,
    "no receive was posted",
    "A SEND, or a WRITE with immediate, found no receive posted at the responder. It answered with an RNR "
    "NAK, which names a time to wait, and the requester sent the message again after it. An error where the "
    "requester's RNR retry count ran out (WC 13, RNR_RETRY_EXC_ERR).",
    "An acknowledgement with syndrome 0x20–0x3f, a silence of at least its timer, the same PSN again. "
    "Packets behind it may draw NAKs “PSN sequence error”, which are its effect and no loss.",
    "loss: a NAK “PSN sequence error” for the PSN that was just refused with RNR is no loss.",
    "Let the receiver post more receives, earlier (perftest: --rx-depth; an SRQ: raise its limit), or let "
    "the sender wait for credits of the application's own. A shorter min_rnr_timer at the responder makes "
    "each wait shorter. rcvd_rnr_err and send_rnr_err (rxe), rnr_nak_retry_err (mlx5) count it.",
    _look,
)
