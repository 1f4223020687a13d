"""``icmp-unreachable`` and ``icmp-too-big``: a host or router answered RoCE packets with an ICMP error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit import wire
from rocekit.findings.finding import ERROR, INFO, WARNING, Finding, Rule
from rocekit.findings.witnesses import Quoted, quoted
from rocekit.track.transfers import ACKED
from rocekit.wire.icmp import EXPIRED, PORT_UNREACHABLE, PROHIBITED

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

#: Bytes of a packet's headers and ICRC without its IP header: UDP, BTH, RETH, immediate data, ICRC.
_HEADERS: Final = 8 + 12 + 16 + 4 + 4


def _look_unreachable(evidence: Evidence) -> Iterator[Finding]:
    for group in quoted(evidence, too_big=False):
        error = group.errors[0]
        yield UNREACHABLE.finding(
            f"{error.source} answered {group.what(evidence)} with ICMP “{error.kind}” "
            f"({group.count_words(evidence)})",
            connection=group.ways[0][0] if len(group.ways) == 1 else None,
            transfer=group.transfers[0] if group.transfers else None,
            frames=[e.frame for e in group.errors],
            evidence=group.to_dict() | {"acknowledged": _acknowledged(group)},
            advice=_cause(group) + (_DELIVERED if _acknowledged(group) else ""),
            severity=_severity(evidence, group),
        )


def _acknowledged(group: Quoted) -> bool:
    """Whether all quoted packets that the capture has were acknowledged."""
    return bool(group.transfers) and all(t.status == ACKED for t in group.transfers)


def _severity(evidence: Evidence, group: Quoted) -> str:
    if not group.is_roce(evidence):
        return INFO
    return WARNING if _acknowledged(group) else ERROR


def _cause(group: Quoted) -> str:
    """What the error proves, what it means and what to do."""
    error = group.errors[0]
    source, dst = error.source, error.quote.dst
    proven = f"{source} got these packets and did not deliver them. "
    if error.kind == PORT_UNREACHABLE and source == dst:
        return (
            f"{dst} got these packets, but no RoCE device there took them: its kernel got them, and nothing "
            "listens on UDP port 4791, or its firewall rejects them. Check at that host that the RoCE "
            "device is active and has a RoCE v2 GID with this address (`rocekit devices`; rxe: `rdma link`), "
            "and its firewall (REJECT answers so too)."
        )
    if error.kind == PORT_UNREACHABLE or error.kind in PROHIBITED:
        return proven + "Probably a firewall rejects UDP port 4791 there: let it pass in both directions."
    if error.kind in EXPIRED:
        return (
            proven + "Probably a routing loop, or the QP's hop limit is too small for the path: look at "
            f"`traceroute {dst}`, and at hop_limit in the address handle."
        )
    return (
        proven + f"It has no working route or neighbour entry for {dst}: look at `ip route get {dst}` and "
        f"`ip neigh` at {source}, and whether {dst} is up."
    )


_DELIVERED: Final = (
    " The packets that the capture has of them were acknowledged all the same: sent again, or given to the "
    "kernel beside the RoCE device."
)


def _look_too_big(evidence: Evidence) -> Iterator[Finding]:
    for group in quoted(evidence, too_big=True):
        error = group.errors[0]
        limits = [e.mtu for e in group.errors if e.mtu is not None]
        largest = max(e.quote.length for e in group.errors)
        mtu = min(limits, default=None)
        room = None if mtu is None else mtu - (40 if ":" in error.quote.src else 20) - _HEADERS
        fits = [m for m in wire.PATH_MTU_CODES if room is not None and m <= room]
        takes = "it does not say how large a packet may be" if mtu is None else f"the limit is {mtu:,} bytes"
        advice = TOO_BIG.what_to_do
        if fits:
            advice = f"Path MTU {max(fits):,} fits {mtu:,} bytes with all headers. " + advice
        yield TOO_BIG.finding(
            f"{error.source} did not forward {group.what(evidence)}: too big with up to {largest:,} bytes, "
            f"{takes} (ICMP, {group.count_words(evidence)})",
            connection=group.ways[0][0] if len(group.ways) == 1 else None,
            transfer=group.transfers[0] if group.transfers else None,
            frames=[e.frame for e in group.errors],
            evidence=group.to_dict()
            | {
                "next_hop_mtu": mtu,
                "path_mtus": sorted({c.path_mtu for c, _ in group.ways if c.path_mtu is not None}),
                "fitting_path_mtu": max(fits, default=None),
            },
            advice=advice,
            severity=ERROR if group.is_roce(evidence) else INFO,
        )


UNREACHABLE = Rule(
    "icmp-unreachable",
    ERROR,
    "a host or router answered RoCE packets with an ICMP error",
    "A host or router got RoCE packets that it could not deliver, and said so: nothing listens on UDP port "
    "4791 there, a firewall rejects it, no route or neighbour, or the TTL ran out. The QP does not see ICMP: "
    "it sends again until it gives up. Warning if the packets were acknowledged all the same; info if the "
    "capture has no RoCE packets of the two hosts.",
    "ICMP (types 3, 11, 12) and ICMPv6 (1, 3, 4) that quote a packet to UDP port 4791. The quoted QPN names "
    "the connection; where the quote is too short for it, the UDP port or the two hosts do, which is "
    "“probably”.",
    "ICMP about other UDP ports is not counted. A router limits how many errors it sends, so their number is "
    "not the number of packets that it dropped.",
    "Look at the sender of the ICMP error, not at the QPs.",
    _look_unreachable,
)

TOO_BIG = Rule(
    "icmp-too-big",
    ERROR,
    "a router cannot forward RoCE packets because they are too big",
    "A router's next link takes only smaller packets, so it dropped these and said so (ICMP “fragmentation "
    "needed”, ICMPv6 “packet too big”). RoCE packets must not be fragmented, and a QP's path MTU is fixed "
    "when it connects: RDMA does not learn from ICMP as TCP does. Smaller packets still arrive.",
    "The ICMP error quotes a packet to UDP port 4791 with its length, and the next link's MTU.",
    "mtu-mismatch: the same without an ICMP message, because a switch drops too big frames silently.",
    "Set a larger MTU on every link of the path (path MTU 4096 needs about 4200), or a smaller path MTU at "
    "both QPs (perftest: -m; rdma_cm takes it from the MTU of the host's interface).",
    _look_too_big,
)
RULES: Final = (UNREACHABLE, TOO_BIG)
