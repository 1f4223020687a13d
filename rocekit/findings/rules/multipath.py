"""``multipath``: the packets of one QP leave from several UDP source ports, and so take several paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rocekit.findings.finding import INFO, MAX_LISTED, Finding, Rule
from rocekit.findings.mixed import has_two_requesters
from rocekit.wire import OPERATION
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence

#: So many ports of one QP are hardly ports that were changed one after the other.
_MANY: Final = 4
#: The ports of a QP that has one, and sends its CNPs from another.
_OF_CNPS: Final = 2

_MIXED: Final = (
    "Find out which QPs of this host send to that number: probably one whose peer ended still sends to it, "
    "and the number was given to a new QP. Their packets look like one connection here, so a message that is "
    "“unacknowledged” in it may have been acknowledged to the other QP."
)


def _look(evidence: Evidence) -> Iterator[Finding]:
    observer = evidence.observer
    if observer is None:
        return
    flows = observer.table.with_several_ports()
    if not flows:
        return
    sides = [(c, side) for c in evidence.connections for side in (0, 1)]
    names = [c.way_key(side) for c, side in sides]
    users = Counter(names)
    for (connection, side), name in zip(sides, names, strict=True):
        # Two connections of one QPN, one after the other, each have a port of their own.
        if name not in flows or users[name] > 1:
            continue
        view = observer.flow(connection, side)
        if view is None:
            continue
        if view.cnp_count and len(view.sports) == _OF_CNPS:
            continue  # a notification point need not send CNPs from the port of its QP
        mixed = has_two_requesters(evidence, connection, side)
        operations = {OPERATION[opcode] for opcode in view.opcodes}
        likely = ": multipath, probably" if len(view.sports) >= _MANY else ""
        if mixed:
            likely = ", and PSNs far apart in turn: probably two QPs that send to one number"
        yield RULE.finding(
            f"{connection.way(side)} uses {plural(len(view.sports), 'UDP source port')}{likely}",
            connection=connection,
            frames=[view.first_frame],
            evidence={
                "udp_source_ports": sorted(view.sports)[:MAX_LISTED],
                "port_count": len(view.sports),
                "packets": view.packets,
                "only_writes": operations <= {"WRITE", "ACK", "CNP"} and "WRITE" in operations,
                "or_two_requesters": int(mixed),
            },
            advice=_MIXED if mixed else RULE.what_to_do,
        )


RULE = Rule(
    "multipath",
    INFO,
    "one QP sends from several UDP source ports",
    "Switches choose a path by the UDP source port, so the packets of this QP take several paths. With "
    f"{_MANY} ports or more, it is probably multipath or packet spraying by the NIC (as in Multipath "
    "Reliable Connection, MRC). Packets may overtake each other then; see `reordering`.",
    "The UDP source ports of one direction of a connection.",
    "A port that was changed while the QP ran (mlx5dv_modify_qp_udp_sport, another path after a failure) "
    "gives two or three. A QPN that was used again is not counted, nor are two ports where CNPs may "
    "have one of them. Two QPs of one host that send to one number "
    "look like one flow; where their PSNs come in turn, the finding says so.",
    "Nothing to do if the NIC does this on purpose. Else find what changes the port: a responder that does "
    "not take packets out of order needs one path for each QP.",
    _look,
)
