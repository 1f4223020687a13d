"""How the columns of lanes are made from the packets that an analysis kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.flows.sent_by import senders
from rocekit.report.collector import (
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
from rocekit.report.lane_flags import events_by_lane, flag_packets
from rocekit.report.lanes import BAD_ICRC, CNP, Ints, Lanes, Marks
from rocekit.wire.psn import HALF, MASK
from rocekit.wire.sorting import starts

if TYPE_CHECKING:
    from rocekit.explanation.results import Results
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event

#: Bits of a PSN beside the lane's number in one sortable integer; unwrapped PSNs may be slightly negative.
_PSN_BITS: Final = 40
_BIAS: Final = 1 << 30


def build_lanes(collector: Collector, analysis: Results) -> Lanes:
    """The packets that ``collector`` kept during ``analysis``, by lane."""
    c = collector.columns()
    count = 2 * len(analysis.connections)
    if not c or not count:
        return _nothing(count)
    sender = senders(c["flow"], c["src_qpn"], c["time_ns"], collector.ways(), analysis.connections)
    kind = KIND[c["opcode"]]
    response = (kind >= ACK) & (kind <= ATOMIC_ACK)
    # A CNP asks its receiver to slow down: it is drawn with the receiver's requests.
    lane = sender ^ (response | (kind == CNP_PACKET))
    bad = c["bad"] & (analysis.evidence is not None and not analysis.evidence.icrc_ignored)
    known = sender >= 0
    marked = known & (bad | (kind == CNP_PACKET))
    marks = _marks(c, lane, kind, marked, count)
    order = _by_lane(c["time_ns"], lane, known & ~marked)
    return _columns(c, order, lane, marks, count, analysis)


def _by_lane(time_ns: Ints, lane: Ints, used: Any) -> Ints:
    """The used rows, sorted by lane and time."""
    if not used.all():
        rows = np.flatnonzero(used)
        return rows[_by_lane(time_ns[rows], lane[rows], np.True_)]
    if (time_ns[1:] < time_ns[:-1]).any():
        return np.lexsort((time_ns, lane))
    # NumPy sorts 16-bit values in linear time.
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
    # Where that side sends no requests, its data are READ responses, in the lane of the other side.
    busy = np.bincount(lane[(lane >= 0) & ~marked], minlength=count) > 0
    lanes = np.where(busy[lanes] | ~busy[lanes ^ 1], lanes, lanes ^ 1)
    kinds = np.where(kind[rows] == CNP_PACKET, CNP, BAD_ICRC).astype(np.uint8)
    order = np.lexsort((c["time_ns"][rows], lanes))
    return Marks(kinds[order], lanes[order], c["time_ns"][rows][order], c["frame"][rows][order])


#: The collected columns that are used once packets are in their lanes.
_USED: Final = ("frame", "time_ns", "opcode", "psn", "bytes", "requested", "syndrome", "ce")
#: Rows that are processed at once, so that they stay in the processor's cache.
_BLOCK: Final = 1 << 15


def _columns(
    c: dict[str, NDArray[Any]], order: Ints, lane: Ints, marks: Marks, count: int, analysis: Results
) -> Lanes:
    """The columns of all lanes, made for some lanes at a time."""
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
            judged = {number - low: events[number] for number in range(low, high) if number in events}
            sides = [
                (connection, side)
                for connection in analysis.connections[low // 2 : (high + 1) // 2]
                for side in (0, 1)
            ]
            block = _block(own, first[low : high + 1] - rows.start, sides[low % 2 :][: high - low], judged)
            for name, column in made.items():
                column[rows] = block[name]
        low = high
    return Lanes(first=first, packets=np.broadcast_to(np.int64(1), n), marks=marks, **made)


def _chosen(column: NDArray[Any], rows: Ints) -> NDArray[Any]:
    """Some rows of a column; a column with one value stays a view."""
    return column[rows] if any(column.strides) else column[: len(rows)]


def _block(
    c: dict[str, NDArray[Any]],
    first: Ints,
    sides: Sequence[tuple[Connection, int]],
    events: Mapping[int, Sequence[Event]],
) -> dict[str, NDArray[Any]]:
    """The columns of some consecutive lanes.

    Args:
        sides: the connection and the requester's side of each lane; events: those of the tracker.
    """
    n, count = len(c["opcode"]), len(sides)
    lane = np.repeat(np.arange(count), np.diff(first))
    kind = KIND[c["opcode"]]
    response = (kind >= ACK) & (kind <= ATOMIC_ACK)
    psn, mtu = _unwrap(c["psn"], lane, first, sides)
    span = np.ones(n, np.int64)
    reads = np.flatnonzero((kind == READ) & (c["requested"] > 0))
    span[reads] = np.maximum(1, -(-c["requested"][reads].astype(np.int64) // mtu[lane[reads]]))
    floor = lane << _PSN_BITS
    key = floor + psn
    key += _BIAS
    after = np.where(response, floor, key + span)
    high_before = _running_max(after, floor)
    rounds, once = _rounds(key, response, kind == ACK)
    flags = np.where(response, RESPONSE, 0).astype(np.uint8) | (c["ce"].astype(np.uint8) * CE)
    for number, judged in events.items():
        rows = slice(int(first[number]), int(first[number + 1]))
        flag_packets(flags[rows], c["frame"][rows], c["time_ns"][rows], psn[rows], judged)
    # A PSN below the highest that is seen for the first time: its first transmission is not in the capture.
    data = response & (kind != ACK)
    unseen = ~response & (key < high_before)
    if data.any():
        responded_before = _running_max(np.where(data, key, floor), floor)
        unseen = np.where(data, key < responded_before, unseen)
    unseen &= (rounds == 1) & (flags & LATE == 0)
    rounds[unseen] = 2
    rounds[flags & LATE != 0] = 1  # an original, even after its repeat
    duplicated = flags & DUPLICATE != 0
    rounds[duplicated] = np.maximum(1, rounds[duplicated] - 1)

    nak = (kind == ACK) & (c["syndrome"] >> 5 != wire.ACK)
    begin = np.repeat(_lane_starts(key, response, lane, count), np.diff(first))
    up_to = np.where(kind == ACK, key + 1 - nak, 0)
    _ack_by_responses(up_to, key, np.flatnonzero(data))
    acked = np.maximum(np.maximum.accumulate(np.maximum(up_to, floor)), begin)
    before = np.concatenate([[0], acked[:-1]])
    before[first[:-1][first[:-1] < n]] = 0
    high = np.maximum(np.maximum(high_before, after), begin)
    rtt = np.full(n, -1, np.int64)
    fresh = np.flatnonzero(response & ~nak & (acked > np.maximum(before, begin - 1)))
    requested_at = _requested_at(key, response, once, c["time_ns"])
    rtt[fresh] = _since(key[fresh], c["time_ns"][fresh], requested_at)
    new = ~response & (key >= high_before)
    reliable = np.array([connection.transport not in ("UC", "UD") for connection, _ in sides])[lane]
    weight = np.where(kind == READ, c["requested"], np.where(kind == ATOMIC, wire.ATOMIC_BYTES, c["bytes"]))
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
    """Unwrapped PSNs, as in transfers, and each lane's path MTU."""
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
        requests = connection.progress[side]
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
    """Which time each PSN is sent (1 for ACKs), and whether it is sent only once."""
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


def _ack_by_responses(up_to: Ints, key: Ints, rows: Ints) -> None:
    """Note in ``up_to`` what responses acknowledge: all before the first one that is missing.

    So each response counts from when all before it are in the capture.
    """
    order = rows[np.argsort(key[rows], kind="stable")]
    if len(order):
        seen = order[starts(key[order])]
        complete = np.maximum.accumulate(seen)
        up_to[complete] = key[seen] + 1  # where several complete at once, the last assigned is the highest


def _lane_starts(key: Ints, response: Any, lane: Ints, count: int) -> Ints:
    """The first requested PSN of each lane: nothing below it is outstanding."""
    lows = np.arange(count, dtype=np.int64) << _PSN_BITS
    requests = np.flatnonzero(~response)
    lanes = lane[requests]
    begins = starts(lanes)
    lows[lanes[begins]] = key[requests[begins]]
    return lows


def _requested_at(key: Ints, response: Any, once: Any, time_ns: Ints) -> tuple[Ints, Ints]:
    """Requests that were sent once: their sorted keys, and their times."""
    rows = np.flatnonzero(~response & once)
    keys = key[rows]
    if len(keys) and (np.diff(keys) < 0).any():
        rows = rows[np.argsort(keys, kind="stable")]
    return key[rows], time_ns[rows]


def _since(key: Ints, time_ns: Ints, requests: tuple[Ints, Ints]) -> Ints:
    keys, times = requests
    if not len(keys):
        return np.full(len(key), -1, np.int64)
    place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where((keys[place] == key) & (time_ns >= times[place]), time_ns - times[place], -1)


def _outstanding_bytes(key: Ints, span: Ints, new: Any, weight: Ints, acked: Ints) -> Ints:
    """Bytes requested so far less those of PSNs below ``acked``; of an unfinished READ, its share."""
    rows = np.flatnonzero(new)
    sums = np.concatenate([[0], np.cumsum(weight[rows])])
    requested = np.cumsum(np.where(new, weight, 0))
    if not len(rows):
        return np.zeros(len(key), np.int64)
    # ``acked`` stays the same for many packets: compute once for each such run.
    runs = starts(acked)
    up_to = acked[runs]
    below = np.searchsorted(key[rows], up_to)
    last = rows[np.maximum(below - 1, 0)]
    rest = np.where(below > 0, np.clip(key[last] + span[last] - up_to, 0, span[last]), 0)
    done = sums[below] - weight[last] * rest // span[last]
    return np.maximum(requested - np.repeat(done, np.diff(np.append(runs, len(acked)))), 0)
