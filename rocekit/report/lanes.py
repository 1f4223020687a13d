"""Packets by PSN space, as columns: what every graph over time is drawn from.

A *lane* is the requests of one side of a connection and everything that answers them: one PSN space, counted
by its requester. A connection has two, number ``2 × connection + side``. All lanes stand one behind the other
in the same columns, each in order of time, so that a million packets cost some fixed number of NumPy calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.flows.sent_by import senders
from rocekit.report.collect import (
    ACK,
    ATOMIC,
    ATOMIC_ACK,
    CE,
    CNP_PACKET,
    DUPLICATE,
    KIND,
    LATE,
    READ,
    RESPONSE,
    Collector,
)
from rocekit.report.judged import events_by_lane, flag_judged
from rocekit.wire.psn import HALF, MASK
from rocekit.wire.sorting import starts

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.connections import Connection
    from rocekit.track.transfers import Event

Ints = NDArray[np.int64]

#: Kinds of ``Marks``: packets that have no place in a PSN space.
CNP, BAD_ICRC = 0, 1
#: Room for PSNs beside a lane's number in one sortable integer; unwrapped PSNs may lie a little below zero.
_PSN_BITS: Final = 40
_BIAS: Final = 1 << 30


@dataclass(frozen=True)
class Marks:
    """Packets without a place in a PSN space, by time: CNPs and packets with wrong ICRCs."""

    kind: NDArray[np.uint8]
    lane: Ints
    time_ns: Ints
    frame: Ints


@dataclass(frozen=True)
class Lanes:
    """The packets of all lanes, one behind the other.

    Attributes:
        first: where each lane begins; one more than there are lanes.
        time_ns: since the epoch; frame: frame references; psn: unwrapped as in transfers.
        span: PSNs the packet takes, a READ request as many as it has responses.
        opcode, bytes (payload), syndrome (of acknowledgements, else 0).
        packets: how many packets the row stands for: more than one only where ``thinned``.
        round: 1 for what is sent the first time, 2 for its first repeat …; of responses likewise.
        flags: ``RESPONSE``, ``CE``, ``DUPLICATE`` (doubled by the network), ``LATE`` (overtaken by others),
            ``LOST`` (a NAK tells that it did not arrive).
        acked: the PSN below which everything is acknowledged, after this packet.
        outstanding, outstanding_bytes: PSNs and bytes asked and not yet answered, after this packet; 0 where
            nothing is answered (UC, UD).
        rtt_ns: of a response, the time since its request, where that was sent once; else −1.
    """

    first: Ints
    time_ns: Ints
    frame: Ints
    psn: Ints
    span: Ints
    opcode: NDArray[np.uint8]
    bytes: Ints
    syndrome: NDArray[np.uint8]
    packets: Ints
    round: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    acked: Ints
    outstanding: Ints
    outstanding_bytes: Ints
    rtt_ns: Ints
    marks: Marks

    def __len__(self) -> int:
        return len(self.time_ns)

    def rows(self, lane: int) -> slice:
        """Where the rows of a lane stand."""
        return slice(int(self.first[lane]), int(self.first[lane + 1]))

    def lane(self, number: int) -> Lanes:
        """One lane alone."""
        rows, marks = self.rows(number), self.marks.lane == number
        columns = {
            f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in ("first", "marks")
        }
        return Lanes(
            first=np.array([0, rows.stop - rows.start]),
            marks=Marks(*(getattr(self.marks, f.name)[marks] for f in fields(Marks))),
            **columns,
        )

    def thinned(self, limit: int) -> Lanes:
        """At most about ``limit`` rows: runs of plain packets of one kind share a row, the first's (of
        acknowledgements the last's). What was repeated, refused, marked or doubled stays alone.
        """
        n = len(self)
        if n <= limit:
            return self
        ack = KIND[self.opcode] == ACK
        kind = np.where(ack, 2, self.flags & RESPONSE)
        alone = (self.flags & ~np.uint8(RESPONSE) != 0) | (self.round != 1) | (self.syndrome >> 5 != wire.ACK)
        alone |= (self.span != 1) | (KIND[self.opcode] == ATOMIC)
        lane = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        order = np.lexsort((kind, lane))
        after, before = order[1:], order[:-1]
        goes_on = np.zeros(n, np.bool_)
        goes_on[1:] = ~alone[after] & ~alone[before] & (kind[after] == kind[before])
        goes_on[1:] &= (lane[after] == lane[before]) & (
            ack[after] | (self.psn[after] == self.psn[before] + 1)
        )
        begins = np.flatnonzero(~goes_on)
        place = np.arange(n) - np.repeat(begins, np.diff(np.append(begins, n)))
        share = max(2, -(-n // limit))
        heads = np.flatnonzero(place % share == 0)
        while len(heads) > max(limit, len(begins)):
            share *= 2
            heads = np.flatnonzero(place % share == 0)
        first, last = order[heads], order[np.append(heads[1:], n) - 1]
        row = np.where(ack[first], last, first)
        back = np.lexsort((self.time_ns[row], lane[row]))
        row, span = (
            row[back],
            np.where(ack[first], 1, self.psn[last] + self.span[last] - self.psn[first])[back],
        )

        def sums(values: Ints) -> Ints:
            return np.add.reduceat(values[order], heads)[back]

        def peaks(values: Ints) -> Ints:
            return np.maximum.reduceat(values[order], heads)[back]

        same = ("time_ns", "frame", "psn", "opcode", "syndrome", "round", "flags", "acked")
        return replace(
            self,
            **{name: getattr(self, name)[row] for name in same},
            first=np.searchsorted(lane[row], np.arange(len(self.first))),
            span=span,
            bytes=sums(self.bytes),
            packets=sums(self.packets),
            outstanding=peaks(self.outstanding),
            outstanding_bytes=peaks(self.outstanding_bytes),
            rtt_ns=peaks(self.rtt_ns),
        )


def build_lanes(collector: Collector, analysis: Results) -> Lanes:
    """The packets that ``collector`` kept during ``analysis``, by lane."""
    c = collector.columns()
    count = 2 * len(analysis.connections)
    if not c or not count:
        return _nothing(count)
    sender = senders(c["flow"], c["src_qpn"], c["time_ns"], collector.ways(), analysis.connections)
    kind = KIND[c["opcode"]]
    response = (kind >= ACK) & (kind <= ATOMIC_ACK)
    # A CNP tells the side that it reaches to slow down: it stands with that side's requests.
    lane = sender ^ (response | (kind == CNP_PACKET))
    bad = c["bad"] & (analysis.evidence is not None and not analysis.evidence.icrc_ignored)
    known = sender >= 0
    marked = known & (bad | (kind == CNP_PACKET))
    marks = _marks(c, lane, kind, marked, count)
    order = _by_lane(c["time_ns"], lane, known & ~marked)
    return _columns(c, order, lane, marks, count, analysis)


def _by_lane(time_ns: Ints, lane: Ints, used: Any) -> Ints:
    """The used rows by lane, and in each by time."""
    if not used.all():
        rows = np.flatnonzero(used)
        return rows[_by_lane(time_ns[rows], lane[rows], np.True_)]
    if (time_ns[1:] < time_ns[:-1]).any():
        return np.lexsort((time_ns, lane))
    # Sixteen bits are sorted in a time that grows with the rows only.
    narrow = lane.astype(np.uint16) if lane.max(initial=0) < 1 << 16 else lane
    return np.argsort(narrow, kind="stable")


def _nothing(count: int) -> Lanes:
    none, few = np.empty(0, np.int64), np.empty(0, np.uint8)
    columns: dict[str, Any] = dict.fromkeys((f.name for f in fields(Lanes)), none)
    columns |= dict.fromkeys(("opcode", "syndrome", "round", "flags"), few)
    columns |= {"first": np.zeros(count + 1, np.int64), "marks": Marks(few, none, none, none)}
    return Lanes(**columns)


def _marks(c: dict[str, NDArray[Any]], lane: Ints, kind: NDArray[np.uint8], marked: Any, count: int) -> Marks:
    rows = np.flatnonzero(marked)
    lanes = lane[rows]
    # Where that side asks nothing, its data are READ responses: they stand with the other side's requests.
    busy = np.bincount(lane[(lane >= 0) & ~marked], minlength=count) > 0
    lanes = np.where(busy[lanes] | ~busy[lanes ^ 1], lanes, lanes ^ 1)
    kinds = np.where(kind[rows] == CNP_PACKET, CNP, BAD_ICRC).astype(np.uint8)
    order = np.lexsort((c["time_ns"][rows], lanes))
    return Marks(kinds[order], lanes[order], c["time_ns"][rows][order], c["frame"][rows][order])


#: What is used of what was collected, once the packets are in their lanes.
_USED: Final = ("frame", "time_ns", "opcode", "psn", "bytes", "asked", "syndrome", "ce")
#: Rows that are worked on at once: what is made of them stays in the processor's cache.
_BLOCK: Final = 1 << 15


def _columns(
    c: dict[str, NDArray[Any]], order: Ints, lane: Ints, marks: Marks, count: int, analysis: Results
) -> Lanes:
    """All lanes' columns, made for some lanes at a time."""
    n = len(order)
    first = np.searchsorted(lane[order], np.arange(count + 1))
    made = {name: np.empty(n, kind) for name, kind in _KINDS_OF.items()}
    events = events_by_lane(analysis)
    low = 0
    while low < count:
        high = max(low + 1, int(np.searchsorted(first, first[low] + _BLOCK, "right")) - 1)
        rows = slice(int(first[low]), int(first[high]))
        if rows.start < rows.stop:
            own = {name: _chosen(c[name], order[rows]) for name in _USED}
            told = {number - low: events[number] for number in range(low, high) if number in events}
            sides = [
                (connection, side)
                for connection in analysis.connections[low // 2 : (high + 1) // 2]
                for side in (0, 1)
            ]
            block = _block(own, first[low : high + 1] - rows.start, sides[low % 2 :][: high - low], told)
            for name, column in made.items():
                column[rows] = block[name]
        low = high
    return Lanes(first=first, packets=np.broadcast_to(np.int64(1), n), marks=marks, **made)


def _chosen(column: NDArray[Any], rows: Ints) -> NDArray[Any]:
    """Some rows of a column; one that is the same for all packets stays a view."""
    return column[rows] if any(column.strides) else column[: len(rows)]


def _block(
    c: dict[str, NDArray[Any]],
    first: Ints,
    sides: Sequence[tuple[Connection, int]],
    events: Mapping[int, Sequence[Event]],
) -> dict[str, NDArray[Any]]:
    """The columns of some lanes that stand one behind the other.

    Args:
        sides: each lane's connection, and which side of it asks; events: what the tracker judged.
    """
    n, count = len(c["opcode"]), len(sides)
    lane = np.repeat(np.arange(count), np.diff(first))
    kind = KIND[c["opcode"]]
    response = (kind >= ACK) & (kind <= ATOMIC_ACK)
    psn, mtu = _unwrap(c["psn"], lane, first, sides)
    span = np.ones(n, np.int64)
    reads = np.flatnonzero((kind == READ) & (c["asked"] > 0))
    span[reads] = np.maximum(1, -(-c["asked"][reads].astype(np.int64) // mtu[lane[reads]]))
    floor = lane << _PSN_BITS
    key = floor + psn
    key += _BIAS
    after = np.where(response, floor, key + span)
    high_before = _running_max(after, floor)
    rounds, once = _rounds(key, response, kind == ACK)
    flags = np.where(response, RESPONSE, 0).astype(np.uint8) | (c["ce"].astype(np.uint8) * CE)
    for number, judged in events.items():
        rows = slice(int(first[number]), int(first[number + 1]))
        flag_judged(flags[rows], c["frame"][rows], c["time_ns"][rows], psn[rows], judged)
    # What comes below the highest PSN and was never seen: its first transmission is what the capture lacks.
    data = response & (kind != ACK)
    unseen = ~response & (key < high_before)
    if data.any():
        answered_before = _running_max(np.where(data, key, floor), floor)
        unseen = np.where(data, key < answered_before, unseen)
    unseen &= (rounds == 1) & (flags & LATE == 0)
    rounds[unseen] = 2
    rounds[flags & LATE != 0] = 1  # an original, even behind its repeat
    doubled = flags & DUPLICATE != 0
    rounds[doubled] = np.maximum(1, rounds[doubled] - 1)

    refused = (kind == ACK) & (c["syndrome"] >> 5 != wire.ACK)
    begin = np.repeat(_lane_starts(key, response, lane, count), np.diff(first))
    told = np.where(kind == ACK, key + 1 - refused, 0)
    _tell_in_order(told, key, np.flatnonzero(data))
    acked = np.maximum(np.maximum.accumulate(np.maximum(told, floor)), begin)
    before = np.concatenate([[0], acked[:-1]])
    before[first[:-1][first[:-1] < n]] = 0
    high = np.maximum(np.maximum(high_before, after), begin)
    rtt = np.full(n, -1, np.int64)
    fresh = np.flatnonzero(response & ~refused & (acked > np.maximum(before, begin - 1)))
    asked_at = _asked_at(key, response, once, c["time_ns"])
    rtt[fresh] = _since(key[fresh], c["time_ns"][fresh], asked_at)
    new = ~response & (key >= high_before)
    reliable = np.array([connection.transport not in ("UC", "UD") for connection, _ in sides])[lane]
    weight = np.where(kind == READ, c["asked"], np.where(kind == ATOMIC, wire.ATOMIC_BYTES, c["bytes"]))
    return {
        "time_ns": c["time_ns"],
        "frame": c["frame"],
        "psn": psn,
        "span": span,
        "opcode": c["opcode"],
        "bytes": c["bytes"],
        "syndrome": np.where(response, c["syndrome"], 0),
        "round": np.minimum(rounds, 255),
        "flags": flags,
        "acked": acked - floor - _BIAS,
        "outstanding": np.maximum(high - acked, 0) * reliable,
        "outstanding_bytes": _outstanding_bytes(key, span, new, weight.astype(np.int64), acked) * reliable,
        "rtt_ns": rtt,
    }


#: The columns that ``_block`` makes.
_KINDS_OF: Final[dict[str, Any]] = {
    **dict.fromkeys(("time_ns", "frame", "psn", "acked", "outstanding_bytes", "rtt_ns"), np.int64),
    **dict.fromkeys(("span", "bytes", "outstanding"), np.int32),
    **dict.fromkeys(("opcode", "syndrome", "round", "flags"), np.uint8),
}


def _unwrap(
    raw: NDArray[Any], lane: Ints, first: Ints, sides: Sequence[tuple[Connection, int]]
) -> tuple[Ints, Ints]:
    """PSNs that keep growing, as the transfers count them, and each lane's path MTU."""
    steps = np.zeros(len(raw), np.int64)
    wide = raw.astype(np.int64)
    steps[1:] = ((wide[1:] - wide[:-1] + HALF) & MASK) - HALF
    psn = np.cumsum(steps)
    shift = np.zeros(len(sides), np.int64)
    mtu = np.full(len(sides), wire.PATH_MTU_BYTES[3], np.int64)
    for number, (connection, side) in enumerate(sides):
        start = int(first[number])
        if connection.path_mtu:
            mtu[number] = connection.path_mtu
        if start == first[number + 1]:
            continue
        requests = connection.requests[side]
        value = int(raw[start])
        if requests is not None and requests.started:
            value = requests.begin + ((value - requests.begin + HALF) & MASK) - HALF
        shift[number] = value - int(psn[start])
    return psn + shift[lane], mtu


def _running_max(values: Ints, floor: Ints) -> Ints:
    """The largest value before each row of its lane; ``floor`` where there is none."""
    before = np.empty_like(values)
    before[:1] = 0
    np.maximum.accumulate(values[:-1], out=before[1:])
    return np.maximum(before, floor)


def _rounds(key: Ints, response: Any, bare_ack: Any) -> tuple[Ints, Any]:
    """The how-manieth time each PSN comes (1 for acknowledgements), and whether it comes only once."""
    rounds = np.ones(len(key), np.int64)
    once = np.ones(len(key), np.bool_)
    for rows in (np.flatnonzero(~response), np.flatnonzero(response & ~bare_ack)):
        keys = key[rows]
        if not len(rows) or (np.diff(keys) > 0).all():
            continue
        order = np.argsort(keys, kind="stable")
        begins = starts(keys[order])
        sizes = np.diff(np.append(begins, len(rows)))
        rounds[rows[order]] = np.arange(len(rows)) - np.repeat(begins, sizes) + 1
        once[rows[order]] = np.repeat(sizes == 1, sizes)
    return rounds, once


def _tell_in_order(told: Ints, key: Ints, rows: Ints) -> None:
    """Note in ``told`` what responses acknowledge: a READ's data count up to the first one that is missing,
    so each counts from when all before it have been seen.
    """
    order = rows[np.argsort(key[rows], kind="stable")]
    if len(order):
        seen = order[starts(key[order])]
        complete = np.maximum.accumulate(seen)
        told[complete] = key[seen] + 1  # where several complete at once, the last assigned is the highest


def _lane_starts(key: Ints, response: Any, lane: Ints, count: int) -> Ints:
    """The lowest PSN that each lane asks with, at its beginning: nothing below it is outstanding."""
    lows = np.arange(count, dtype=np.int64) << _PSN_BITS
    asked = np.flatnonzero(~response)
    lanes = lane[asked]
    begins = starts(lanes)
    lows[lanes[begins]] = key[asked[begins]]
    return lows


def _asked_at(key: Ints, response: Any, once: Any, time_ns: Ints) -> tuple[Ints, Ints]:
    """Requests that were sent once: their keys, sorted, and when."""
    rows = np.flatnonzero(~response & once)
    keys = key[rows]
    if len(keys) and (np.diff(keys) < 0).any():
        rows = rows[np.argsort(keys, kind="stable")]
    return key[rows], time_ns[rows]


def _since(key: Ints, time_ns: Ints, asked: tuple[Ints, Ints]) -> Ints:
    keys, times = asked
    if not len(keys):
        return np.full(len(key), -1, np.int64)
    place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where((keys[place] == key) & (time_ns >= times[place]), time_ns - times[place], -1)


def _outstanding_bytes(key: Ints, span: Ints, new: Any, weight: Ints, acked: Ints) -> Ints:
    """Bytes asked so far less those of PSNs below ``acked``; of a READ under way, its share."""
    rows = np.flatnonzero(new)
    sums = np.concatenate([[0], np.cumsum(weight[rows])])
    asked = np.cumsum(np.where(new, weight, 0))
    if not len(rows):
        return np.zeros(len(key), np.int64)
    # What is acknowledged stays the same for many packets: once for each such run.
    runs = starts(acked)
    told = acked[runs]
    below = np.searchsorted(key[rows], told)
    last = rows[np.maximum(below - 1, 0)]
    rest = np.where(below > 0, np.clip(key[last] + span[last] - told, 0, span[last]), 0)
    done = sums[below] - weight[last] * rest // span[last]
    return np.maximum(asked - np.repeat(done, np.diff(np.append(runs, len(acked)))), 0)
