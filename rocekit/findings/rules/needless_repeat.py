"""``needless-repeat``: packets sent again although nothing shows a loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.costs import all_frames, costs, main_transfer, timeout_evidence
from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.findings.stories.causes import loss_places
from rocekit.findings.stories.copies import refused_too_soon
from rocekit.track.causes import NAK_MISSED
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story


def _look(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.stories_of(RULE.name)
    behind = loss_places(evidence.stories)[1] if found and evidence.sightings is None else {}
    for stories in found:
        early = [s for s in stories if refused_too_soon(s)]
        if early:
            yield _refused(early)
        others = [s for s in stories if not refused_too_soon(s)]
        if others:
            connection, side = others[0].connection, others[0].side
            way = connection.ips[side], connection.ips[1 - side]
            yield _repeated(evidence, others, loses_behind=behind.get(way, 0) > 0)


def _refused(stories: list[Story]) -> Finding:
    """NAKs that a late packet of an earlier go-back drew."""
    connection, side = stories[0].connection, stories[0].side
    naks = sum(len(s.naks) for s in stories)
    return RULE.finding(
        f"{plural(naks, 'NAK')} on {connection.way(1 - side)} came too soon after the go-back to answer it: "
        f"nothing was lost, {plural(sum(s.repeated_packets for s in stories), 'packet')} sent again",
        connection=connection,
        transfer=main_transfer(stories),
        frames=all_frames(stories),
        evidence=costs(stories) | {"refused_too_soon": naks},
        advice="Nothing, as long as it is rare: a packet that was still on its way when the requester went "
        "back drew the NAK. If it is frequent, look for reordering on the path (several queues, "
        "adaptive routing, link aggregation).",
    )


def _repeated(evidence: Evidence, stories: list[Story], *, loses_behind: bool) -> Finding:
    connection, side = stories[0].connection, stories[0].side
    packets = sum(s.repeated_packets for s in stories)
    found = costs(stories) | timeout_evidence(evidence, stories)
    found["in_mid_message"] = sum(s.go_backs[0].opener.mid_message for s in stories)
    waits = duration(found["waited_min_ns"])
    if found["waited_max_ns"] > found["waited_min_ns"]:
        waits += f" to {duration(found['waited_max_ns'])}"
    lacking = sum(s.gappy for s in stories)
    unsure, lost = [], 0
    for story in stories:
        run = story.go_backs[0]
        # A NAK that is not in the capture may be why; or an ACK that is was lost behind it.
        in_mid_message = run.opener.mid_message and not run.after_ack and run.cause != NAK_MISSED
        if not story.certain and (story.gappy or story.naks_lacking or loses_behind or not in_mid_message):
            unsure.append(story)
            lost += in_mid_message and not story.gappy
    if unsure:
        found["or_not_in_capture"] = len(unsure)
    # A sender goes back to a packet that was lost, and sends those behind it again that had come.
    between = _missing_between(evidence, connection.ips[side], connection.ips[1 - side])
    if between:
        found["or_for_another_loss"] = len(stories)
    why = ", probably because of packets that it lacks" if lacking else ""
    return RULE.finding(
        f"{plural(packets, 'packet')} sent again on {connection.way(side)} after {waits}, but nothing "
        f"{'in the capture ' if unsure else ''}shows {'that these were lost' if between else 'a loss'}{why}",
        connection=connection,
        transfer=main_transfer(stories),
        frames=all_frames(stories),
        evidence=found,
        advice=RULE.what_to_do
        + (_OPEN if len(unsure) > lost and not lacking else "")
        + _LOST * (lost > 0)
        + _BETWEEN * (between > 0),
    )


def _missing_between(evidence: Evidence, src: str | None, dst: str | None) -> int:
    """How many packets of a direction a later capture lacks: lost, or missed by it."""
    if evidence.sightings is None or evidence.paths is None:
        return 0
    return sum(path.missing for path in evidence.paths.of(src or "", dst or ""))


_OPEN: Final = (
    " Open: a NAK that is not in the capture, or a timer that started before these packets were sent, as "
    "that of rdma_rxe does; an ACK that the capture has may then have been lost behind it."
)
_LOST: Final = (
    " Open: packets of this direction were lost behind the capture, or NAKs to it are not in the capture; so "
    "these, whose message had not ended yet, may be sent again for a loss, too."
)
_BETWEEN: Final = (
    " Open: a later capture lacks packets of this direction, so these may be sent again for one of them."
)
RULE = Rule(
    "needless-repeat",
    INFO,
    "sent again although nothing shows a loss",
    "A requester sent packets again although the capture shows no loss: before its local ACK timeout can "
    "have expired, just after the ACK, or in the middle of a message before an ACK was due.",
    "Repeats without NAK or hole, sooner than the timeout or at the same time as the ACK; no other losses "
    "in that direction before the capture. Open, where packets were lost behind it or NAKs are lacking.",
    "tail-loss: the rest of the message was lost before the capture point; known by a wait as long as the "
    "timeout, or by other losses in that direction. ack-loss: the wait is as long as the timeout.",
    "Nothing, as long as it is rare. A stalled sender (a busy host, soft RoCE in an emulator) does this. "
    "If it is frequent, the local ACK timeout is probably shorter than the time in which the responder "
    "answers: raise it.",
    _look,
)
