"""READs of a requester that counts PSNs with another path MTU than its responder sends with.

A READ takes as many PSNs as it has responses (IBA Vol. 1, 9.4.4). The responses show the responder's path
MTU, and the step from a READ request to the request behind it shows the requester's. Where they differ, the
responder expects the next request at another PSN:

* the requester's is larger: its next request lies inside the PSNs of the responses, so the responder takes
  it for one that came again. No loss makes a step too short, so this is proven.
* the requester's is smaller: its next request lies behind the responses, and the responder's NAK names the
  PSN in between. A request that was lost there looks the same, so this is only likely, where all steps are
  so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit import wire
from rocekit.track.passes import SELECTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection

#: So many steps that are too short: one alone may be of a damaged capture.
_SHORT: Final = 2
#: So many steps that are too long by just what another path MTU makes them: fewer may be losses.
_LONG: Final = 3
#: So many NAKs: a capture that has only a part of all packets has steps that are too long, and no NAKs.
_NAKS: Final = 2


class ReadMtus(NamedTuple):
    """The path MTUs of READs in bytes.

    Attributes:
        requester: what the requester counts PSNs with.
        responder: what the responses carry.
        steps: how many requests were not where the responder expects them.
        proven: whether nothing else explains them.
    """

    requester: int
    responder: int
    steps: int
    proven: bool


def read_mtus(evidence: Evidence, connection: Connection, side: int) -> ReadMtus | None:
    """The path MTUs of the READs of ``side``; None where nothing shows that they differ."""
    steps = connection.read_steps[side]
    if steps is None or not steps.seen:
        return None
    responder = _of_responses(evidence, connection, 1 - side)
    if responder is None:
        return None
    seen = {kind: n for kind, n in steps.seen.items() if kind[1] != wire.psns_of(kind[0], responder)}
    set_to = evidence.attribute(connection, side, "path_mtu")
    for requester in wire.PATH_MTU_CODES:
        if requester == responder or (set_to is not None and set_to != requester):
            continue
        fit = sum(n for kind, n in seen.items() if _fits(kind, requester))
        agree = sum(n for kind, n in steps.seen.items() if _tells(kind, requester, responder))
        if agree or fit * 2 <= sum(seen.values()):
            continue
        if requester > responder and fit >= _SHORT:
            return ReadMtus(requester, responder, fit, True)
        likely = connection.naks >= _NAKS and connection.recoveries[side] != SELECTIVE
        if requester < responder and fit >= _LONG and (likely or set_to is not None):
            return ReadMtus(requester, responder, fit, set_to is not None)
    return None


def _of_responses(evidence: Evidence, connection: Connection, side: int) -> int | None:
    """The path MTU with which ``side`` sends; None where its full packets show none, or several."""
    view = evidence.survey.flow(connection, side)
    sizes: Mapping[int, int] = {} if view is None else view.full_sizes
    size = next(iter(sizes), None)
    return size if len(sizes) == 1 and size in wire.PATH_MTU_CODES else None


def _fits(kind: tuple[int, int], mtu: int) -> bool:
    """Whether a READ of this length takes so many PSNs with a path MTU."""
    length, step = kind
    return wire.psns_of(length, mtu) == step


def _tells(kind: tuple[int, int], requester: int, responder: int) -> bool:
    """Whether a step fits the responder's path MTU, and would not fit the requester's."""
    return _fits(kind, responder) and not _fits(kind, requester)
