"""Which of several captures contain each packet, and when: where packets were lost, and one-way delays.

Capture points have an order on the way from one host to another. It follows from the delays of both
directions between two points, even if the clocks differ: their offset is in both delays, and the difference
of the two is twice the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frame_names import FRAME_BITS
from rocekit.flows.spread import Spread
from rocekit.packets.merge import UNSEEN, Merged
from rocekit.wire import PSN_BITS, QPN_BITS
from rocekit.wire.psn import MASK

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]

#: Points closer together than this are not put in an order.
_LEAST_WAY_NS: Final = 200
_IS_REQUEST: Final = np.array([v in wire.OPCODES and not wire.OPCODES[v].response for v in range(257)])


@dataclass(frozen=True, slots=True)
class Transmission:
    """A packet sent once, wherever it was seen.

    Attributes:
        time_ns: when it was first seen; frames: its frame reference in each capture that contains it.
    """

    time_ns: int
    frames: dict[int, int]


@dataclass(frozen=True, slots=True)
class OneWay:
    """The delay of packets from ``src`` to ``dst`` between one capture point and the next.

    Attributes:
        bound_ns: how far the clocks may shift all these times together; None if unknown.
    """

    src: str
    dst: str
    first: int
    second: int
    took: Spread
    bound_ns: int | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "src": self.src,
            "dst": self.dst,
            "files": [self.first, self.second],
            **self.took.to_dict(),
            "bound_ns": self.bound_ns,
        }


class Sightings:
    """What several captures contain.

    Args:
        packets: each packet once, as merged.
        names: the names of the captures.

    Attributes:
        frames: the frame number by packet and capture, 0 where the packet is not in the capture.
        seen_ns: likewise the aligned time, or ``UNSEEN``.
        alignments: of the clocks of the captures.
    """

    def __init__(self, merged: Merged, packets: Packets, names: Sequence[str]) -> None:
        self.names = [PurePath(name).name for name in names]
        self.seen_ns = merged.seen_ns
        self.frames = merged.frames
        self.alignments = merged.alignments
        self._addresses = {name: i for i, name in enumerate(packets.addresses)}
        self._names = list(packets.addresses)
        self._src, self._dst = packets.src.astype(np.int64), packets.dst.astype(np.int64)
        self._qpn, self._psn, self._opcode = packets.dest_qpn, packets.psn, packets.opcode
        self._time_ns = merged.time_ns
        self._points: dict[tuple[str, str], tuple[int, ...]] = {}

    # ------------------------------------------------------------------ single packets

    @cached_property
    def _index(self) -> tuple[Ints, Ints]:
        """Rows sorted by the PSN and receiver of their packets, and the sorted keys."""
        key = self._key(self._dst, self._qpn, self._psn)
        order = np.argsort(key, kind="stable")
        return order, key[order]

    @staticmethod
    def _key(dst: Ints | int, qpn: Ints | int, psn: Ints | int) -> Any:
        return ((dst << QPN_BITS) + qpn << PSN_BITS) + psn

    def transmissions(
        self, connection: Connection, side: int, psn: int, *, request: bool
    ) -> list[Transmission]:
        """The packets with a PSN that ``side`` sent, in order; empty if its peer is unknown."""
        src, dst, qpn = connection.ips[side], connection.ips[1 - side], connection.qpns[1 - side]
        if src is None or dst is None or qpn is None or dst not in self._addresses:
            return []
        order, keys = self._index
        key = self._key(self._addresses[dst], qpn, psn & MASK)
        rows = order[np.searchsorted(keys, key) : np.searchsorted(keys, key, side="right")]
        rows = rows[
            (self._src[rows] == self._addresses.get(src, -1)) & (_IS_REQUEST[self._opcode[rows]] == request)
        ]
        return [
            Transmission(
                int(self._time_ns[row]),
                {
                    file: file << FRAME_BITS | int(frame)
                    for file, frame in enumerate(self.frames[row].tolist())
                    if frame
                },
            )
            for row in rows.tolist()
        ]

    # ------------------------------------------------------------------ the way

    def _took(self, src: str, dst: str, first: int, second: int) -> Ints:
        """The delays from one capture point to another, ns."""
        here, there = self._addresses.get(src, -1), self._addresses.get(dst, -1)
        times = self.seen_ns[(self._src == here) & (self._dst == there)]
        both = (times[:, first] != UNSEEN) & (times[:, second] != UNSEEN)
        took: Ints = times[both, second] - times[both, first]
        return took

    def points(self, src: str, dst: str) -> tuple[int, ...]:
        """The captures on the way from ``src`` to ``dst``, in the order in which packets pass them.

        Only those whose place follows from packets of both directions.
        """
        known = self._points.get((src, dst))
        if known is None:
            known = self._points[src, dst] = self._order(src, dst)
            self._points[dst, src] = known[::-1]
        return known

    def _order(self, src: str, dst: str) -> tuple[int, ...]:
        here, there = self._addresses.get(src, -1), self._addresses.get(dst, -1)
        between = (self._src == here) & (self._dst == there) | (self._src == there) & (self._dst == here)
        counts = (self.seen_ns[between] != UNSEEN).sum(axis=0)
        if not len(counts) or not counts.max(initial=0):
            return ()
        base = int(np.argmax(counts))
        place = {base: 0.0}
        for file in range(len(self.names)):
            ahead, back = self._took(src, dst, base, file), self._took(dst, src, base, file)
            if file != base and len(ahead) and len(back):
                place[file] = (float(np.median(ahead)) - float(np.median(back))) / 2
        ordered = sorted(place, key=lambda f: place[f])
        if any(place[b] - place[a] < _LEAST_WAY_NS for a, b in pairwise(ordered)):
            return ()
        return tuple(ordered) if len(ordered) > 1 else ()

    @cached_property
    def one_way(self) -> list[OneWay]:
        """The delays between neighbouring capture points, by direction of two hosts."""
        found = []
        pairs = np.unique(self._src << 32 | self._dst).tolist()
        for pair in pairs:
            src, dst = self._names[pair >> 32], self._names[pair & 0xFFFFFFFF]
            for first, second in pairwise(self.points(src, dst)):
                took = Spread.of(self._took(src, dst, first, second).tolist())
                if took is not None:
                    found.append(OneWay(src, dst, first, second, took, self._bound(first, second)))
        return found

    def _bound(self, first: int, second: int) -> int | None:
        bounds = [self.alignments[f].bound_ns for f in (first, second)]
        return None if None in bounds else sum(b for b in bounds if b is not None)
