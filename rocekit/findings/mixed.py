"""Two requesters of one host that send to one QP number, which look like one flow.

A request names only its destination QP (the BTH; IBA Vol. 1, 9.2), so where a host's old QP still sends to
a number that another QP of the same host now sends to as well, the packets of both are one flow. Each QP has
PSNs of its own, and mostly a UDP source port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection

#: No requester goes so far back: its packets that are not acknowledged yet are fewer.
_FAR: Final = 1 << 16
_QPS: Final = 2


def has_two_requesters(evidence: Evidence, connection: Connection, side: int) -> bool:
    """Whether a side's requests probably are of two QPs: several source ports, and PSNs far apart in turn."""
    view = None if evidence.observer is None else evidence.observer.flow(connection, side)
    if view is None or len(view.sports) < _QPS:
        return False
    far_back, far_ahead = False, False
    before = None
    for transfer in evidence.transfers_of.get((connection.id, side), ()):
        if before is not None:
            far_back = far_back or transfer.last_psn + _FAR < before.first_psn
            far_ahead = far_ahead or before.last_psn + _FAR < transfer.first_psn
        before = transfer
    return far_back and far_ahead
