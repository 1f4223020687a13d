"""Which end of which connection sent a packet: by addresses, QPNs, and time where a QPN was used again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.wire.arrays import starts
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]
#: What a flow's packets have in common: source address, destination address, destination QPN.
Way = tuple[str, str, int]
#: The ends that used a QPN one after the other: when each began, and its number.
Lives = list[tuple[int, int]]

_ADDRESS_BITS: Final = 20
_QPN_BITS: Final = 24


class Ways:
    """The ways of the flows in batches of one decoder."""

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._keys = np.empty(0, np.int64)  # by flow number; −1 of one unseen

    def feed(self, packets: Packets) -> None:
        """Take note of the flows of a batch."""
        if not len(packets):
            return
        self._addresses, flow = packets.addresses, packets.flow
        more = int(flow.max()) + 1 - len(self._keys)
        if more > 0:
            self._keys = np.append(self._keys, np.full(more, -1))
        pair = packets.src.astype(np.int64) << _ADDRESS_BITS | packets.dst
        self._keys[flow] = pair << _QPN_BITS | packets.dest_qpn

    def names(self) -> list[Way | None]:
        """By flow number; None of one unseen."""
        names, mask = self._addresses, (1 << _ADDRESS_BITS) - 1
        return [
            None
            if key < 0
            else (names[key >> _QPN_BITS + _ADDRESS_BITS], names[key >> _QPN_BITS & mask], key & MASK)
            for key in self._keys.tolist()
        ]


def senders(
    flow: NDArray[np.integer],
    src_qpn: NDArray[np.integer],
    time_ns: Ints,
    ways: Sequence[Way | None],
    connections: Iterable[Connection],
) -> NDArray[np.int32]:
    """Of each packet ``2 × connection + side`` of its sender; −1 of packets of no connection.

    Args:
        flow, src_qpn, time_ns: a value a packet; ``src_qpn`` of datagrams, −1 of all others.
        ways: by flow number.
    """
    known: dict[tuple[Way, int], Lives] = defaultdict(list)
    for connection in connections:
        for side in (0, 1):
            here, there, to = connection.ips[side], connection.ips[1 - side], connection.qpns[1 - side]
            source = connection.qpns[side] if connection.transport == "UD" else -1
            begun = connection.first_ns
            if here is None or there is None or to is None or source is None or begun is None:
                continue
            known[(here, there, to), source].append((begun, 2 * connection.id + side))
    lives = [[] if way is None else sorted(known.get((way, -1), ())) for way in ways]
    found = np.array([own[0][1] if own else -1 for own in lives], np.int32)[flow]
    for number, own in enumerate(lives):
        if len(own) > 1:
            rows = np.flatnonzero(flow == number)
            found[rows] = _in_turn(own, time_ns[rows])
    datagrams = np.flatnonzero(src_qpn >= 0)
    if len(datagrams):
        pairs = flow[datagrams].astype(np.int64) << _QPN_BITS | src_qpn[datagrams]
        order = np.argsort(pairs, kind="stable")
        begins = starts(pairs[order])
        parts = np.split(datagrams[order], begins[1:])
        for pair, rows in zip(pairs[order[begins]].tolist(), parts, strict=True):
            way = ways[pair >> _QPN_BITS]
            own = [] if way is None else sorted(known.get((way, pair & MASK), ()))
            found[rows] = _in_turn(own, time_ns[rows]) if own else -1
    return found


def _in_turn(lives: Lives, time_ns: Ints) -> Ints:
    """Whose each time is."""
    begun = np.searchsorted([ns for ns, _ in lives], time_ns, "right") - 1
    return np.array([end for _, end in lives])[np.maximum(begun, 0)]
