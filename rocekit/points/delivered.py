"""Which packets reached their receiver though the capture there has them not: it acknowledged them.

An ACK of PSN p says that all requests up to p arrived; a NAK, that all below p did. Where the second capture
has such a response, and until then no copy of the request, the capture missed the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets.merging.merge import UNSEEN
from rocekit.wire.psn import MASK
from rocekit.wire.sorting import distinct

if TYPE_CHECKING:
    from rocekit.points.sightings import Sightings
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]

_HALF: Final = (MASK + 1) // 2
_LATE: Final = np.iinfo(np.int64).max
_WITH_SYNDROME: Final = np.array(
    [v for v, o in wire.OPCODES.items() if any(h.name == "AETH" for h in o.headers)], np.int64
)


def delivered(
    sightings: Sightings, connections: Sequence[Connection], rows: Ints, file: int
) -> NDArray[np.bool_]:
    """Whether requests that are missing in capture ``file`` were acknowledged as that capture shows it.

    Args:
        rows: the missing packets, of one source and destination.
    """
    found = np.zeros(len(rows), np.bool_)
    requests = np.flatnonzero(sightings.is_request(rows))
    if not len(requests):
        return found
    numbers, sides = sightings.sides_of(rows[requests], connections)
    for key in distinct(numbers * 2 + sides).tolist():
        if key < 0:
            continue
        connection, side = connections[key // 2], key % 2
        mine = requests[numbers * 2 + sides == key]
        found[mine] = _acknowledged(sightings, connection, side, rows[mine], file)
    return found


def _acknowledged(
    sightings: Sightings, connection: Connection, side: int, rows: Ints, file: int
) -> NDArray[np.bool_]:
    """The same for requests that ``side`` of one connection sent."""
    none = np.zeros(len(rows), np.bool_)
    if connection.transport != "RC":
        return none
    answers = sightings.sent_by(connection, 1 - side)
    answers = answers[~sightings.is_request(answers) & (sightings.seen_ns[file][answers] != UNSEEN)]
    answers = answers[np.argsort(sightings.seen_ns[file][answers], kind="stable")]
    covered = _covered(sightings, answers)
    known = covered >= 0
    answers, covered = answers[known], covered[known]
    if not len(answers):
        return none
    steps = (np.diff(covered) + _HALF & MASK) - _HALF
    highest = np.maximum.accumulate(np.r_[covered[0], covered[0] + np.cumsum(steps)])
    times = sightings.seen_ns[file][answers]
    sent = sightings.time_ns[rows]
    before = np.searchsorted(times, sent, "right") - 1
    reference = highest[np.maximum(before, 0)]
    psn = reference + ((sightings.psn[rows] - reference + _HALF & MASK) - _HALF)
    place = np.searchsorted(highest, psn)
    acknowledged = place < len(highest)
    when = np.where(acknowledged, times[np.minimum(place, len(times) - 1)], _LATE)
    proven = acknowledged & (place > before) & (when < sightings.first_arrival(rows, file))
    # Of several copies at least one arrived: the last one that was sent before the response.
    order = np.lexsort((sent, sightings.psn[rows], proven))
    order = order[proven[order] & (sent[order] < when[order])]
    found = np.zeros(len(rows), np.bool_)
    if len(order):
        psns = sightings.psn[rows[order]]
        found[order[np.append(psns[1:] != psns[:-1], True)]] = True
    return found


def _covered(sightings: Sightings, rows: Ints) -> Ints:
    """The highest PSN that each response says to have arrived; −1: it says nothing."""
    opcode, syndrome, psn = sightings.opcode[rows], sightings.syndrome[rows], sightings.psn[rows]
    has_syndrome = np.isin(opcode, _WITH_SYNDROME)
    kind = np.where(has_syndrome, syndrome >> 5 & 3, wire.ACK)
    own = psn.astype(np.int64)
    return np.where(kind == wire.ACK, own, (own - 1) & MASK)
