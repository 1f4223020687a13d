"""Which end of which connection sent a packet: by addresses, QPNs, and time if a QPN was used again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.flows.scopes import FlowKey, FlowScopes
from rocekit.packets.flow_numbers import ADDRESS_BITS
from rocekit.wire import QPN_BITS
from rocekit.wire.sorting import starts

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]
_QPN_MASK: Final = (1 << QPN_BITS) - 1
#: The ends that used a QPN one after the other: when each started, and its number.
Lives = list[tuple[int, int]]


class FlowKeys:
    """The keys of the flows in batches of one decoder."""

    def __init__(self) -> None:
        self._addresses: list[str] = []
        self._keys = np.empty(0, np.int64)  # by flow number; −1: not seen
        self._scopes = FlowScopes()

    def feed(self, packets: Packets) -> None:
        """Note the flows of a batch."""
        if not len(packets):
            return
        self._addresses, flow = packets.addresses, packets.flow
        self._scopes.feed(packets)
        more = int(flow.max()) + 1 - len(self._keys)
        if more > 0:
            self._keys = np.append(self._keys, np.full(more, -1))
        last = np.full(len(self._keys), -1)  # of each flow, the last of its packets
        last[flow] = np.arange(len(flow))
        seen = np.flatnonzero(last >= 0)
        last = last[seen]
        pair = packets.src[last].astype(np.int64) << ADDRESS_BITS | packets.dst[last]
        self._keys[seen] = pair << QPN_BITS | packets.dest_qpn[last]

    def names(self) -> list[FlowKey | None]:
        """By flow number; None: not seen."""
        names, mask = self._addresses, (1 << ADDRESS_BITS) - 1
        scopes = self._scopes.of(np.arange(len(self._keys))).tolist()
        found: list[FlowKey | None] = []
        for key, scope in zip(self._keys.tolist(), scopes, strict=True):
            if key < 0:
                found.append(None)
                continue
            pair, qpn = key >> QPN_BITS, key & _QPN_MASK
            found.append((names[pair >> ADDRESS_BITS], names[pair & mask], qpn, scope))
        return found


def senders(
    flow: NDArray[np.integer],
    src_qpn: NDArray[np.integer],
    time_ns: Ints,
    keys: Sequence[FlowKey | None],
    connections: Iterable[Connection],
) -> NDArray[np.int32]:
    """For each packet, ``2 × connection + side`` of its sender; −1 if it belongs to no connection.

    Args:
        flow, src_qpn, time_ns: a value a packet; ``src_qpn`` is −1 but for datagrams.
        keys: of the flows, by their numbers.
    """
    known: dict[tuple[FlowKey, int], Lives] = defaultdict(list)
    for connection in connections:
        for side in (0, 1):
            here, there, to, scope = connection.way_key(side)
            source = connection.qpns[side] if connection.transport == "UD" else -1
            begun = connection.first_ns
            if here is None or there is None or to is None or source is None or begun is None:
                continue
            known[(here, there, to, scope), source].append((begun, 2 * connection.id + side))
    lives = [[] if key is None else sorted(known.get((key, -1), ())) for key in keys]
    found = np.array([own[0][1] if own else -1 for own in lives], np.int32)[flow]
    for number, own in enumerate(lives):
        if len(own) > 1:
            rows = np.flatnonzero(flow == number)
            found[rows] = _in_turn(own, time_ns[rows])
    datagrams = np.flatnonzero(src_qpn >= 0)
    if len(datagrams):
        pairs = flow[datagrams].astype(np.int64) << QPN_BITS | src_qpn[datagrams]
        order = np.argsort(pairs, kind="stable")
        begins = starts(pairs[order])
        parts = np.split(datagrams[order], begins[1:])
        for pair, rows in zip(pairs[order[begins]].tolist(), parts, strict=True):
            key = keys[pair >> QPN_BITS]
            own = [] if key is None else sorted(known.get((key, pair & _QPN_MASK), ()))
            found[rows] = _in_turn(own, time_ns[rows]) if own else -1
    return found


def _in_turn(lives: Lives, time_ns: Ints) -> Ints:
    """The end that used the QPN at each time."""
    begun = np.searchsorted([ns for ns, _ in lives], time_ns, "right") - 1
    return np.array([end for _, end in lives])[np.maximum(begun, 0)]
