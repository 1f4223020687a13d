"""``low-entropy``: many QPs share one UDP source port and so one path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.finding import INFO, MAX_LISTED, Finding, Rule
from rocekit.packets.wrapping import PLAIN
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

#: Fewer QPs than this between two hosts are not reported: they may share a port by chance or on purpose.
_QPS: Final = 4
#: Fewer QPs per port than this are not reported.
_QPS_PER_PORT: Final = 4


def _look(evidence: Evidence) -> Iterator[Finding]:
    if evidence.observer is None:
        return
    table = evidence.observer.table
    spread = {name[:2] for name in table.with_several_ports()}
    for src, dst, scope, frames, ports in table.requesters(_QPS):
        qps = len(frames)
        # A QP that uses several ports is not bound to one path: see multipath.
        if (src, dst) in spread or qps < _QPS_PER_PORT * len(ports):
            continue
        yield RULE.finding(
            f"{plural(qps, 'QP')} from {src} to {dst}{_network(evidence, scope)} share "
            f"{plural(len(ports), 'UDP source port')}",
            frames=frames,
            evidence={
                "src": src,
                "dst": dst,
                "qps": qps,
                "udp_source_ports": sorted(ports)[:MAX_LISTED],
                "port_count": len(ports),
            },
        )


def _network(evidence: Evidence, scope: int) -> str:
    """The VLAN or virtual network of a scope in words."""
    if not scope:
        return ""
    found = next((a for c in evidence.connections for a in c.around if a.scope == scope), PLAIN)
    words = [f"VLAN {vlan}" for vlan in found.vlans]
    words += [f"virtual network {found.vni}"] * (found.vni >= 0)
    return f" in {', '.join(words)}" if words else ""


RULE = Rule(
    "low-entropy",
    INFO,
    "many QPs share one UDP source port and so one path",
    "Switches spread flows over equal paths by a hash. Between two hosts, only the UDP source port differs "
    "from QP to QP. QPs with the same port share one path and its congestion, while other paths may be "
    "idle.",
    "The number of UDP source ports compared with the number of QPs between two hosts.",
    "A network with one path only, or a few QPs: then it does not matter.",
    "Give the QPs different source ports: drivers derive the port from the flow label that the QP is given "
    "(ah_attr.grh.flow_label of ibv_modify_qp; mlx5 also has mlx5dv_modify_qp_udp_sport), or from both QPNs "
    "if that is 0. More QPs for the same data help, too (NCCL_IB_QPS_PER_CONNECTION with "
    "NCCL_IB_SPLIT_DATA_ON_QPS).",
    _look,
)
