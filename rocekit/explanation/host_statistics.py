"""Counts for each host: its QPs and the CM messages that it sent and received, with OTG's names."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

#: CM messages in their order in a connection, and OTG's names for them.
CM_NAMES: Final = {
    "REQ": "connect_request",
    "REP": "connect_reply",
    "RTU": "connect_ready",
    "REJ": "connect_reject",
    "DREQ": "disconnect_request",
    "DREP": "disconnect_reply",
}


def peers(evidence: Evidence, refused: set[int]) -> list[dict[str, Any]]:
    """A record for each host, by address: ``{"ip", "qp_configured", "qp_up", "qp_down", "connect_request_tx",
    …}``.

    ``qp_up``: QPs whose connection was neither closed nor failed at the end of the capture; ``qp_down``: the
    others.

    Args:
        refused: the ids of connections with a transfer that a NAK ended.
    """
    hosts: dict[str, Counter[str]] = {}
    qps: dict[tuple[str, int], bool] = {}
    failed = refused | {s.connection.id for s in evidence.stories if s.gave_up and s.certain}
    for connection in evidence.connections:
        down = connection.id in failed or connection.closed_frame is not None
        for side in (0, 1):
            ip, qpn = connection.ips[side], connection.qpns[side]
            if ip is not None and qpn is not None:
                qps[ip, qpn] = not down  # a QPN may be used again: the last use counts
    for (ip, _), up in qps.items():
        counted = hosts.setdefault(ip, Counter())
        counted["qp_configured"] += 1
        counted["qp_up" if up else "qp_down"] += 1
    for record in evidence.cm_records:
        name = CM_NAMES.get(record.message)
        if name is not None:
            hosts.setdefault(record.src, Counter())[f"{name}_tx"] += 1
            hosts.setdefault(record.dst, Counter())[f"{name}_rx"] += 1
    names = ("qp_configured", "qp_up", "qp_down")
    messages = [f"{name}_{way}" for name in CM_NAMES.values() for way in ("tx", "rx")]
    return [
        {
            "ip": ip,
            **{name: counted[name] for name in (*names, *messages)},
        }
        for ip, counted in sorted(hosts.items())
    ]
