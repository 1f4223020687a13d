"""``read-depth``: more READs and atomics outstanding than agreed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rocekit.findings.finding import ERROR, MAX_LISTED, WARNING, Finding, Rule
from rocekit.track.transfers import NAK_PREFIX
from rocekit.wire import READ_DEPTH
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer


#: Events of a request that is still outstanding.
_SHOWS_OPEN: Final = frozenset({"repeat", "nak", "rnr_nak"})


def _look(evidence: Evidence) -> Iterator[Finding]:
    for connection in evidence.agreed:
        for side in (0, 1) if connection.transfers else ():
            exceeded = _exceeded(evidence, connection, side)
            if exceeded is not None:
                yield _finding(connection, side, *exceeded)


def _exceeded(
    evidence: Evidence, connection: Connection, side: int
) -> tuple[int, int, list[Transfer]] | None:
    """(most outstanding, limit, which) if ``side`` had too many; else None."""
    requests = [t for t in evidence.transfers_of.get((connection.id, side), ()) if t.operation in READ_DEPTH]
    limit = _limit(connection, side) if requests else None
    if limit is None:
        return None
    worst, at = _most(_outstanding(evidence, connection, side, requests))
    return (worst, limit, at) if worst > limit else None


def invalid_by_depth(
    evidence: Evidence, connection: Connection, side: int, requests: Sequence[Transfer | None]
) -> bool:
    """Whether requests got a NAK “invalid request” because more were outstanding than agreed."""
    if not all(t is not None and t.operation in READ_DEPTH for t in requests):
        return False
    return _exceeded(evidence, connection, side) is not None


def _limit(connection: Connection, side: int) -> int | None:
    """How many ``side`` may have outstanding: the smaller of its initiator depth and its peer's responder
    resources (12.7.29); None if unknown.
    """
    limits = [
        connection.negotiated[side].initiator_depth,
        connection.negotiated[1 - side].responder_resources,
    ]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _outstanding(
    evidence: Evidence, connection: Connection, side: int, requests: list[Transfer]
) -> list[tuple[Transfer, int]]:
    """Requests, and until when the packets prove that each was outstanding.

    A response that is not in the capture may have come. It did where a later request was answered, since a
    responder answers in order; and nothing is known where the capture has a hole, or no answer at
    all. Such a request was outstanding when it was sent again, or refused.

    One that was answered at the time of its request, by the capture's clock, never counts: a clock of
    microseconds, or a responder that takes no time.
    """
    every = evidence.transfers_of.get((connection.id, side), ())
    answered = max((t.first_psn for t in every if t.acked_ns is not None), default=None)
    found = []
    for t in requests:
        end = t.acked_ns
        if end is None and (answered is None or t.first_psn < answered or connection.missed):
            end = max((e.time_ns for e in t.events if e.kind in _SHOWS_OPEN), default=t.first_ns)
        elif end is None:
            end = evidence.last_ns + 1
        if end > t.first_ns:
            found.append((t, end))
    return found


def _most(requests: list[tuple[Transfer, int]]) -> tuple[int, list[Transfer]]:
    """The most that were outstanding at one time, and which these are."""
    marks = sorted(
        [(t.first_ns, 1, t.id, t) for t, _ in requests] + [(end, 0, t.id, t) for t, end in requests],
        key=lambda m: m[:3],
    )
    open_: dict[int, Transfer] = {}
    worst: list[Transfer] = []
    for _, begins, number, transfer in marks:
        if begins:
            open_[number] = transfer
            if len(open_) > len(worst):
                worst = list(open_.values())
        else:
            open_.pop(number, None)
    return len(worst), worst


def _finding(connection: Connection, side: int, worst: int, limit: int, at: list[Transfer]) -> Finding:
    invalid = [t for t in at if t.status.startswith(NAK_PREFIX)]
    naks = [e.frame for t in invalid for e in t.events if e.kind == "nak"]
    return RULE.finding(
        f"{connection.named(side)} had {plural(worst, 'READ or atomic', 'READs and atomics')} outstanding at "
        f"{connection.named(1 - side)}; agreed: {limit}",
        connection=connection,
        transfer=at[-1],
        frames=[*(t.first_frame for t in at), *naks],
        severity=ERROR if invalid else WARNING,
        evidence={
            "outstanding": worst,
            "limit": limit,
            "initiator_depth": connection.negotiated[side].initiator_depth,
            "responder_resources": connection.negotiated[1 - side].responder_resources,
            "psns": [wire_psn(t.first_psn) for t in at[:MAX_LISTED]],
            "refused": len(invalid),
        },
    )


RULE = Rule(
    "read-depth",
    WARNING,
    "more READs and atomics outstanding than agreed",
    "A requester had more READs and atomics outstanding than agreed with the responder. The responder may "
    "answer them with a NAK “invalid request” (then this is an error), or drop them.",
    "READs and atomics without a response, counted against the initiator depth and the responder resources "
    "of REQ and REP, or max_rd_atomic and max_dest_rd_atomic in the journals.",
    "Requests whose response is not in the capture, although a later one was answered, or the capture has "
    "holes: the response may have come.",
    "Set max_rd_atomic at the requester to at most the peer's max_dest_rd_atomic: with rdma_cm, the "
    "initiator_depth given to rdma_connect and the responder_resources given to rdma_accept.",
    _look,
)
