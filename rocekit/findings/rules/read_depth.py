"""``read-depth``: more READs and atomics outstanding than agreed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rocekit.findings.finding import ERROR, MAX_LISTED, WARNING, Finding, Rule
from rocekit.wire.psn import wire_psn
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Transfer

#: Operations for which a responder keeps resources (9.4.3, 9.4.5).
_LIMITED: Final = frozenset({"READ", "FETCH_ADD", "CMP_SWAP"})


def _look(evidence: Evidence) -> Iterator[Finding]:
    for connection in evidence.connections:
        for side in (0, 1):
            exceeded = _exceeded(evidence, connection, side)
            if exceeded is not None:
                yield _finding(connection, side, *exceeded)


def _exceeded(
    evidence: Evidence, connection: Connection, side: int
) -> tuple[int, int, list[Transfer]] | None:
    """(most outstanding, agreed on, which) where ``side`` had too many; else None."""
    limit = _limit(connection, side)
    if limit is None:
        return None
    asked = [t for t in evidence.transfers_of.get((connection.id, side), ()) if t.operation in _LIMITED]
    if not asked:
        return None
    worst, at = _most(asked, evidence.last_ns)
    return (worst, limit, at) if worst > limit else None


def refused_for_depth(
    evidence: Evidence, connection: Connection, side: int, refused: Sequence[Transfer | None]
) -> bool:
    """Whether requests were refused as invalid because more were outstanding than agreed on."""
    if not all(t is not None and t.operation in _LIMITED for t in refused):
        return False
    return _exceeded(evidence, connection, side) is not None


def _limit(connection: Connection, side: int) -> int | None:
    """What ``side`` may have outstanding: its own initiator depth and its peer's responder resources
    (12.7.29).
    """
    limits = [
        connection.negotiated[side].initiator_depth,
        connection.negotiated[1 - side].responder_resources,
    ]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _most(asked: list[Transfer], end_ns: int) -> tuple[int, list[Transfer]]:
    """The most that were outstanding at one time, and which."""
    marks = sorted(
        [(t.first_ns, 1, t.id, t) for t in asked]
        + [(end_ns + 1 if t.acked_ns is None else t.acked_ns, 0, t.id, t) for t in asked],
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
    refused = [t for t in at if t.status.startswith("nak:")]
    naks = [e.frame for t in refused for e in t.events if e.kind == "nak"]
    return RULE.finding(
        f"{connection.named(side)} had {plural(worst, 'READ or atomic', 'READs and atomics')} outstanding at "
        f"{connection.named(1 - side)}, which agreed to {limit}",
        connection=connection,
        transfer=at[-1],
        frames=[*(t.first_frame for t in at), *naks],
        severity=ERROR if refused else WARNING,
        evidence={
            "outstanding": worst,
            "limit": limit,
            "initiator_depth": connection.negotiated[side].initiator_depth,
            "responder_resources": connection.negotiated[1 - side].responder_resources,
            "psns": [wire_psn(t.first_psn) for t in at[:MAX_LISTED]],
            "refused": len(refused),
        },
    )


RULE = Rule(
    "read-depth",
    WARNING,
    "more READs and atomics outstanding than agreed",
    "A requester had more READs and atomics outstanding than the responder agreed to keep resources for. "
    "The responder may refuse them (NAK invalid request: then it is an error), or drop them.",
    "READs and atomics not answered yet, counted against the initiator depth and the responder resources of "
    "REQ and REP, or max_rd_atomic and max_dest_rd_atomic in the journals.",
    "A capture that misses the responses counts too many; capture-gap says so.",
    "Set max_rd_atomic at the requester to at most the peer's max_dest_rd_atomic: with rdma_cm, the "
    "initiator_depth given to rdma_connect and the responder_resources given to rdma_accept.",
    _look,
)
