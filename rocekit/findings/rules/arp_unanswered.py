"""``arp-unanswered``: a host of RoCE connections did not answer ARP or ND."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.finding import INFO, WARNING, Finding, Rule
from rocekit.wire.words import duration, plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.packets.witnesses.neighbours import Unanswered


def _look(evidence: Evidence) -> Iterator[Finding]:
    hosts = frozenset().union(*evidence.host_pairs) if evidence.unanswered else frozenset()
    for (asker, target), own in evidence.unanswered.items():
        if target in hosts:
            yield _finding(evidence, asker, target, own)


def _finding(evidence: Evidence, asker: str, target: str, own: list[Unanswered]) -> Finding:
    worst = max(own, key=lambda s: (s.until_ns is None, s.last_ns - s.first_ns))
    heard = {} if evidence.observer is None else evidence.observer.heard
    last_roce = max((ns for (src, _), ns in heard.items() if src == target), default=None)
    meanwhile = last_roce is not None and last_roce > worst.last_ns
    certain = evidence.would_have_reply(asker, target)
    longest_ns = worst.last_ns - worst.first_ns
    what = f"{plural(worst.requests, f'{worst.protocol} request')} in {duration(longest_ns)}"
    if not certain:
        title = f"The capture has no reply of {target} to {what} from {asker}: probably there was none"
    elif worst.until_ns is not None:
        late = duration(worst.until_ns - worst.first_ns)
        title = f"{target} left {what} from {asker} without a reply for {late}"
    else:
        title = f"{target} did not answer {what} from {asker}"
    ways = evidence.ways_between.get((asker, target), [])
    return RULE.finding(
        title,
        connection=ways[0][0] if len(ways) == 1 else None,
        frames=[frame for streak in own for frame in streak.frames],
        evidence={
            "protocol": worst.protocol,
            "asker": asker,
            "target": target,
            "requests": sum(s.requests for s in own),
            "streaks": len(own),
            "longest_ns": longest_ns,
            "from_ns": worst.first_ns,
            "until_ns": worst.until_ns,
            "replied": worst.replied,
            "roce_afterwards": meanwhile,
            "has_direction": certain,
            "connections": [c.id for c, _ in ways],
        },
        advice=(_ROCE_WENT_ON if meanwhile else "") + RULE.what_to_do + ("" if certain else _NO_DIRECTION),
        severity=WARNING if certain and not meanwhile and worst.until_ns is None else INFO,
    )


_ROCE_WENT_ON = (
    "RoCE packets of the host came afterwards: it was alive, or came back. A NIC resolves the peer's address "
    "only when a QP connects, so its RoCE traffic can go on while the kernel gets no reply. "
)

_NO_DIRECTION = (
    " “Probably”, because a host that got a reply does not ask again at once. The capture has no packets to "
    "that host, so it could lack the replies (of arping, for example)."
)

RULE = Rule(
    "arp-unanswered",
    WARNING,
    "a host of RoCE connections did not answer ARP or ND",
    "A host asked for the Ethernet address of a RoCE host several times and got no reply: the host or its "
    "link is down, or the two are not in the same VLAN. This concerns all traffic, not RDMA alone. Info if "
    "the address was heard again later, or the capture has no packets to the host that asked.",
    "ARP requests or ND solicitations for one address, at least two in a row without any ARP or ND message "
    "from it. A capture without packets to the host that asked must have three: a host with a reply does not "
    "ask again at once.",
    "Duplicate address detection (nobody should answer) and gratuitous ARP are not counted. A capture of "
    "broadcasts only has no replies; arping asks again even so.",
    "Check the host and its link, then VLAN and switch port (`ip neigh` at both hosts shows FAILED or "
    "INCOMPLETE). Software RoCE (rxe) needs the neighbour entry for every packet.",
    _look,
)
