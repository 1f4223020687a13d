"""``dscp-mismatch``: the packets of one connection ride different traffic classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rocekit.findings.finding import WARNING, Finding, Rule
from rocekit.findings.words import end
from rocekit.observe import REQUEST, RESPONSE

if TYPE_CHECKING:
    from rocekit.connections import Connection
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    for connection in evidence.connections:
        classes = _classes(evidence, connection)
        if len({dscp for _, _, dscp in classes}) > 1:
            yield _finding(connection, classes)


_Classes = dict[tuple[int, str, int], tuple[int, int]]


def _classes(evidence: Evidence, connection: Connection) -> _Classes:
    """(side, kind, DSCP) to (packets, first frame); CNPs have a class of their own on purpose."""
    found: _Classes = {}
    for side in (0, 1):
        view = None if evidence.observer is None else evidence.observer.flow(connection, side)
        for kind in (REQUEST, RESPONSE):
            for dscp, seen in (view.dscps.get(kind, {}) if view is not None else {}).items():
                found[side, kind, dscp] = seen
    return found


def _finding(connection: Connection, classes: _Classes) -> Finding:
    by_side = {side: sorted({d for s, _, d in classes if s == side}) for side in (0, 1)}
    sides = " and ".join(
        f"{end(connection, side)} sends with DSCP {', '.join(map(str, dscps))}"
        for side, dscps in by_side.items()
        if dscps
    )
    within = any(len(dscps) > 1 for dscps in by_side.values())
    found: dict[str, Any] = {
        "classes": [
            {"from": connection.end(side), "kind": kind, "dscp": dscp, "packets": n, "frame": frame}
            for (side, kind, dscp), (n, frame) in sorted(classes.items())
        ],
        "differs": "within a direction" if within else "by direction",
    }
    advice = RULE.what_to_do
    if within:
        advice += (
            " A DSCP that changes within one direction is rewritten on the way, or set anew by the program "
            "(rdma_set_option RDMA_OPTION_ID_TOS, traffic_class in the address handle)."
        )
    return RULE.finding(
        f"One connection rides several classes: {sides}",
        connection=connection,
        frames=sorted(frame for _, frame in classes.values()),
        evidence=found,
        advice=advice,
    )


RULE = Rule(
    "dscp-mismatch",
    WARNING,
    "one connection rides several traffic classes",
    "The two directions of a connection, or its data and its acknowledgements, carry different DSCPs. If "
    "only one of them is in the lossless class, the other can be dropped or held up: acknowledgements lost, "
    "READ data in the lossy class.",
    "The DSCP of the IP header by direction and kind of packet.",
    "CNPs ride their own class as a rule and are not counted. Different DSCPs may map to one priority in "
    "every switch; the VLAN priorities show it where there are tags.",
    "Set the same traffic class at both ends: `cma_roce_tos -d DEV -t TOS` for rdma_cm, the traffic class "
    "of the address handle else (perftest: --tclass; NCCL_IB_TC; UCX_IB_TRAFFIC_CLASS), and trust DSCP at "
    "both NICs (`mlnx_qos -i IFACE --trust dscp`).",
    _look,
)
