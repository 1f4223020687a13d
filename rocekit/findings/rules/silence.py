"""``retry-exceeded`` and ``peer-silent``: repeats that got no answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.findings.costs import against_timeout, all_frames, costs, timer_words
from rocekit.findings.evidence import status_of
from rocekit.findings.finding import ERROR, Finding, Rule
from rocekit.findings.stories.places import lost, places
from rocekit.findings.stories.story import affected, first_repeated, intervals_of, longest_wait_ns
from rocekit.findings.witnesses import silence_evidence, silence_words
from rocekit.track.transfers import ACKED, NAK_PREFIX
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story


def _look_exceeded(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(EXCEEDED.name):
        yield _finding(EXCEEDED, evidence, stories)


def _look_silent(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(SILENT.name):
        yield _finding(EXCEEDED if _answers_missed(stories) else SILENT, evidence, stories)


def _answers_missed(stories: list[Story]) -> bool:
    """Whether the requester got answers that are not in the capture.

    It goes back to the oldest packet without an acknowledgement, so what it does not send again arrived.
    """
    connection, side = stories[0].connection, stories[0].side
    progress = connection.progress[side]
    first = first_repeated(stories)
    return progress is not None and progress.started and first > progress.begin


class _Silence(NamedTuple):
    """What the capture has of the peer since the unanswered PSN was first sent.

    Attributes:
        sent_ns: when the PSN was first sent.
        last_ns: the peer QP's last packet in the capture; None if there is none.
        packets: how many packets of the peer QP the capture has.
        silent_ns: how long it has none: since the PSN was first sent, or since the QP's last packet.
        other_qps: whether the peer's host sent packets of other QPs after the first repeat.
        after_ns: how long the capture goes on after the last repeat.
        ends: whether the capture ends before the next repeat would be due.
        sends: whether the peer QP sent packets after the first repeat.
    """

    sent_ns: int
    last_ns: int | None
    packets: int | None
    silent_ns: int
    other_qps: bool
    after_ns: int
    ends: bool
    sends: bool

    @classmethod
    def of(cls, evidence: Evidence, story: Story) -> _Silence:
        connection, side, repeats = story.connection, story.side, story.repeats
        view = evidence.survey.flow(connection, 1 - side)
        last_ns = None if view is None else view.last_ns
        packets: int | None = 0 if view is None else view.packets
        if evidence.survey.is_shared(connection, 1 - side):
            # The QPN was used again: only what answered requests is this QP's for certain.
            progress = connection.progress[side]
            last_ns = progress.acked_ns if progress is not None and progress.acked_frame else None
            packets = None
        sent_ns = repeats[0].time_ns - repeats[0].waited_ns
        src, dst = connection.ips[side], connection.ips[1 - side]
        heard = {} if evidence.observer is None else evidence.observer.heard
        host_ns = 0 if src is None or dst is None else heard.get((dst, src), 0)
        sends = last_ns is not None and last_ns > repeats[0].time_ns
        after_ns = evidence.last_ns - repeats[-1].last_event.last_ns
        return cls(
            sent_ns,
            last_ns,
            packets,
            evidence.last_ns - max(sent_ns, last_ns or 0),
            host_ns > repeats[0].time_ns and not sends,
            after_ns,
            after_ns < longest_wait_ns(repeats),
            sends,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "silent_for_ns": self.silent_ns,
            "after_last_repeat_ns": self.after_ns,
            "peer_packets": self.packets,
            "peer_sent_meanwhile": self.sends,
            "host_sent_meanwhile": self.other_qps or self.sends,
        }


def _finding(rule: Rule, evidence: Evidence, stories: list[Story]) -> Finding:
    story = stories[-1]
    connection, side = story.connection, story.side
    repeats = story.repeats
    intervals = intervals_of(repeats)
    span = repeats[-1].time_ns - repeats[0].time_ns + repeats[0].waited_ns
    silence = _Silence.of(evidence, story)
    failed_by_wc = "RETRY_EXC_ERR" in {status_of(t) for t in story.transfers}
    found: dict[str, Any] = (
        costs(stories)
        | {
            "transmissions": story.transmissions,
            "first_repeat_after_ns": repeats[0].waited_ns,
            "intervals_ns": intervals[:16],
            "trying_for_ns": span,
            "gave_up": failed_by_wc or (story.gave_up and not silence.ends),
            "unanswered_transfers": sum(t.status != ACKED for t in affected(stories)),
        }
        | silence.to_dict()
    )
    placed, where = places(evidence, stories)
    found |= placed
    found |= against_timeout(evidence.timeout_ns(connection, side), [repeats[0].waited_ns, *intervals])
    agreed = connection.negotiated[side].retry_count
    differs = agreed is not None and found["gave_up"] and story.transmissions - 1 != agreed
    if agreed is not None:
        found |= {"retries": story.transmissions - 1, "retry_count": agreed, "retries_differ": differs}
    failed = _failed_before(evidence, story)
    if failed is not None:
        found["peer_failed_by"] = failed
    found |= _addressing(evidence, story)
    found |= silence_evidence(evidence, connection.ips, silence.sent_ns, repeats[-1].last_event.last_ns)
    if story.bad_frames:
        found["corrupted_frames"] = len(story.bad_frames)
    ended = "then silence" if found["gave_up"] else "then the capture ends"
    if not story.certain:
        found |= {"gave_up": False, "or_response_not_in_capture": len(stories)}
    if failed_by_wc:
        ended = "WC 12, RETRY_EXC_ERR"
    limit = f" (agreed: {plural(agreed, 'retry', 'retries')})" if differs and agreed is not None else ""
    what = _what(rule, connection.named(1 - side), silence, story.certain)
    return rule.finding(
        f"{what}: PSN {wire_psn(story.psn)} was sent {plural(story.transmissions, 'time')}{limit} "
        f"in {duration(span)}, {ended}{lost(where)}",
        connection=connection,
        transfer=story.transfer,
        frames=all_frames(stories),
        evidence=found,
        advice=_advice(rule, story, found),
    )


def _what(rule: Rule, peer: str, silence: _Silence, certain: bool) -> str:
    """What the capture has of the peer, in words."""
    if not certain:
        return f"The capture has no response from {peer}"
    if silence.sends:
        return f"{peer} sent other packets, but no ACK for a PSN"
    return f"No answer from {peer}{' any more' if rule is EXCEEDED else ''}"


def _advice(rule: Rule, story: Story, found: Mapping[str, Any]) -> str:
    """What to do, the likely cause first."""
    connection, side = story.connection, story.side
    advice = rule.what_to_do + timer_words(found)
    if not story.certain:
        advice += _ONE_DIRECTION
    if found["peer_sent_meanwhile"]:
        advice = (
            "The peer's QP sends packets, so it is alive and reachable: look at what is special about this "
            "PSN (its size, its place in memory), and for drops on the way there. " + advice
        )
    elif found["host_sent_meanwhile"]:
        advice = (
            f"Other QPs at {connection.ips[1 - side]} sent packets in that time: the host runs and is "
            "reachable. Look at this QP there. " + advice
        )
    elif rule is EXCEEDED and found["peer_packets"] == 0:
        advice = (
            "The capture has no packet of the peer's QP. It had answered before all the same: the requester "
            "sent only later PSNs again. " + advice
        )
    if "roce_version" in found:
        advice = (
            "These are RoCE v1 packets (EtherType 0x8915), which no router forwards: use a RoCE v2 GID. "
            + advice
        )
    if "link_local" in found:
        advice = (
            "A link-local address (fe80::) is used, which works on one link only: choose another GID. "
            + advice
        )
    if "peer_failed_by" in found:
        advice = (
            f"{connection.named(1 - side)} had failed requests of its own ({found['peer_failed_by']}), "
            "which puts a QP into error: it does not answer any more. Look at that finding first. " + advice
        )
    return silence_words(found) + advice


def _failed_before(evidence: Evidence, story: Story) -> str | None:
    """Why the peer's QP was in error during the repeats: how its own requests failed; None if unknown."""
    connection, side = story.connection, 1 - story.side
    for other in evidence.stories:
        if other.connection is connection and other.side == side and other.gave_up:
            last = max([e.time_ns for e in other.rnrs] + [g.time_ns for g in other.repeats], default=0)
            if last < story.repeats[-1].time_ns:
                return other.rule
    for transfer in evidence.transfers_of.get((connection.id, side), ()):
        if transfer.status.startswith(NAK_PREFIX):
            return transfer.status
    return None


def _addressing(evidence: Evidence, story: Story) -> dict[str, Any]:
    """What in the addresses may be the cause of the silence."""
    view = evidence.survey.flow(story.connection, story.side)
    found: dict[str, Any] = {}
    if view is not None and 1 in view.roce_versions:
        found["roce_version"] = 1
    if any(ip is not None and ip.startswith("fe80:") for ip in story.connection.ips):
        found["link_local"] = True
    return found


_ONE_DIRECTION: Final = (
    " Open: whether the peer answered. The capture may have one direction only: capture both, or look for WC "
    "12 (RETRY_EXC_ERR) in the requester's completions."
)
EXCEEDED = Rule(
    "retry-exceeded",
    ERROR,
    "the requester gave up",
    "The requester sent the same PSN again and again, got no answer any more, and gave up. Its QP goes to "
    "error with WC 12 (RETRY_EXC_ERR), and WRs posted after it are flushed (WC 5).",
    "n transmissions of one PSN at the interval of the timeout, the last of them unanswered, then silence. "
    "The peer had answered before. `peer_sent_meanwhile`: it sent other packets in that time.",
    "peer-silent: the peer never answered at all. A capture that ends during the repeats does not show "
    "whether the requester gave up. A capture of one direction has no answers either, but its PSNs go on.",
    "Find out why the peer stopped: its process or host died, its QP went to error (see its own "
    "completions and async events), the link or route changed, or packets of this size or class are "
    "dropped. Capture at the peer: if the repeats arrive there and it stays silent, its QP is gone or its "
    "ICRC check fails.",
    _look_exceeded,
)

SILENT = Rule(
    "peer-silent",
    ERROR,
    "the peer never answered: unreachable, a wrong address, or traffic dropped",
    "The peer never answered: it is unreachable, the address or GID is wrong, the QP does not exist, or "
    "packets are dropped on the way.",
    "Requests repeated at the interval of the timeout without any answer, then WC 12 (RETRY_EXC_ERR). RoCE "
    "v1 (EtherType 0x8915) or link-local addresses where RoCE v2 over routed addresses was intended.",
    "retry-exceeded: the peer answered earlier. A capture of one direction: its PSNs go on, and nothing is "
    "repeated.",
    "Check in this order: the GID index on both sides (`rocekit devices`; a RoCE v2 GID with the right "
    "address), routes and neighbour entries for that address, firewalls that drop UDP 4791, the same RoCE "
    "version on both ends, and that the peer's QP is in RTR with these QPNs. A capture at the peer shows "
    "whether the requests arrive.",
    _look_silent,
)

RULES: Final = (SILENT, EXCEEDED)
