"""``rnr``: the responder had no receive posted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.findings.costs import all_frames, cost_words, costs, main_transfer
from rocekit.findings.evidence import status_of
from rocekit.findings.finding import ERROR, WARNING, Finding, Rule
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story

_EXCEEDED: Final = "RNR_RETRY_EXC_ERR"
#: A requester that has not sent again after so many advertised RNR timers, or so long, gave up.
_WAITS: Final = 4
_SLOW_TIMER_NS: Final = 20_000_000


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        naks = sum(len(s.rnrs) for s in stories)
        failed, proven = _failed(evidence, stories)
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
            f"(timer {timer}), {cost_words(stories)}"
        )
        advice = RULE.what_to_do + _odd(found)
        if failed is not None:
            found["gave_up_psn"] = psn = wire_psn(failed.psn)
            verb = "gave up" if proven else "probably gave up"
            title += f"; the requester {verb} on PSN {psn} after {plural(len(failed.rnrs), 'RNR NAK')}"
            advice = _GAVE_UP + advice + _RAISE + ("" if proven else _SILENT)
        yield RULE.finding(
            title,
            connection=connection,
            transfer=failed.transfer if failed is not None else main_transfer(stories),
            frames=all_frames(stories),
            evidence=found,
            advice=advice,
            severity=WARNING if failed is None else ERROR,
        )


_GAVE_UP: Final = (
    "The requester's RNR retry count ran out (WC 13) and its QP is in error: it may send only after the "
    "receiver has posted receives. "
)
_RAISE: Final = " If the receiver is only slow, raise rnr_retry (7 means no limit)."
_SILENT: Final = (
    " “Probably” means: the retry count is unknown, but the requester sent nothing again long after its wait."
)


def _odd(found: Mapping[str, Any]) -> str:
    """How the two ends differ from what was agreed, for the advice."""
    words = ""
    configured, advertised = found.get("configured_timer_us"), found["advertised_timer_us"]
    if configured is not None and configured != advertised:
        words += (
            f" The responder sends a timer of {duration(advertised * 1e3)}, but its QP was set to "
            f"{duration(configured * 1e3)} (min_rnr_timer)."
        )
    if found.get("waited_too_short"):
        words += " The requester did not wait as long as the RNR NAK demands: a fault of its device."
    limit, most = found.get("rnr_retry_count"), found.get("most_rnr_naks", 0)
    if limit is not None and limit != wire.RETRY_INFINITE and most > limit + 1:
        words += f" The requester tried {most} times, but its RNR retry count is {limit}."
    return words


def _failed(evidence: Evidence, stories: Sequence[Story]) -> tuple[Story | None, bool]:
    """The story in which the requester gave up (None if it did not), and whether that is proven."""
    for story in stories:
        for transfer in story.transfers:
            if transfer.particulars is not None and status_of(transfer) == _EXCEEDED:
                return story, True
        if not story.gave_up:
            continue
        limit = story.connection.negotiated[story.side].rnr_retry_count
        if limit is not None and limit != wire.RETRY_INFINITE and len(story.rnrs) > limit:
            return story, True
        timer_ns = wire.rnr_wait_ns(story.rnrs[-1].syndrome or 0)
        quiet_ns = evidence.last_ns - story.rnrs[-1].time_ns
        if limit is None and quiet_ns > max(_WAITS * timer_ns, _SLOW_TIMER_NS):
            return story, False  # it should have sent again long ago
    return None, False


def _waits(stories: Sequence[Story]) -> dict[str, Any]:
    """The RNR timers that the responder sent, and how long the requester waited."""
    timers = {wire.rnr_wait_ns(code or 0) // 1000 for code in {e.syndrome for s in stories for e in s.rnrs}}
    waits = []
    for story in stories:
        sent_again = sorted(g.time_ns for g in story.repeats if g.first_psn <= story.psn)
        for nak in story.rnrs:
            at = bisect_left(sent_again, nak.time_ns)
            if at < len(sent_again):
                waits.append(sent_again[at] - nak.time_ns)
    found: dict[str, Any] = {"advertised_timer_us": max(timers)}
    if waits:
        found |= {"waited_min_ns": min(waits), "waited_max_ns": max(waits)}
        least_ns = min(timers) * 1000 * 0.9
        found["waited_too_short"] = sum(w < least_ns for w in waits)
    return found


RULE = Rule(
    "rnr",
    WARNING,
    "no receive was posted",
    "A SEND, or a WRITE with immediate, found no receive posted at the responder. The responder sent an "
    "RNR NAK with a time to wait, and after it the requester sent the message again. Error if the "
    "requester's RNR retry count ran out (WC 13, RNR_RETRY_EXC_ERR).",
    "An AETH with syndrome 0x20–0x3f, a silence of at least its timer, then the same PSN again. Packets "
    "behind it may draw NAKs “PSN sequence error”: an effect of the RNR NAK, no loss.",
    "loss: a NAK “PSN sequence error” for a PSN that just got an RNR NAK is no loss.",
    "Let the receiver post more receives, earlier (perftest: --rx-depth; an SRQ: raise its limit), or let "
    "the sender wait for credits of the application. A shorter min_rnr_timer at the responder shortens "
    "each wait. Counters: rcvd_rnr_err and send_rnr_err (rxe), rnr_nak_retry_err (mlx5).",
    _look,
)
