"""``class-differs``: connections of the same two hosts use different traffic classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rocekit.findings.finding import INFO, MAX_LISTED, Finding, Rule
from rocekit.flows.observer import REQUEST

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection

#: A class: the DSCP, and the VLAN priority (None without a tag). Of each connection in it: the sending side,
#: and the frame of the first request.
_Class = tuple[int, int | None]
_Members = list[tuple["Connection", int, int]]


def _look(evidence: Evidence) -> Iterator[Finding]:
    ways: dict[tuple[str | None, str | None, int], dict[_Class, _Members]] = {}
    for connection in evidence.survey.unlike_siblings():
        for side in (0, 1):
            own = _class(evidence, connection, side)
            if own is not None:
                way = (connection.ips[side], connection.ips[1 - side], connection.around[side].scope)
                ways.setdefault(way, {}).setdefault(own[0], []).append((connection, side, own[1]))
    said: set[frozenset[frozenset[int]]] = set()
    for (src, dst, _), classes in ways.items():
        division = frozenset(frozenset(c.id for c, _, _ in members) for members in classes.values())
        if len(classes) > 1 and division not in said:  # not again for the other direction
            said.add(division)
            yield _finding(src, dst, classes)


def _class(evidence: Evidence, connection: Connection, side: int) -> tuple[_Class, int] | None:
    """The class of a side's requests, and the frame of the first; None without requests or with several
    classes, which is ``dscp-mismatch``.
    """
    view = evidence.survey.flow(connection, side)
    dscps = {} if view is None else view.dscps.get(REQUEST, {})
    if view is None or len(dscps) != 1 or len(view.priorities) > 1:
        return None
    ((dscp, (_, frame)),) = dscps.items()
    return (dscp, next(iter(view.priorities), None)), frame


def _finding(src: str | None, dst: str | None, classes: dict[_Class, _Members]) -> Finding:
    ordered = sorted(classes.items(), key=lambda item: -len(item[1]))
    rarest = ordered[-1][1]
    lone = len(rarest) == 1 and len(ordered[-2][1]) > 1
    tagged = len({priority for _, priority in classes}) > 1
    words = [
        f"DSCP {dscp}{_tag(priority) if tagged else ''} on {len(members):,}"
        for (dscp, priority), members in ordered
    ]
    if lone:
        connection, side, _ = rarest[0]
        words[-1] += f" ({connection.way(side)})"
    found: dict[str, Any] = {
        "source": src,
        "destination": dst,
        "classes": [
            {
                "dscp": dscp,
                "priority": priority,
                "count": len(members),
                "connections": [c.id for c, _, _ in members[:MAX_LISTED]],
            }
            for (dscp, priority), members in ordered
        ],
    }
    return RULE.finding(
        f"Connections from {src} to {dst} use different traffic classes: {', '.join(words)}",
        connection=rarest[0][0] if lone else None,
        frames=sorted(members[0][2] for members in classes.values()),
        evidence=found,
    )


def _tag(priority: int | None) -> str:
    return " without VLAN priority" if priority is None else f" with VLAN priority {priority}"


RULE = Rule(
    "class-differs",
    INFO,
    "connections of the same two hosts use different traffic classes",
    "Requests of some connections from one host to another have another DSCP or VLAN priority than those of "
    "its other connections to the same host. Switches may treat them differently: another queue, lossless or "
    "not, ECN or not.",
    "The DSCP in the IP header and the priority in the VLAN tag of the requests, compared between the "
    "connections of the same two hosts and direction.",
    "dscp-mismatch: one connection in several classes. Different classes can be intended: several "
    "programs, storage beside compute, or control messages (NCCL_IB_FIFO_TC).",
    "If it is not intended, set the same traffic class for all QPs (`cma_roce_tos`, the traffic class of the "
    "address handle, NCCL_IB_TC, UCX_IB_TRAFFIC_CLASS). Compare delays and losses of the two classes.",
    _look,
)
