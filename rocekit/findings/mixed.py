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

#: No requester goes so far back or ahead: its packets that are not acknowledged yet are fewer.
_FAR: Final = 1 << 16
_QPS: Final = 2


def has_two_requesters(evidence: Evidence, connection: Connection, side: int) -> bool:
    """Whether a side's requests probably are of two QPs: several source ports, and PSNs far apart in turn.

    One leap is a QP that begins anew; where the PSNs come back after one, the first QP still sends.
    """
    view = None if evidence.observer is None else evidence.observer.flow(connection, side)
    if view is None or len(view.sports) < _QPS:
        return False
    left = before = None  # where the PSNs were before they leaped, and just before
    for transfer in evidence.transfers_of.get((connection.id, side), ()):
        if before is not None and _are_far(before.last_psn, transfer.first_psn):
            if left is not None and not _are_far(left, transfer.first_psn):
                return True
            left = before.last_psn
        before = transfer
    return False


def _are_far(psn: int, other: int) -> bool:
    return abs(psn - other) > _FAR
