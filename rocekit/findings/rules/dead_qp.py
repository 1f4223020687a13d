"""``dead-qp``: requests to a QP that is gone, or with a starting PSN that the peer does not expect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.findings.costs import all_frames, costs
from rocekit.findings.finding import ERROR, MAX_LISTED, Finding, Rule
from rocekit.wire.psn import MASK, diff, wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: What was on its way when the QP died is no mistake; what follows this much later is.
_IN_FLIGHT_NS: Final = 1_000_000


def _look(evidence: Evidence) -> Iterator[Finding]:
    for stories in evidence.told(RULE.name):
        connection, side = stories[0].connection, stories[0].side
        if evidence.starts_wrong(connection, side):
            yield _wrong_start(evidence, connection, side)
        else:
            yield RULE.finding(
                f"{connection.named(side)} went on asking {connection.named(1 - side)} after the connection "
                f"was closed: PSN {wire_psn(stories[-1].psn)} sent "
                f"{plural(stories[-1].transmissions, 'time')}",
                connection=connection,
                transfer=stories[-1].transfer,
                frames=[*evidence.closings(connection), *all_frames(stories)],
                evidence=costs(stories) | {"reason": "closed"},
                advice="The QP was disconnected (DREQ), and the peer destroyed it. Let the program stop "
                "posting when it sees RDMA_CM_EVENT_DISCONNECTED, and drain its queue before "
                "rdma_disconnect: wait for the completion of a last signaled WR.",
            )
    told = {(s.connection.id, s.side) for s in evidence.stories if s.rule == RULE.name}
    for connection in evidence.connections:
        if not connection.naks and not evidence.knows_start(connection):
            continue  # nothing was refused, and no PSN is wrong
        for side in (0, 1):
            if (connection.id, side) not in told:
                yield from _look_at(evidence, connection, side)


def _look_at(evidence: Evidence, connection: Connection, side: int) -> Iterator[Finding]:
    transfers = evidence.transfers_of.get((connection.id, side), [])
    if evidence.starts_wrong(connection, side):
        yield _wrong_start(evidence, connection, side)
        return
    fatal = _fatal_nak(transfers)
    if fatal is None:
        return
    after = [
        t for t in transfers if t.first_ns > fatal.time_ns + _IN_FLIGHT_NS and t.status == "unacknowledged"
    ]
    if after:
        yield RULE.finding(
            f"{connection.named(side)} went on asking {connection.named(1 - side)} after its fatal NAK: "
            f"{plural(len(after), 'transfer')} into nothing",
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
        f"{connection.named(side)} began with PSN {wire_psn(first)}, but {connection.named(1 - side)} "
        f"expects {wire_psn(expected)} ({off:+d}), and answers nothing",
        connection=connection,
        transfer=transfers[0] if transfers else None,
        frames=[*evidence.agreements(connection), first_frame, *naks],
        evidence=found,
        advice="One side's sq_psn must be the other side's rq_psn. With rdma_cm it is set for you; a program "
        "that calls ibv_modify_qp itself must exchange both numbers and set them crosswise. A QP that was "
        "reset needs both set anew.",
    )


def _fatal_nak(transfers: list[Transfer]) -> Event | None:
    for transfer in transfers:
        for event in transfer.events if transfer.naks else ():
            value = wire.syndrome_value(event.syndrome or 0)
            if event.kind == "nak" and value != wire.NAK_SEQUENCE_ERROR:
                return event
    return None


RULE = Rule(
    "dead-qp",
    ERROR,
    "requests to a QP that is gone, or with a starting PSN that the peer does not expect",
    "Requests go to a QP that will not answer: its connection was closed or a fatal NAK put it into error, "
    "or its owner expects another starting PSN. The requester repeats until it gives up (WC 12).",
    "New requests after a DREQ or well after a fatal NAK; a first PSN other than the one agreed on in REQ "
    "and REP (or in the journals), and nothing acknowledged.",
    "peer-silent and retry-exceeded, where nothing says that the QP was closed. Packets that were on their "
    "way when the NAK came are normal and not counted.",
    "See why the requester did not learn that the QP was gone: it should have polled an error completion or "
    "a DISCONNECTED event before it posted more.",
    _look,
)
