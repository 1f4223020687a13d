"""``dead-qp``: requests to a QP that is gone, or with the wrong starting PSN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit.findings.costs import all_frames, costs
from rocekit.findings.finding import ERROR, MAX_LISTED, Finding, Rule
from rocekit.track.transfers import UNACKNOWLEDGED
from rocekit.wire.psn import MASK, diff, wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.stories.story import Story
    from rocekit.track.connections import Connection

#: Requests later than this after the fatal NAK were not already on their way when it was sent.
_IN_FLIGHT_NS: Final = 1_000_000


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.stories_of(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        if evidence.starts_wrong(connection, side):
            yield _wrong_start(evidence, connection, side)
        else:
            yield _closed(evidence, stories)
    reported = {(s.connection.id, s.side) for s in evidence.stories if s.rule == RULE.name}
    for connection in evidence.connections:
        if not connection.naks and (connection.first_ns is None or not evidence.knows_start(connection)):
            continue  # no NAK came, and there is no packet, or no starting PSN is known
        for side in (0, 1):
            if (connection.id, side) not in reported:
                yield from _look_at(evidence, connection, side)


def _closed(evidence: Evidence, stories: list[Story]) -> Finding:
    """Requests without an answer after a DREQ: sent after it, or under way and then again and again."""
    story = stories[-1]
    connection, side, transfer = story.connection, story.side, story.transfer
    own = [r for r in evidence.cm_records if r.connection is connection]
    host = next((r.src for r in own if r.message == "DREQ"), "a host")
    # The requester knows of it when it answers the DREQ; packets cross that.
    answered_ns = min((r.time_ns for r in own if r.message == "DREP"), default=0)
    known_ns = max((evidence.closed_ns(connection) or 0) + _IN_FLIGHT_NS, answered_ns)
    before = transfer is not None and transfer.first_ns < known_ns
    psn, times = wire_psn(story.psn), plural(story.transmissions, "time")
    if before:
        what = (
            f"{connection.named(side)} got no answer after {host} closed the connection: PSN {psn}, under "
            f"way at that time, was sent {times}"
        )
        advice = (
            f"The request was under way when {host} closed the connection (DREQ). If its program was not "
            "ended on purpose, find out why it closed: a kernel sends the DREQ of a program that ends."
        )
    else:
        what = (
            f"{connection.named(side)} sent requests to {connection.named(1 - side)} after the connection "
            f"was closed: PSN {psn} sent {times}"
        )
        advice = (
            "The connection was closed (DREQ), and the capture has no answer of the peer's QP after that. "
            "Let the program stop posting when it gets RDMA_CM_EVENT_DISCONNECTED, and drain its queue "
            "before rdma_disconnect: wait for the completion of a last signaled WR."
        )
    return RULE.finding(
        what,
        connection=connection,
        transfer=transfer,
        frames=[*evidence.dreq_frames(connection), *all_frames(stories)],
        evidence=costs(stories) | {"reason": "closed", "closed_by": host, "under_way_at_close": before},
        advice=advice,
    )


def _look_at(evidence: Evidence, connection: Connection, side: int) -> Iterator[Finding]:
    transfers = evidence.transfers_of.get((connection.id, side), [])
    if evidence.starts_wrong(connection, side):
        yield _wrong_start(evidence, connection, side)
        return
    naks = evidence.fatal_naks_of.get((connection.id, side))
    if not naks:
        return
    fatal = naks[0][1]
    after = [
        t for t in transfers if t.first_ns > fatal.time_ns + _IN_FLIGHT_NS and t.status == UNACKNOWLEDGED
    ]
    if after:
        yield RULE.finding(
            f"{connection.named(side)} sent requests to {connection.named(1 - side)} after its fatal NAK: "
            f"{plural(len(after), 'transfer')} unacknowledged",
            connection=connection,
            transfer=after[0],
            frames=[fatal.frame, *(t.first_frame for t in after)],
            evidence={
                "reason": "fatal NAK",
                "count": len(after),
                "psns": [wire_psn(t.first_psn) for t in after[:MAX_LISTED]],
                "transfers": [t.id for t in after[:MAX_LISTED]],
            },
        )


def _wrong_start(evidence: Evidence, connection: Connection, side: int) -> Finding:
    expected, first = evidence.expected_psn(connection, side) or 0, evidence.first_psn(connection, side) or 0
    transfers = evidence.transfers_of.get((connection.id, side), [])
    off = diff(first & MASK, expected & MASK)
    found: dict[str, Any] = {
        "reason": "starting PSN",
        "first_psn": wire_psn(first),
        "expected_psn": wire_psn(expected),
        "off_by": off,
        "agreed_by": connection.paired_by,
        "count": len(transfers),
        "psns": [wire_psn(first)],
    }
    view = None if evidence.observer is None else evidence.observer.flow(connection, side)
    first_frame = 0 if view is None else view.first_frame
    naks = [
        e.frame for s in evidence.stories if s.connection is connection and s.side == side for e in s.naks
    ]
    return RULE.finding(
        f"{connection.named(side)} started with PSN {wire_psn(first)}, but {connection.named(1 - side)} "
        f"expects {wire_psn(expected)} ({off:+d}): no request was accepted",
        connection=connection,
        transfer=transfers[0] if transfers else None,
        frames=[*evidence.handshake_frames(connection), first_frame, *naks],
        evidence=found,
        advice="The sq_psn of each side must be the rq_psn of the other. rdma_cm sets both. A program that "
        "calls ibv_modify_qp itself must exchange the numbers and set rq_psn to the peer's sq_psn. After a "
        "reset of the QP, set both again.",
    )


RULE = Rule(
    "dead-qp",
    ERROR,
    "requests to a QP that is gone, or with the wrong starting PSN",
    "Requests go to a QP that does not accept them: its connection was closed, a fatal NAK put it into "
    "error, or it expects another starting PSN. The requester repeats until it gives up (WC 12).",
    "New requests after a DREQ, or well after a fatal NAK. A first PSN other than the one in REQ and REP "
    "(or in the journals), and no request acknowledged: a lower one, or a NAK that asks for the agreed one.",
    "peer-silent and retry-exceeded: nothing shows that the QP was closed. Packets that were already on "
    "their way when the NAK came are normal and not counted. A higher first PSN without such a NAK: the "
    "capture may have missed the packets before it. UC: its responder accepts any first packet of a message.",
    "Find out why the requester did not learn that the QP was gone: it should have polled an error "
    "completion or a DISCONNECTED event before it posted more.",
    _look,
)
