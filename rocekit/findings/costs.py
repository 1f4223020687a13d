"""What repeats cost: the evidence that all findings about repeats share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.cause_words import repeat_cause
from rocekit.findings.evidence import status_of
from rocekit.findings.finding import MAX_LISTED, Listed
from rocekit.findings.stories.story import affected, costs_of
from rocekit.track.short_timers import short_timer_ns
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import GoBack, Story
    from rocekit.track.transfers import Transfer


#: A wait below this share of the timeout is too short; above it, the capture's own error explains it.
_EARLY: Final = 0.9
#: A wait above so many timeouts is too long: four are allowed, and a tenth more for the capture's own error.
_LATEST: Final = 4.4


def costs(stories: Sequence[Story]) -> dict[str, Any]:
    """Count, repeats, delay and worst case of several stories of one rule and direction."""
    total = costs_of(stories)
    worst, transfers = total.worst, affected(stories)
    found: dict[str, Any] = {
        "count": len(stories),
        "psns": [wire_psn(s.psn) for s in stories[:MAX_LISTED]],
        "repeated_packets": total.packets,
        "repeated_bytes": total.bytes,
        "times_gone_back": total.times,
        "added_ns": total.added_ns,
        "worst": {
            "psn": wire_psn(worst.psn),
            "added_ns": worst.added_ns,
            "frames": worst.first_frames(MAX_LISTED),
        },
        "transfers": [t.id for t in transfers[:MAX_LISTED]],
        "cases": Listed(_case, stories[:MAX_LISTED]),
    }
    done = [t for t in transfers if t.particulars is not None]
    statuses = sorted({s for t in done if (s := status_of(t)) not in (None, "SUCCESS")})
    if statuses:
        found["wc_statuses"] = statuses
    return found


def _case(story: Story) -> dict[str, Any]:
    """One story in numbers."""
    found: dict[str, Any] = {
        "psn": wire_psn(story.psn),
        "time_ns": story.time_ns,
        "transmissions": story.transmissions,
        "repeated_packets": story.repeated_packets,
        "added_ns": story.added_ns,
    }
    transfer = story.transfer
    if transfer is not None:
        found["transfer"] = transfer.id
    if story.received is not None:
        found["received_before_repeat"] = story.received
    if story.hole is not None:
        found["hole_frame"] = story.hole.frame
    repeats = story.repeats
    if story.naks:
        nak = story.naks[0]
        found["nak_frame"] = nak.frame
        found["naks"] = len(story.naks)
        if story.hole is not None:
            found["nak_generation_ns"] = nak.time_ns - story.hole.time_ns
        if repeats:
            found["nak_reaction_ns"] = repeats[0].time_ns - nak.time_ns
    if repeats:
        run = repeats[0]
        found["repeat_frame"] = run.frame
        found["repeat_cause"] = _cause(story, run)
        if not story.naks and not story.rnrs:
            found["waited_ns"] = run.waited_ns
    return found


def _cause(story: Story, run: GoBack) -> str:
    """Why a run went back, in words."""
    opener = run.opener
    transfer = next((t for t in run.transfers if t.first_psn <= opener.psn <= t.last_psn), None)
    return repeat_cause(opener, story.connection, story.side, transfer)


def main_transfer(stories: Sequence[Story]) -> Transfer | None:
    """The transfer of the worst case."""
    return costs_of(stories).worst.transfer


def all_frames(stories: Sequence[Story]) -> Iterator[int]:
    """The frames of all stories, as far as a finding lists those of one."""
    return (frame for story in stories for frame in story.first_frames(MAX_LISTED))


def cost_words(stories: Sequence[Story]) -> str:
    """The cost in words: ``56 packets sent again, 118 µs of delay``."""
    total = costs_of(stories)
    words = [f"{plural(total.packets, 'packet')} sent again"] if total.packets else []
    if total.added_ns:
        words.append(f"{duration(total.added_ns)} of delay")
    return ", ".join(words) or "nothing was sent again in this capture"


def timeout_evidence(evidence: Evidence, stories: Sequence[Story]) -> dict[str, Any]:
    """The silence before repeats, compared with the configured local ACK timeout."""
    waits = sorted(
        [s.repeats[0].waited_ns for s in stories if s.repeats]
        + [s.unseen.waited_ns for s in stories if s.unseen is not None]
    )
    if not waits:
        return {}
    found: dict[str, Any] = {"waited_min_ns": waits[0], "waited_max_ns": waits[-1]}
    story = stories[0]
    found |= against_timeout(evidence.timeout_ns(story.connection, story.side), waits)
    timer_ns = short_timer_ns(story.connection, story.side)
    if timer_ns is not None:
        found["probable_timer_us"] = timer_ns / 1000
    return found


def against_timeout(timeout_ns: int | None, waits: Sequence[int]) -> dict[str, Any]:
    """Waits compared with the configured timeout; up to four times as long is allowed (9.7.6.1.3)."""
    if timeout_ns is None:
        return {}
    return {
        "configured_timeout_us": timeout_ns / 1000,
        "waits_below_timeout": sum(w < _EARLY * timeout_ns for w in waits),
        "waits_above_four_timeouts": sum(w > _LATEST * timeout_ns for w in waits),
    }


def timer_words(found: Mapping[str, Any]) -> str:
    """What is wrong with those waits, for the advice; empty if nothing is."""
    if "probable_timer_us" in found and "configured_timeout_us" in found:
        timer, timeout = (found[name] * 1000 for name in ("probable_timer_us", "configured_timeout_us"))
        return (
            f" This requester's timer is probably about {duration(round(timer))}: its waits agree with each "
            f"other, and are shorter than the negotiated {duration(round(timeout))} (adaptive "
            "retransmission)."
        )
    if found.get("waits_above_four_timeouts"):
        return (
            " The requester waited longer than four times the configured timeout: probably its device has a "
            "larger minimum, or its QP has another timeout than agreed."
        )
    return ""
