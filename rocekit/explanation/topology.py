"""Which hosts talk to whom, over which QPs, and what shape that makes: ring, mesh, star, tree, pair.

A host is an address. A link is two hosts with at least one connection between them; its bytes are the payload
in the capture by direction, including what was sent again. Hosts that reach each other over links are a
group, and each group has a shape.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.connections import Connection

PAIR, RING, MESH, STAR, TREE, LOOPBACK, OTHER = (
    *("pair", "ring", "mesh", "star", "tree", "loopback", "other"),
)

#: A link carries data one way only if its bytes that way are so many times those of the other way, which are
#: credits and small control messages.
ONE_WAY: Final = 4


@dataclass(frozen=True, slots=True)
class QpPair:
    """Two QPs of a link's hosts that talk to each other.

    Attributes:
        a_qpn, b_qpn: their QPNs at the link's ``a`` and ``b``; None if unknown.
        transport: ``RC``, ``UC``, ``UD``, …
        bytes, packets: seen from ``a`` to ``b``, and from ``b`` to ``a``.
        connections: the ids of its connections; several if QPNs were used again.
    """

    a_qpn: int | None
    b_qpn: int | None
    transport: str
    bytes: tuple[int, int]
    packets: tuple[int, int]
    connections: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "a_qpn": self.a_qpn,
            "b_qpn": self.b_qpn,
            "transport": self.transport,
            **_ways("bytes", self.bytes),
            **_ways("packets", self.packets),
            "connections": list(self.connections),
        }


@dataclass(frozen=True, slots=True)
class HostLink:
    """Two hosts that talk to each other.

    Attributes:
        a, b: their addresses, the lower one first; the same twice where a host talks to itself.
        load: its bytes divided by the mean of all links; 0.0 if no link carries any.
    """

    a: str
    b: str
    qps: tuple[QpPair, ...]
    load: float = 0.0

    @property
    def bytes(self) -> tuple[int, int]:
        """Payload from ``a`` to ``b``, and from ``b`` to ``a``."""
        return sum(q.bytes[0] for q in self.qps), sum(q.bytes[1] for q in self.qps)

    @property
    def packets(self) -> tuple[int, int]:
        return sum(q.packets[0] for q in self.qps), sum(q.packets[1] for q in self.qps)

    @property
    def imbalance(self) -> float:
        """The imbalance of its two directions: 0.0 if they are equal, 1.0 if all bytes go one way."""
        there, back = self.bytes
        return abs(there - back) / (there + back) if there + back else 0.0

    @property
    def to(self) -> str | None:
        """The host to which the data goes; None if it goes both ways, or nowhere."""
        there, back = self.bytes
        if there > ONE_WAY * back:
            return self.b
        return self.a if back > ONE_WAY * there else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            **_ways("bytes", self.bytes),
            **_ways("packets", self.packets),
            "load": round(self.load, 4),
            "imbalance": round(self.imbalance, 4),
            "one_way_to": self.to,
            "qps": [q.to_dict() for q in self.qps],
        }


@dataclass(frozen=True, slots=True)
class HostCluster:
    """Hosts that reach each other over links.

    Attributes:
        shape: ``pair``, ``ring``, ``mesh``, ``star``, ``tree``, ``loopback`` or ``other``.
        hosts: a ring's in its order, a star's hub first, others by address.
        one_way: whether a ring's data goes round in the order of ``hosts`` only.
        passes: (from, through, to) if data comes from one neighbour of a star's hub and goes to the other, as
            in a capture made at one host of a ring.
    """

    shape: str
    hosts: tuple[str, ...]
    one_way: bool = False
    passes: tuple[str, str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "hosts": list(self.hosts),
            "one_way": self.one_way,
            "passes": None if self.passes is None else list(self.passes),
        }


@dataclass(frozen=True, slots=True)
class Topology:
    """Who talks to whom.

    Attributes:
        links: by their hosts' addresses.
        groups: the largest first.
    """

    links: tuple[HostLink, ...]
    groups: tuple[HostCluster, ...]

    @property
    def shape(self) -> str | None:
        """The shape of the only group; ``other`` if there are several, None if there is none."""
        return self.groups[0].shape if len(self.groups) == 1 else OTHER if self.groups else None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host, by group."""
        return tuple(host for group in self.groups for host in group.hosts)

    @property
    def qps(self) -> int:
        """QPs at all hosts with known QPNs."""
        return sum(map(len, self.qps_of.values()))

    @property
    def qps_of(self) -> Mapping[str, frozenset[int]]:
        """The QPNs known at each host."""
        found: dict[str, set[int]] = {host: set() for host in self.hosts}
        for link in self.links:
            found[link.a].update(q.a_qpn for q in link.qps if q.a_qpn is not None)
            found[link.b].update(q.b_qpn for q in link.qps if q.b_qpn is not None)
        return {host: frozenset(qpns) for host, qpns in found.items()}

    @property
    def imbalance(self) -> float:
        """The bytes of the busiest link divided by the mean; 0.0 if no link carries any."""
        return max((link.load for link in self.links), default=0.0)

    def sent(self, src: str, dst: str) -> int:
        """Payload bytes from one host to another."""
        for link in self.links:
            if (link.a, link.b) == (src, dst):
                return link.bytes[0] if src != dst else sum(link.bytes)
            if (link.b, link.a) == (src, dst):
                return link.bytes[1]
        return 0

    def _carried(self) -> dict[str, list[int]]:
        """Payload bytes that each host sent, and received: there may be as many hosts as packets."""
        found = {host: [0, 0] for host in self.hosts}
        for link in self.links:
            there, back = link.bytes
            for src, dst, carried in ((link.a, link.b, there), (link.b, link.a, back)):
                found[src][0] += carried
                found[dst][1] += carried
        return found

    def to_dict(self) -> dict[str, Any]:
        """The document that ``rocekit topology --format json`` prints."""
        qps, carried = self.qps_of, self._carried()
        return {
            "shape": self.shape,
            "groups": [group.to_dict() for group in self.groups],
            "hosts": [
                {
                    "ip": host,
                    "qps": sorted(qps[host]),
                    "bytes_sent": carried[host][0],
                    "bytes_received": carried[host][1],
                }
                for host in self.hosts
            ],
            "links": [link.to_dict() for link in self.links],
            "imbalance": round(self.imbalance, 4),
        }


def topology(analysis: Results) -> Topology:
    """Who talks to whom in an analysed capture.

    Raises:
        ValueError: the analysis was not made from a capture.
    """
    evidence = analysis.evidence
    if evidence is None or evidence.observer is None:
        raise ValueError("a topology needs an analysis of captures")
    flows = evidence.observer.flows
    seen: dict[tuple[str, str, int], tuple[int, int]] = {}
    for (src, dst, qpn, _), flow in flows.items():
        payload, packets = seen.get((src, dst, qpn), (0, 0))
        seen[src, dst, qpn] = payload + flow.payload, packets + flow.packets
    return arrange(analysis.connections, seen)


def arrange(
    connections: Iterable[Connection], seen: Mapping[tuple[str, str, int], tuple[int, int]]
) -> Topology:
    """Connections as links and groups, whatever their order.

    Args:
        seen: (payload bytes, packets) by (source address, destination address, destination QPN).
    """
    pairs: dict[tuple[str, str], dict[tuple[Any, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for connection in connections:
        ips, qpns = list(connection.ips), list(connection.qpns)
        if ips[0] is None or ips[1] is None:
            continue
        if _place(ips[0], qpns[0]) > _place(ips[1], qpns[1]):
            ips.reverse()
            qpns.reverse()
        pairs[ips[0], ips[1]][qpns[0], qpns[1], connection.transport].append(connection.id)
    links = []
    for (a, b), found in sorted(pairs.items(), key=lambda item: (_place(item[0][0]), _place(item[0][1]))):
        qps = []
        for a_qpn, b_qpn, transport in sorted(found, key=lambda q: (_number(q[0]), _number(q[1]), q[2])):
            there = seen.get((a, b, b_qpn), (0, 0))
            back = seen.get((b, a, a_qpn), (0, 0))
            ids = tuple(sorted(found[a_qpn, b_qpn, transport]))
            ways = ((there[0], back[0]), (there[1], back[1]))
            qps.append(QpPair(a_qpn, b_qpn, transport, *ways, ids))
        links.append(HostLink(a, b, tuple(qps)))
    mean = fmean(sum(link.bytes) for link in links) if links else 0
    loaded = tuple(HostLink(k.a, k.b, k.qps, sum(k.bytes) / mean if mean else 0.0) for k in links)
    return Topology(loaded, _groups(loaded))


def _groups(links: Collection[HostLink]) -> tuple[HostCluster, ...]:
    """The groups of hosts that are joined by links, the largest first."""
    neighbours: dict[str, set[str]] = defaultdict(set)
    for link in links:
        neighbours[link.a].add(link.b)
        neighbours[link.b].add(link.a)
    goes = {frozenset((link.a, link.b)): link.to for link in links}
    groups, grouped = [], set[str]()
    for host in sorted(neighbours, key=_place):
        if host in grouped:
            continue
        member = {host}
        edge = set(member)
        while edge:
            edge = {peer for each in edge for peer in neighbours[each]} - member
            member |= edge
        grouped |= member
        groups.append(_shape({each: neighbours[each] - {each} for each in member}, goes))
    return tuple(sorted(groups, key=lambda g: (-len(g.hosts), _place(min(g.hosts, key=_place)))))


def _shape(
    neighbours: Mapping[str, Collection[str]], goes: Mapping[frozenset[str], str | None]
) -> HostCluster:
    """The shape of hosts that all reach each other.

    Three hosts that all talk to each other are both a mesh and a ring: they are called a ring if the data
        goes
    round one way.
    """
    hosts = tuple(sorted(neighbours, key=_place))
    n = len(hosts)
    degrees = {host: len(peers) for host, peers in neighbours.items()}
    edges = sum(degrees.values()) // 2
    if n == 1:
        return HostCluster(LOOPBACK, hosts)
    if n == 2:
        return HostCluster(PAIR, hosts)
    if set(degrees.values()) == {2}:
        order, one_way = _round(hosts, neighbours, goes)
        return HostCluster(MESH, hosts) if n == 3 and not one_way else HostCluster(RING, order, one_way)
    if edges == n * (n - 1) // 2:
        return HostCluster(MESH, hosts)
    if edges == n - 1:
        hub = max(hosts, key=degrees.__getitem__)
        if degrees[hub] == n - 1:
            leaves = tuple(host for host in hosts if host != hub)
            return HostCluster(STAR, (hub, *leaves), passes=_passes(hub, leaves, goes))
        return HostCluster(TREE, hosts)
    return HostCluster(OTHER, hosts)


def _round(
    hosts: tuple[str, ...],
    neighbours: Mapping[str, Collection[str]],
    goes: Mapping[frozenset[str], str | None],
) -> tuple[tuple[str, ...], bool]:
    """A ring's hosts in the direction of its data, the lowest first; whether data goes only that way."""
    order = [hosts[0], min(neighbours[hosts[0]], key=_place)]
    while len(order) < len(hosts):
        order.append(next(peer for peer in neighbours[order[-1]] if peer != order[-2]))
    after = [*order[1:], order[0]]
    targets = [goes[frozenset(step)] for step in zip(order, after, strict=True)]
    if targets == order:
        return (order[0], *reversed(order[1:])), True
    return tuple(order), targets == after


def _passes(
    hub: str, leaves: tuple[str, ...], goes: Mapping[frozenset[str], str | None]
) -> tuple[str, str, str] | None:
    """The way of data through a hub between its two neighbours."""
    if len(leaves) != 2:
        return None
    into = [leaf for leaf in leaves if goes[frozenset((leaf, hub))] == hub]
    out = [leaf for leaf in leaves if goes[frozenset((leaf, hub))] == leaf]
    return (into[0], hub, out[0]) if into and out else None


def _place(ip: str, qpn: int | None = None) -> tuple[int, int, int]:
    """The sort key of addresses: by number, IPv4 first."""
    return *_address_place(ip), _number(qpn)


@lru_cache(1 << 16)
def _address_place(ip: str) -> tuple[int, int]:
    """Each address is asked for many times, and takes longer to parse than to compare."""
    address = ipaddress.ip_address(ip)
    return address.version, int(address)


def _number(qpn: int | None) -> int:
    return -1 if qpn is None else qpn


def _ways(name: str, values: tuple[int, int]) -> dict[str, int]:
    return {f"{name}_a_to_b": values[0], f"{name}_b_to_a": values[1]}
