"""``dscp-mismatch``: the packets of one connection use different traffic classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rocekit import wire
from rocekit.findings.finding import INFO, WARNING, Finding, Rule
from rocekit.flows.observer import REQUEST, RESPONSE

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.flows.view import FlowView
    from rocekit.track.connections import Connection


def _look(evidence: Evidence) -> Iterator[Finding]:
    agreed = (
        c
        for c in evidence.agreed
        if any(n.traffic_class is not None or n.service_level is not None for n in c.negotiated)
    )
    for connection in evidence.among(agreed, evidence.survey.several_classes()):
        views = _views(evidence, connection)
        if views == _NEITHER:  # a flood has many connections without packets
            continue
        classes = _classes(views)
        if len({dscp for _, _, dscp in classes}) > 1:
            by_kind = _by_kind(classes)
            if by_kind is None:
                yield _finding(connection, classes)
            else:
                yield _of_responses(evidence, connection, classes, *by_kind)
        yield from _other_than_agreed(evidence, connection, views, classes)


_Classes = dict[tuple[int, str, int], tuple[int, int]]
_Views = tuple["FlowView | None", "FlowView | None"]
_NEITHER: Final = (None, None)


def _views(evidence: Evidence, connection: Connection) -> _Views:
    """What each side sent."""
    return evidence.survey.flow(connection, 0), evidence.survey.flow(connection, 1)


def _classes(views: _Views) -> _Classes:
    """(side, kind, DSCP) to (packets, first frame), without CNPs, which have their own class on purpose."""
    found: _Classes = {}
    for side, view in enumerate(views):
        for kind in (REQUEST, RESPONSE):
            for dscp, seen in (view.dscps.get(kind, {}) if view is not None else {}).items():
                found[side, kind, dscp] = seen
    return found


def _other_than_agreed(
    evidence: Evidence, connection: Connection, views: _Views, classes: _Classes
) -> Iterator[Finding]:
    """An info if packets have another traffic class than the REQ or the journal says."""
    found: dict[str, Any] = {}
    frames: list[int] = []
    words = []
    for side in (0, 1):
        agreed = connection.negotiated[side]
        name = "ab"[side]
        sent = {dscp: frame for (s, _, dscp), (_, frame) in classes.items() if s == side}
        if agreed.traffic_class is not None and sent and agreed.traffic_class >> 2 not in sent:
            dscp = agreed.traffic_class >> 2
            found |= {f"agreed_dscp_{name}": dscp, f"dscp_{name}": sorted(sent)}
            words.append(f"{connection.named(side)} sends with DSCP {_list(sent)}, not {dscp}")
            frames += sent.values()
        view = views[side]
        tagged = view.priorities if view is not None else set()
        if agreed.service_level is not None and tagged and agreed.service_level not in tagged:
            found |= {
                f"agreed_service_level_{name}": agreed.service_level,
                f"priority_{name}": sorted(tagged),
            }
            words.append(
                f"{connection.named(side)} sends with VLAN priority {_list(tagged)}, not service level "
                f"{agreed.service_level}"
            )
    if words:
        yield RULE.finding(
            f"Another traffic class than agreed: {'; '.join(words)}",
            connection=connection,
            frames=[*evidence.handshake_frames(connection), *sorted(frames)],
            evidence=found | {"differs": "from what was agreed"},
            severity=INFO,
            advice="A default of the host's device sets it (`cma_roce_tos`, the NIC's traffic class), or "
            "something rewrites it before the capture point. It matters if the fabric's lossless class "
            "depends on it.",
        )


def _list(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(values)))


def _by_kind(classes: _Classes) -> tuple[int, int] | None:
    """The DSCPs of requests and of responses, if these two are all and a side sends both; else None."""
    requests = {dscp for _, kind, dscp in classes if kind == REQUEST}
    responses = {dscp for _, kind, dscp in classes if kind == RESPONSE}
    both = any({REQUEST, RESPONSE} <= {kind for s, kind, _ in classes if s == side} for side in (0, 1))
    return (requests.pop(), responses.pop()) if both and len(requests) == len(responses) == 1 else None


def _of_responses(
    evidence: Evidence, connection: Connection, classes: _Classes, asked: int, answered: int
) -> Finding:
    """Responses have a class of their own at the same side: info, unless READ data is among them."""
    views = [evidence.survey.flow(connection, s) for s in (0, 1)]
    opcodes = {wire.OPCODES[o] for v in views if v is not None for o in v.opcodes if o in wire.OPCODES}
    has_data = any(o.response and o.payload for o in opcodes)
    what = "Responses, READ data among them," if has_data else "ACKs"
    return RULE.finding(
        f"{what} are in another traffic class than requests: DSCP {answered}, not {asked}",
        connection=connection,
        frames=sorted(frame for _, frame in classes.values()),
        evidence=_evidence(connection, classes) | {"differs": "by kind"},
        severity=WARNING if has_data else INFO,
        advice=RULE.what_to_do
        if has_data
        else "Probably intended, because a host here sends both: some NICs give ACKs a class of their own. "
        "It means that a pause of the data's class does not stop ACKs, and that ACKs can be dropped alone if "
        "their class is not lossless, which costs a timeout at the end of a burst.",
    )


def _evidence(connection: Connection, classes: _Classes) -> dict[str, Any]:
    return {
        "classes": [
            {"from": connection.end(side), "kind": kind, "dscp": dscp, "packets": n, "frame": frame}
            for (side, kind, dscp), (n, frame) in sorted(classes.items())
        ]
    }


def _finding(connection: Connection, classes: _Classes) -> Finding:
    by_side = {side: sorted({d for s, _, d in classes if s == side}) for side in (0, 1)}
    sides = " and ".join(
        f"{connection.named(side)} sends with DSCP {', '.join(map(str, dscps))}"
        for side, dscps in by_side.items()
        if dscps
    )
    within = any(len(dscps) > 1 for dscps in by_side.values())
    found = _evidence(connection, classes) | {"differs": "within a direction" if within else "by direction"}
    advice = RULE.what_to_do
    if within:
        advice += (
            " A DSCP that changes within one direction is rewritten on the way, or changed by the program "
            "(rdma_set_option RDMA_OPTION_ID_TOS, traffic_class in the address handle)."
        )
    elif not any(side == 1 and kind == REQUEST for side, kind, _ in classes) or not any(
        side == 0 and kind == REQUEST for side, kind, _ in classes
    ):
        advice += _ONE_REQUESTER
    return RULE.finding(
        f"One connection uses several traffic classes: {sides}",
        connection=connection,
        frames=sorted(frame for _, frame in classes.values()),
        evidence=found,
        advice=advice,
    )


_ONE_REQUESTER = (
    " Open: whether the responder's QP has another class, or its NIC sends ACKs in a class of their own "
    "(it sent no requests)."
)

RULE = Rule(
    "dscp-mismatch",
    WARNING,
    "one connection uses several traffic classes",
    "The two directions of a connection, or its data and its ACKs, have different DSCPs. If only one of "
    "them is in the lossless class, the other can be dropped or delayed: lost ACKs, or READ data in the "
    "lossy class. Info if only ACKs have a class of their own at both ends, or the class differs "
    "only from the agreed one.",
    "The DSCP in the IP header by direction and kind of packet, compared with the traffic class and "
    "service level of the REQ or the journal.",
    "CNPs usually have their own class and are not counted. Every switch may map the different DSCPs to "
    "one priority; if there are VLAN tags, their priorities show it.",
    "Set the same traffic class at both ends: `cma_roce_tos -d DEV -t TOS` for rdma_cm, otherwise the "
    "traffic class of the address handle (perftest: --tclass; NCCL_IB_TC; UCX_IB_TRAFFIC_CLASS). Trust "
    "DSCP at both NICs (`mlnx_qos -i IFACE --trust dscp`).",
    _look,
)
