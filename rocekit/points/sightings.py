"""Which of several captures contain each packet, and when: where packets were lost, and one-way delays.

Capture points have an order on the way from one host to another. It follows from the delays of both
directions between two points, even if the clocks differ: their offset is in both delays, and the difference
of the two is twice the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frame_names import FRAME_BITS, FRAME_MASK, frame_reference
from rocekit.flows.spread import Spread
from rocekit.packets import ICRC_INVALID
from rocekit.packets.merging.merge import UNSEEN, Merged
from rocekit.packets.slim import PIECE
from rocekit.points.order_doubt import is_contradicted
from rocekit.points.ways import FEW_WAYS, CaptureColumns, HostWay, HostWays
from rocekit.wire import QPN_BITS
from rocekit.wire.psn import MASK
from rocekit.wire.sorting import distinct, stable_order, starts
from rocekit.wire.text_table import safe

if TYPE_CHECKING:
    from rocekit.points.seen_packets import SeenPackets
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]
Rows = NDArray[np.int32]

SidesByWay = dict[tuple[int, int, int], list[tuple["Connection", int]]]

#: What tells the order of capture points.
DELAYS, HOPS, CLOCKS, FILES = "delays", "hops", "clocks", "files"
#: Clocks that differ by less are probably one machine's, or set by one.
_ONE_CLOCK_NS: Final = 20_000_000
_NO_ROWS: Final[Rows] = np.empty(0, np.int32)
_QPN_MASK: Final = (1 << QPN_BITS) - 1
#: So near are the identifications of packets that a host sent shortly after each other (``track.recent``).
_NEAR_IDS, _ID_MASK = 1024, 0xFFFF
#: The pairs of so few hosts can be numbered with 16 bits.
_FEW_HOSTS: Final = 256
_NEVER: Final = np.iinfo(np.int64).max
_MOST_KEPT: Final = 10_000  #: of so many PSNs what was sent is kept, for it is asked for again
#: Points closer together than this are not put in an order.
_LEAST_WAY_NS: Final = 200
_IS_REQUEST: Final = np.array([v in wire.OPCODES and not wire.OPCODES[v].response for v in range(257)])


@dataclass(frozen=True, slots=True)
class Transmission:
    """A packet sent once, wherever it was seen.

    Attributes:
        time_ns: when it was first seen.
        frames: its frame reference in each capture that contains it; times_ns: its aligned time there.
        sent_ns: when it passed the first capture point on its way, by the usual delay if that one has it not.
    """

    time_ns: int
    frames: dict[int, int]
    times_ns: dict[int, int]
    sent_ns: int


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
        packets: each packet once, as merged; used up.
        names: the names of the captures.
        one_clock: whether their times are of one clock.

    Attributes:
        frames: the frame number by capture and packet, 0 where the packet is not in the capture.
        seen_ns: likewise the aligned time, or ``UNSEEN``.
        alignments: of the clocks of the captures.
        one_clock: as given: they are points of one capture.
    """

    def __init__(
        self, merged: Merged, packets: SeenPackets, names: Sequence[str], *, one_clock: bool = False
    ) -> None:
        self.one_clock = one_clock
        self.names = [safe(PurePath(name).name) for name in names]
        self.seen_ns = merged.seen_ns
        self.frames = merged.frames
        self.alignments = merged.alignments
        self.identity = merged.identity
        self.time_ns = merged.time_ns
        self._columns = CaptureColumns(merged.seen_ns, merged.frames, merged.hops)
        self._addresses = {name: i for i, name in enumerate(packets.addresses)}
        self._names = list(packets.addresses)
        self._src, self._dst = packets.column("src"), packets.column("dst")
        self.qpn, self.psn = packets.column("dest_qpn"), packets.column("psn")
        self.opcode, self.syndrome = packets.column("opcode"), packets.column("syndrome")
        self.ip_id, self.icrc_state = packets.column("ip_id"), packets.column("icrc_state")
        self._source_qpn, self._scope = packets.column("src_qpn"), packets.column("scope")
        self._sorted: dict[tuple[int, int], tuple[Rows, NDArray[np.int32]]] = {}
        self._sent: dict[tuple[str, str, int, object, int, bool], list[Transmission]] = {}
        self._points: dict[tuple[str, str], tuple[int, ...]] = {}
        self._probably: dict[tuple[str, str], tuple[int, ...]] = {}
        self._order_by: dict[tuple[str, str], str] = {}
        self._sides_of: tuple[Sequence[Connection], SidesByWay] | None = None

    def __len__(self) -> int:
        """How many packets there are, each counted once."""
        return len(self.time_ns)

    # ------------------------------------------------------------------ sets of packets

    @cached_property
    def _directions(self) -> dict[tuple[int, int], Rows]:
        """The rows of the packets from each host to each other host."""
        hosts = len(self._names)
        counts = np.zeros(hosts * hosts, np.int64) if hosts <= _FEW_HOSTS else None
        pairs = np.empty(len(self), np.uint16 if counts is not None else np.int64)
        for at, src in self._src.pieces():
            codes = src.astype(np.int64) * hosts + self._dst[at : at + len(src)]
            pairs[at : at + len(src)] = codes
            if counts is not None:
                counts += np.bincount(codes, minlength=len(counts))
        if counts is not None and np.count_nonzero(counts) <= FEW_WAYS:
            ways = np.flatnonzero(counts).tolist()
            return {divmod(way, hosts): np.flatnonzero(pairs == way).astype(np.int32) for way in ways}
        order = stable_order(pairs).astype(np.int32)
        first = starts(pairs[order])
        rows = np.split(order, first[1:]) if len(first) else []
        ends = (divmod(way, hosts) for way in pairs[order[first]].tolist())
        return dict(zip(ends, rows, strict=True))

    def directions(self) -> Iterator[tuple[str, str, Rows]]:
        """The directions of two hosts: source, destination, and the rows of the packets."""
        for (src, dst), rows in self._directions.items():
            yield self._names[src], self._names[dst], rows

    def row_of(self, frame: int) -> int:
        """The row of a frame reference; −1 for a frame without a RoCE packet."""
        file, number = frame >> FRAME_BITS, frame & FRAME_MASK
        rows = self._rows_of_frames[file] if file < len(self.names) else np.empty(0, np.int64)
        return int(rows[number]) if number < len(rows) else -1

    @cached_property
    def _rows_of_frames(self) -> list[Rows]:
        found = []
        for numbers in self.frames:
            _, last = numbers.bounds() or (0, 0)
            rows = np.full(last + 1, -1, np.int32)
            for at, piece in numbers.pieces():
                seen = np.flatnonzero(piece)
                rows[piece[seen]] = seen + at
            found.append(rows)
        return found

    def times_of(self, row: int) -> dict[int, int]:
        """The aligned time of a packet in each capture that has it."""
        return {file: int(self.seen_ns[file][row]) for file, of in enumerate(self.frames) if int(of[row])}

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """From when to when each capture ran, by its packets; (0, −1) of one without any.

        What was sent behind its first packet would have come behind it: so the time counts at which another
        capture may have seen that one before.
        """
        found = []
        for seen_ns, frames in zip(self.seen_ns, self.frames, strict=True):
            has = np.asarray(frames) != 0
            times = np.asarray(seen_ns)[has]
            first = int(np.asarray(self.time_ns)[has].min()) if len(times) else 0
            found.append((first, int(times.max())) if len(times) else (0, -1))
        return found

    def ends_of(self, row: int) -> tuple[str, str]:
        """The source and destination of a packet."""
        return self._names[self._src[row]], self._names[self._dst[row]]

    def is_request(self, rows: Ints) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = _IS_REQUEST[self.opcode[rows]]
        return found

    def sent_by(self, connection: Connection, side: int) -> Ints:
        """The packets that one side of a connection sent, in order; none if its peer is unknown."""
        src, dst, qpn = connection.ips[side], connection.ips[1 - side], connection.qpns[1 - side]
        if src is None or qpn is None or dst not in self._addresses:
            return np.empty(0, np.int64)
        rows = self._received.get((self._addresses[dst], qpn), _NO_ROWS)
        own = (self._src[rows] == self._addresses.get(src, -1)) & (
            self._scope[rows] == connection.scopes[side]
        )
        return np.asarray(rows[own], np.int64)

    def sides_of(self, rows: Ints, connections: Sequence[Connection]) -> tuple[Ints, Ints]:
        """The connection of each packet and the side that sent it; −1 where there is none."""
        known = self._sides_by_way(connections)
        numbers, sides = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        columns = (self._src, self._dst, self.qpn, self._source_qpn, self.time_ns)
        for i, (src, dst, qpn, source_qpn, time_ns) in enumerate(
            zip(*(column[rows].tolist() for column in columns), strict=True)
        ):
            found = known.get((src, dst, qpn), ())
            if len(found) > 1:
                found = [f for f in found if _may_have_sent(*f, source_qpn, time_ns)] or found
            if found:
                numbers[i], sides[i] = found[-1][0].id, found[-1][1]
        return numbers, sides

    def _sides_by_way(self, connections: Sequence[Connection]) -> SidesByWay:
        """The sides of connections by source, destination and destination QPN, made once."""
        if self._sides_of is None or self._sides_of[0] is not connections:
            known: SidesByWay = {}
            for connection in connections:
                for side in (0, 1):
                    if (qpn := connection.qpns[1 - side]) is not None:
                        ips = (connection.ips[side], connection.ips[1 - side])
                        src, dst = (self._addresses.get(ip or "", -1) for ip in ips)
                        known.setdefault((src, dst, qpn), []).append((connection, side))
            self._sides_of = connections, known
        return self._sides_of[1]

    def first_arrival(self, rows: Ints, file: int) -> Ints:
        """For each packet, when a capture first has a packet of its kind (request or not) with its PSN."""
        if not len(rows):
            return np.empty(0, np.int64)
        found = np.full(len(rows), _NEVER)
        keys = (self._dst[rows].astype(np.int64) << QPN_BITS) + self.qpn[rows]
        for key in distinct(keys).tolist():
            own = np.flatnonzero(keys == key)
            found[own] = self._first_arrival((key >> QPN_BITS, key & _QPN_MASK), rows[own], file)
        return found

    def _first_arrival(self, receiver: tuple[int, int], rows: Ints, file: int) -> Ints:
        """The same for packets to one receiver."""
        order, psns = self._by_psn(receiver)
        wanted = self.psn[rows]
        low, high = np.searchsorted(psns, wanted), np.searchsorted(psns, wanted, "right")
        count = high - low  # each packet is among those like it
        ends = np.cumsum(count)
        alike = order[np.arange(int(ends[-1])) + np.repeat(low - ends + count, count)]
        times = self.seen_ns[file][alike]
        own = np.repeat(rows, count)
        same = (self._src[alike] == self._src[own]) & (self.is_request(alike) == self.is_request(own))
        found: Ints = np.minimum.reduceat(np.where(same & (times != UNSEEN), times, _NEVER), ends - count)
        return found

    # ------------------------------------------------------------------ single packets

    @cached_property
    def _received(self) -> dict[tuple[int, int], Rows]:
        """The rows of the packets to each QP, by its host and number."""
        keys = np.empty(len(self), np.int64)
        for at, dst in self._dst.pieces():
            keys[at : at + len(dst)] = (dst.astype(np.int64) << QPN_BITS) + self.qpn[at : at + len(dst)]
        receivers = distinct(keys)
        numbers = np.empty(len(keys), np.uint16 if len(receivers) <= 1 << 16 else np.int32)
        for at in range(0, len(keys), PIECE):
            numbers[at : at + PIECE] = np.searchsorted(receivers, keys[at : at + PIECE])
        del keys
        order = stable_order(numbers).astype(np.int32)
        counts = np.bincount(numbers, minlength=len(receivers))
        rows = np.split(order, np.cumsum(counts)[:-1])
        known = [(key >> QPN_BITS, key & _QPN_MASK) for key in receivers.tolist()]
        return dict(zip(known, rows, strict=True))

    def _by_psn(self, receiver: tuple[int, int]) -> tuple[Rows, NDArray[np.int32]]:
        """The rows of the packets to a QP sorted by PSN, and their PSNs."""
        known = self._sorted.get(receiver)
        if known is None:
            rows = self._received.get(receiver, _NO_ROWS)
            psns = self.psn[rows]
            order = np.argsort(psns, kind="stable")
            known = self._sorted[receiver] = rows[order], psns[order]
        return known

    def is_overtaken(self, row: int, near: int) -> bool:
        """Whether a capture has another packet of its flow, with one of the ``near`` next PSNs, before it.

        One that was sent before, by the identifications of a sender that counts them, did not overtake it.
        Without them, one that is sent again looks the same: then the other must be right before it.
        """
        order, psns = self._by_psn((int(self._dst[row]), int(self.qpn[row])))
        psn, own_id = int(self.psn[row]), int(self.ip_id[row])
        ends = psn + np.array([1 if own_id else -near, 1 + near])
        parts = (np.searchsorted(psns, ends + turn) for turn in (-MASK - 1, 0, MASK + 1))
        others = np.concatenate([order[slice(*part)] for part in parts])
        others = others[
            (self._src[others] == self._src[row])
            & (self._scope[others] == self._scope[row])
            & (self.is_request(others) == self.is_request(np.array([row])))
            & (self.icrc_state[others] != ICRC_INVALID)
        ]
        if own_id:
            ids = np.asarray(self.ip_id[others], np.int64)
            others = others[(ids == 0) | ((own_id - ids) & _ID_MASK >= _NEAR_IDS)]
        for file, own_ns in self.times_of(row).items():
            times = np.where(self.seen_ns[file][others] < own_ns, self.seen_ns[file][others], UNSEEN)
            latest = int(self.psn[others[times.argmax()]]) if times.max(initial=UNSEEN) != UNSEEN else psn
            if 0 < (latest - psn) & MASK <= near:
                return True
        return False

    def transmissions(
        self, connection: Connection, side: int, psn: int, *, request: bool
    ) -> list[Transmission]:
        """The packets with a PSN that ``side`` sent, in the order in which it sent them.

        Empty if its peer is unknown.
        """
        src, dst, qpn = connection.ips[side], connection.ips[1 - side], connection.qpns[1 - side]
        if src is None or dst is None or qpn is None or dst not in self._addresses:
            return []
        # The stories of a few losses ask a hundred times for each packet near them.
        key = (src, dst, qpn, connection.scopes[side], psn & MASK, request)
        if key in self._sent:
            return self._sent[key]
        order, psns = self._by_psn((self._addresses[dst], qpn))
        rows = order[np.searchsorted(psns, psn & MASK) : np.searchsorted(psns, psn & MASK, side="right")]
        rows = rows[
            (self._src[rows] == self._addresses.get(src, -1))
            & (self._scope[rows] == connection.scopes[side])
            & (_IS_REQUEST[self.opcode[rows]] == request)
        ]
        found = [self._transmission(src, dst, row) for row in rows.tolist()]
        if len(self._sent) >= _MOST_KEPT:
            self._sent.clear()
        self._sent[key] = sorted(found, key=lambda t: t.sent_ns)
        return self._sent[key]

    def _transmission(self, src: str, dst: str, row: int) -> Transmission:
        times = self.times_of(row)
        frames = {file: frame_reference(file, int(self.frames[file][row])) for file in times}
        points = self.points(src, dst) or self.probable_points(src, dst)
        seen = next((p for p in points if p in times), None)
        if seen is None or seen == points[0]:
            sent_ns = min(times.values())
        else:
            sent_ns = times[seen] - self._usual(src, dst, points[0], seen)
        return Transmission(int(self.time_ns[row]), frames, times, sent_ns)

    def _usual(self, src: str, dst: str, first: int, second: int) -> int:
        """The median delay from one capture point to another, 0 if no packet is in both."""
        return int(self._way(src, dst).median(first, second) or 0)

    # ------------------------------------------------------------------ the way

    @cached_property
    def _ways(self) -> HostWays:
        return HostWays(self._columns, self._directions)

    def rows_of(self, src: str, dst: str) -> Rows:
        """The packets from one host to another."""
        ends = self._addresses.get(src, -1), self._addresses.get(dst, -1)
        return self._directions.get(ends, _NO_ROWS)

    def _way(self, src: str, dst: str) -> HostWay:
        """What the captures have of the packets from one host to another."""
        return self._ways.of(self._addresses.get(src, -1), self._addresses.get(dst, -1))

    def seen_by(self, src: str, dst: str) -> list[int]:
        """How many of the packets from one host to another each capture has."""
        return self._way(src, dst).counts

    def are_alike(self, src: str, dst: str, first: int, second: int) -> bool:
        """Whether two captures are known to have all packets from one host to another, in the same order."""
        return self._way(src, dst).alike(first, second)

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
        there, back = self._way(src, dst), self._way(dst, src)
        counts = [sum(both) for both in zip(there.counts, back.counts, strict=True)]
        if not any(counts):
            return ()
        base = counts.index(max(counts))
        place = {base: 0.0}
        for file in range(len(self.names)):
            if file == base:
                continue
            ahead, behind = there.median(base, file), back.median(base, file)
            if ahead is not None and behind is not None:
                place[file] = (ahead - behind) / 2
        ordered = sorted(place, key=lambda f: place[f])
        if any(place[b] - place[a] < _LEAST_WAY_NS for a, b in pairwise(ordered)):
            return ()
        if len(ordered) < 2 or any(
            is_contradicted(self, self.rows_of(*ends), way.counts, points)
            for ends, way, points in (((src, dst), there, ordered), ((dst, src), back, ordered[::-1]))
        ):
            return ()
        return tuple(ordered)

    def probable_points(self, src: str, dst: str) -> tuple[int, ...]:
        """The captures on the way from ``src`` to ``dst`` where delays of both directions do not tell it.

        In the order of hop limits, or else of clocks, or else of the files (``order_by``).
        """
        known = self._probably.get((src, dst))
        if known is None:
            known, by = self._probable(src, dst) or ((), None)
            if by is None:
                known, by = self._probable(dst, src) or ((), None)
                known = known if by == FILES else known[::-1]
            if by is not None:
                self._order_by[src, dst] = by
            self._probably[src, dst] = known
        return known

    def order_by(self, src: str, dst: str) -> str:
        """What tells the order of the capture points: ``delays``, ``hops``, ``clocks`` or ``files``."""
        return self._order_by.get((src, dst), DELAYS)

    def _probable(self, src: str, dst: str) -> tuple[tuple[int, ...], str] | None:
        there, back = self._way(src, dst), self._way(dst, src)
        seen = [file for file, count in enumerate(there.counts) if count]
        common = [pair for pair in combinations(seen, 2) if there.common(*pair)]
        files = sorted({file for pair in common for file in pair})
        if not files:
            return None
        hops = {f: there.hops(f) for f in files}
        if len(set(hops.values())) == len(files):
            return tuple(sorted(files, key=lambda f: -hops[f])), HOPS
        if self.one_clock and len(files) > 1:
            took = {f: 0.0 if f == files[0] else there.median(files[0], f) or 0.0 for f in files}
            return tuple(sorted(files, key=lambda f: took[f])), DELAYS
        if any(back.common(*pair) for pair in common):
            return tuple(files), FILES  # both directions: the points are at one place
        ahead = {f: self.alignments[f].offset_ns for f in files}
        if max(map(abs, ahead.values())) < _ONE_CLOCK_NS and len(set(ahead.values())) == len(files):
            return tuple(sorted(files, key=lambda f: ahead[f])), CLOCKS
        return tuple(files), FILES

    @cached_property
    def one_way(self) -> list[OneWay]:
        """The delays between neighbouring capture points, by direction of two hosts."""
        found = []
        for src, dst, rows in self.directions():
            for first, second in pairwise(self.points(src, dst)):
                took = Spread.of_column(self._columns.took(rows, first, second))
                if took is not None:
                    found.append(OneWay(src, dst, first, second, took, self._bound(first, second)))
        return found

    @cached_property
    def unaligned(self) -> frozenset[tuple[str, str]]:
        """The ways on which a packet seems to arrive before it was sent: no offset of clocks fits them."""
        return frozenset((way.src, way.dst) for way in self.one_way if way.took.min_ns < 0)

    def _bound(self, first: int, second: int) -> int | None:
        one, other = (self.alignments[f].bound_ns for f in (first, second))
        return None if one is None or other is None else one + other


def _may_have_sent(connection: Connection, side: int, source_qpn: int, time_ns: int) -> bool:
    """Whether the side of a connection may have sent a packet; ``source_qpn``: 0 where it does not say."""
    first, last = connection.first_ns, connection.last_ns
    in_time = (first is None or first <= time_ns) and (last is None or time_ns <= last)
    return in_time and source_qpn in (0, connection.qpns[side])
