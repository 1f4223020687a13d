"""A topology as text, and as a graph for Graphviz."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rocekit.explanation.topology import RING, STAR, TREE
from rocekit.wire.text_table import Style, columns, plain
from rocekit.wire.words import plural, qpn, short_size

if TYPE_CHECKING:
    from rocekit.explanation.topology import HostCluster, HostLink, QpPair, Topology

#: QP pairs of a link that are listed by default.
SHOWN_QPS: Final = 4
#: The largest number of hosts with a table of bytes by sender and receiver.
TABLE_HOSTS: Final = 16

#: Inches between neighbours on a circle, with space for labels of edges.
_APART: Final = 2.4


def text(topology: Topology, *, style: Style = plain, every: bool = False, width: int | None = None) -> str:
    """The shape, the links with their bytes and QPs, and a table of bytes by sender and receiver.

    Args:
        every: list all QP pairs of every link.
        width: of the terminal; None: there is none.
    """
    if not topology.groups:
        return "No connections."
    carried = sum(sum(link.bytes) for link in topology.links)
    lines = [
        f"{plural(len(topology.hosts), 'host')}, {plural(len(topology.links), 'link')}, "
        f"{plural(topology.qps, 'QP')}, {short_size(carried)} of payload"
    ]
    for group in topology.groups:
        lines += _group(group, style)
    lines += ["", style("Links", "title"), *_links(topology, every, width)]
    if len(topology.links) > 1:
        lines.append(f"  busiest link: ×{topology.imbalance:.2f} of the mean")
    if 2 < len(topology.hosts) <= TABLE_HOSTS:
        lines += ["", style("From row to column", "title"), *_table(topology, width)]
    doubts = [_doubt(group, style) for group in topology.groups if group.shape == STAR]
    return "\n".join([*lines, *([""] * bool(doubts)), *doubts])


def _group(group: HostCluster, style: Style) -> list[str]:
    hosts = group.hosts
    name = style(group.shape, "title")
    if group.shape == RING:
        way = ", data goes this way" if group.one_way else ", data goes both ways"
        arrow = " → " if group.one_way else " ⇄ "
        return [f"{name} of {len(hosts)}: {arrow.join((*hosts, hosts[0]))}{way}"]
    if group.shape != STAR:
        return [f"{name} of {len(hosts)}: {', '.join(hosts)}"]
    lines = [f"{name} of {len(hosts)}: {hosts[0]} in the middle of {', '.join(hosts[1:])}"]
    if group.passes is not None:
        lines.append(style(f"  the data passes through, as in a ring: {' → '.join(group.passes)}", "dim"))
    return lines


def _doubt(group: HostCluster, style: Style) -> str:
    hub = group.hosts[0]
    words = f"Links without {hub}: unknown if the capture was made at {hub} (add the captures of other hosts)"
    return style(words, "dim")


def _links(topology: Topology, every: bool, width: int | None) -> list[str]:
    rows = [("", "", "", "→", "←", "both", "× mean")]
    for link in topology.links:
        there, back = link.bytes
        rows.append(
            (
                link.a,
                _arrow(link),
                link.b,
                short_size(there),
                short_size(back),
                short_size(there + back),
                f"{link.load:.2f}",
            )
        )
        shown = link.qps if every or len(link.qps) <= SHOWN_QPS else link.qps[:SHOWN_QPS]
        rows += [_qps(q) for q in shown]
        if len(shown) < len(link.qps):
            rows.append(("", "…", f"{len(link.qps) - len(shown)} more QP pairs (--qps)", "", "", "", ""))
    # The sum of both directions goes first, then each of them.
    return columns(rows, right=frozenset({3, 4, 5, 6}), width=width, spare=(5, 4, 3), room=6)


def _qps(q: QpPair) -> tuple[str, str, str, str, str, str, str]:
    there, back = q.bytes
    arrow = "–" if None in (q.a_qpn, q.b_qpn) else "⇄"
    sizes = short_size(there), short_size(back), short_size(there + back)
    return (f"  {qpn(q.a_qpn)}", arrow, f"  {qpn(q.b_qpn)}", *sizes, q.transport)


def _arrow(link: HostLink) -> str:
    to = link.to
    return "⇄" if to is None or link.a == link.b else "→" if to == link.b else "←"


def _table(topology: Topology, width: int | None) -> list[str]:
    hosts = topology.hosts
    rows = [["", *hosts]]
    for src in hosts:
        cells = (topology.sent(src, dst) for dst in hosts)
        rows.append([src, *(short_size(n) if n else "·" for n in cells)])
    return columns(rows, right=frozenset(range(1, len(hosts) + 1)), width=width, room=0)


def dot(topology: Topology, *, every: bool = False) -> str:
    """The topology in Graphviz's language: an edge for each direction, its width by its bytes.

    Args:
        every: draw QPs inside their hosts, and edges between QPs.
    """
    # Hosts with QPs inside are clusters, which only fdp can place.
    tree = [group.shape for group in topology.groups] == [TREE]
    engine = "fdp, K=1.6" if every else "dot" if tree else "neato"
    places = {} if every or tree else _places(topology.groups)
    lines = [
        "digraph rocekit {",
        f"  graph [layout={engine}, splines=true, outputorder=edgesfirst];",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica];',
        "  edge [fontname=Helvetica, fontsize=10, arrowsize=0.6];",
    ]
    qps, ends = topology.qps_of, _ends(topology) if every else {}
    for host in topology.hosts:
        if every:
            lines.append(f"  subgraph {_quoted('cluster ' + host)} {{ label={_quoted(host)};")
            for number in ends[host]:
                lines.append(f"    {_node(host, number)} [label={_quoted(qpn(number))}];")
            lines.append("  }")
        else:
            label = f"{host}\n{plural(len(qps[host]), 'QP')}"
            place = f', pos="{places[host]}!"' if places else ""
            lines.append(f"  {_quoted(host)} [label={_quoted(label)}{place}];")
    most = max((n for link in topology.links for n in link.bytes), default=0) or 1
    for link in topology.links:
        if every:
            for q in link.qps:
                a, b = _node(link.a, q.a_qpn), _node(link.b, q.b_qpn)
                lines += _edges(a, b, q.bytes, q.packets, most)
        else:
            lines += _edges(_quoted(link.a), _quoted(link.b), link.bytes, link.packets, most)
    return "\n".join([*lines, "}"])


def _places(groups: Iterable[HostCluster]) -> dict[str, str]:
    """The positions of hosts in inches: each group on a circle, a star's hub in the middle."""
    places: dict[str, str] = {}
    left = 0.0
    for group in groups:
        rim = group.hosts[1:] if group.shape == STAR else group.hosts
        radius = max(_APART / 2, len(rim) * _APART / (2 * math.pi)) if len(group.hosts) > 1 else 0.0
        if group.shape == STAR:
            places[group.hosts[0]] = f"{left + radius:.2f},0"
        for i, host in enumerate(rim):
            angle = math.pi / 2 - 2 * math.pi * i / len(rim)
            places[host] = f"{left + radius * (1 + math.cos(angle)):.2f},{radius * math.sin(angle):.2f}"
        left += 2 * radius + _APART
    return places


def _edges(a: str, b: str, carried: tuple[int, int], packets: tuple[int, int], most: int) -> list[str]:
    ways = zip(((a, b), (b, a)), carried, packets, strict=True)
    return [
        f"  {src} -> {dst} [label={_quoted(short_size(n) if n else '')}, penwidth={1 + 3 * n / most:.2f}];"
        for (src, dst), n, seen in ways
        if seen
    ]


def _ends(topology: Topology) -> dict[str, list[int | None]]:
    """The QPNs at each host, the unknown one first."""
    found: dict[str, set[int | None]] = {host: set() for host in topology.hosts}
    for link in topology.links:
        for q in link.qps:
            found[link.a].add(q.a_qpn)
            found[link.b].add(q.b_qpn)
    return {host: sorted(them, key=lambda n: -1 if n is None else n) for host, them in found.items()}


def _node(host: str, number: int | None) -> str:
    return _quoted(f"{host} {qpn(number)}")


def _quoted(words: str) -> str:
    escaped = words.replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
