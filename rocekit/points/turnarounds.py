"""Turnarounds: the time from a packet to the packet that a host sends because of it.

The capture point is inferred from them. The first packets of each capture are kept as columns, assigned to
connections, and matched: a request with its ACK, a NAK with its go-back, an ACK with the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.files.frames import LINKTYPE_LINUX_SLL, LINKTYPE_LINUX_SLL2
from rocekit.packets.flow_numbers import FlowNumbers
from rocekit.track.connections import END_COLUMNS, QPN_A, QPN_B, A, B, ends_of
from rocekit.wire.psn import MASK
from rocekit.wire.sorting import first_of_each, stable_order

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch
    from rocekit.packets import Packets
    from rocekit.packets.time_order import TimeOrder
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]

#: Kinds of turnaround, the most certain first.
ANSWER, RESPONSE, GO_BACK, PROGRAM, REACTION = "answer", "response", "go_back", "program", "reaction"
KINDS: Final = (ANSWER, RESPONSE, GO_BACK, PROGRAM, REACTION)
#: How many of a kind it takes before the shortest counts.
_LEAST: Final = {ANSWER: 4, RESPONSE: 4, GO_BACK: 3, PROGRAM: 4, REACTION: 16}
#: Fewer than these of all kinds together say nothing.
FEWEST: Final = min(_LEAST.values())

#: Packets of each capture that are kept.
SAMPLE: Final = 1 << 16
#: A turnaround is steady if its median is at most this many times the shortest: programs vary more.
_STEADY: Final = 1.25

_OUTGOING: Final = 4  # of LINKTYPE_LINUX_SLL's and SLL2's packet type
_TYPE_AT: Final = {LINKTYPE_LINUX_SLL: 1, LINKTYPE_LINUX_SLL2: 10}

_NONE, _REQUEST, _ANSWERED, _RESPONDED, _NAKED = range(5)


def _roles() -> Ints:
    roles = np.full(257, _NONE, np.int64)
    for value, opcode in wire.OPCODES.items():
        if opcode.transport == "RC":
            roles[value] = _RESPONDED if opcode.response else _REQUEST
            if opcode.operation == "ACK":
                roles[value] = _ANSWERED
    return roles


_ROLES: Final = _roles()
_SYNDROME_KINDS: Final = np.array([wire.syndrome_kind(s) for s in range(256)])
_IS_SEQUENCE_NAK: Final = np.array(
    [
        wire.syndrome_kind(s) == wire.NAK and wire.syndrome_value(s) == wire.NAK_SEQUENCE_ERROR
        for s in range(256)
    ]
)
_ACK: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].operation == "ACK" for v in range(257)])
_COLUMNS: Final = ("time_ns", "flow", "src", "dst", "dest_qpn", "opcode", "psn", "syndrome", "hop_limit")


@dataclass(slots=True, eq=False, repr=False)
class _Sample:
    """The first packets of a capture, as columns."""

    parts: list[dict[str, Ints]] = field(default_factory=list)
    count: int = 0


class Sampler:
    """Keeps the first packets of each capture.

    Attributes:
        local: addresses of the capturing host, where they are known.
        orders: how captures whose times run back are put in order.
    """

    def __init__(self, local: Iterable[str] = ()) -> None:
        self.local = frozenset(local)
        self.addresses: list[str] = []
        self.orders: dict[int, TimeOrder] = {}
        self._numbered: list[str] = []
        self._numbers: dict[str, int] = {}
        self._samples: dict[int, _Sample] = {}

    @property
    def files(self) -> list[int]:
        return sorted(self._samples)

    def numbers(self) -> dict[str, int]:
        """The numbers of the addresses."""
        if self._numbered is not self.addresses or len(self._numbers) != len(self.addresses):
            self._numbered = self.addresses
            self._numbers = {name: number for number, name in enumerate(self.addresses)}
        return self._numbers

    def close(self) -> None:
        """Take no more packets: from now on the numbers of addresses are others."""
        for sample in self._samples.values():
            sample.count = SAMPLE

    def feed(self, batch: FrameBatch, packets: Packets) -> None:
        """Take a batch of frames and the packets in it."""
        sample = self._samples.setdefault(batch.file, _Sample())
        room = SAMPLE - sample.count
        n = min(room, len(packets))
        if n <= 0:
            return
        self.addresses = packets.addresses
        part: dict[str, Ints] = {name: packets[name][:n].astype(np.int64) for name in _COLUMNS}
        part["syndrome"] = packets.syndromes()[:n].astype(np.int64)
        part["outgoing"] = np.full(n, -1, np.int64)
        kind = int(batch.linktype[0])
        if kind in _TYPE_AT and (batch.linktype == kind).all():
            rows = np.searchsorted(batch.number, packets.frame[:n])
            at = batch.offset[rows] + _TYPE_AT[kind]
            part["outgoing"] = (batch.buffer[at] == _OUTGOING).astype(np.int64)
        sample.parts.append(part)
        sample.count += n

    def columns(self, file: int) -> dict[str, Ints]:
        """What was kept of a capture, in order of time; without times if they are not of one clock."""
        parts = self._samples[file].parts
        names = (*_COLUMNS, "outgoing") if parts else ()
        columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
        order = self.orders.get(file)
        if order is None or not parts:
            return columns
        from rocekit.packets.time_order import BY_TIME

        if order.by != BY_TIME:
            del columns["time_ns"]
            return columns
        rows = np.argsort(columns["time_ns"], kind="stable")
        return {name: column[rows] for name, column in columns.items()}


@dataclass(slots=True, eq=False, repr=False)
class Floor:
    """The shortest turnaround of a host.

    Attributes:
        kind: what was timed; count: how often.
        steady: whether the times hardly differ from the shortest.
    """

    kind: str
    count: int
    min_ns: int
    median_ns: int

    @property
    def steady(self) -> bool:
        return self.median_ns <= _STEADY * self.min_ns

    @classmethod
    def of(cls, kind: str, gaps: Ints) -> Floor | None:
        if len(gaps) < _LEAST[kind]:
            return None
        ordered = np.sort(gaps)
        return cls(kind, len(gaps), int(ordered[0]), int(ordered[(len(ordered) - 1) // 2]))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "count": self.count, "min_ns": self.min_ns, "median_ns": self.median_ns}


class Turns(NamedTuple):
    """Turnarounds as columns: connection, side, kind (an index of ``KINDS``), time.

    ``period``: the time from the request before to the request that counts as a reaction.
    """

    pair: Ints
    side: Ints
    kind: Ints
    gap: Ints
    period: Ints

    def where(self, mask: NDArray[np.bool_] | Ints | slice) -> Turns:
        return Turns(*(getattr(self, name)[mask] for name in self._fields))


NO_TURNS: Final = Turns(*[np.empty(0, np.int64)] * 5)


def turnarounds(columns: Mapping[str, Ints], pair: Ints, side: Ints) -> Turns:
    """All turnarounds in a sample whose packets ``place`` has assigned to connections.

    A response before its request shows that the connection's times are not of one clock: it has none.
    """
    if not len(pair) or "time_ns" not in columns:
        return NO_TURNS
    role = _ROLES[columns["opcode"]]
    acks = _ACK[columns["opcode"]]
    role[acks & (_SYNDROME_KINDS[columns["syndrome"]] != wire.ACK)] = _NONE
    role[acks & _IS_SEQUENCE_NAK[columns["syndrome"]]] = _NAKED
    rows = np.flatnonzero((pair >= 0) & (role != _NONE))
    if not len(rows):
        return NO_TURNS
    pair, side, role = pair[rows], side[rows], role[rows]
    time, psn = columns["time_ns"][rows], columns["psn"][rows]
    parts = [*_answers(pair, side, role, time, psn), _reactions(pair, side, role, time, psn)]
    joined = [np.concatenate([getattr(p, name) for p in parts]) for name in Turns._fields]
    turns = Turns(*joined)
    backward = turns.gap < 0
    return turns.where(~np.isin(turns.pair, turns.pair[backward])) if backward.any() else turns


class Ends(NamedTuple):
    """The ends of connections as columns: the numbers of their addresses and QPNs, −1 where unknown."""

    a: Ints
    b: Ints
    qpn_a: Ints
    qpn_b: Ints

    @classmethod
    def of(cls, connections: list[Connection], addresses: dict[str, int]) -> Ends:
        """Of all connections at once: there may be as many as packets."""
        table = np.empty((len(connections), END_COLUMNS), np.int64)
        ends_of(connections, addresses, table)
        return cls(*(table[:, column].copy() for column in (A, B, QPN_A, QPN_B)))


def place(columns: Mapping[str, Ints], ends: Ends) -> tuple[Ints, Ints]:
    """The connection of each packet (its index, −1 for none) and the side that sent it."""
    if not columns:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    flow = columns["flow"]
    _, first = first_of_each(flow)
    # Ways are numbered, those of the packets first: the last connection of a way is its owner.
    ways = FlowNumbers()
    way_of_flow = ways.of(*(columns[name][first] for name in ("src", "dst", "dest_qpn")))
    src, dst = np.column_stack((ends.a, ends.b)).ravel(), np.column_stack((ends.b, ends.a)).ravel()
    qpn = np.column_stack((ends.qpn_b, ends.qpn_a)).ravel()
    known = np.flatnonzero((src >= 0) & (dst >= 0) & (qpn >= 0))
    way = ways.of(src[known], dst[known], qpn[known])
    owner = np.full(ways.count, -2, np.int64)
    owner[way] = known  # of equal ones the last is kept; each is twice the connection's index, plus the side
    owners = np.full(int(flow.max()) + 1, -2, np.int64)
    owners[flow[first]] = owner[way_of_flow]
    found = owners[flow]
    return found >> 1, found & 1


def _answers(pair: Ints, side: Ints, role: Ints, time: Ints, psn: Ints) -> list[Turns]:
    """Requests with their responses, NAKs with their go-backs: neighbours among packets with the same PSN.

    A request that was sent again is left out: its response may be to either copy (Karn).
    """
    requester = np.where(role == _REQUEST, side, 1 - side)
    key = (pair << 1 | requester) << 24 | psn
    order = np.argsort(key, kind="stable")
    key, requester, role, time = key[order], requester[order], role[order], time[order]
    same = key[1:] == key[:-1]
    sent_once = np.ones(len(key), np.bool_)
    sent_once[1:] = ~same | (role[:-1] != _REQUEST)
    pair = pair[order]

    def taken(mask: NDArray[np.bool_], kind: int, by: Ints) -> Turns:
        at = np.flatnonzero(mask)
        gap = time[at + 1] - time[at]
        return Turns(pair[at], by[at], np.full(len(at), kind), gap, np.zeros(len(at), np.int64))

    first = same & (role[:-1] == _REQUEST) & sent_once[:-1]
    went_back = same & (role[:-1] == _NAKED) & (role[1:] == _REQUEST)
    return [
        taken(first & (role[1:] == _ANSWERED), KINDS.index(ANSWER), 1 - requester),
        taken(first & (role[1:] == _RESPONDED), KINDS.index(RESPONSE), 1 - requester),
        taken(went_back, KINDS.index(GO_BACK), requester),
    ]


def _reactions(pair: Ints, side: Ints, role: Ints, time: Ints, psn: Ints) -> Turns:
    """Responses that leave nothing outstanding, with the next request of the connection."""
    order = stable_order(pair)
    pair, side, role, time, psn = (column[order] for column in (pair, side, role, time, psn))
    same = (pair[1:] == pair[:-1]) & (side[1:] != side[:-1])
    good = (role == _ANSWERED) | (role == _RESPONDED)
    waited = same & good[:-1] & (role[1:] == _REQUEST)
    # The packet before must be the request of this response, with no other request outstanding.
    at = np.flatnonzero(waited[1:] & same[:-1] & (role[:-2] == _REQUEST) & (psn[:-2] == psn[1:-1])) + 1
    at = at[psn[at + 1] == (psn[at] + 1 & MASK)]
    return Turns(
        pair[at + 1],
        side[at + 1],
        np.full(len(at), KINDS.index(REACTION)),
        time[at + 1] - time[at],
        time[at + 1] - time[at - 1],
    )


def is_paced(turns: Turns) -> bool:
    """Whether the requester sends at its own pace instead of waiting for responses."""
    if len(turns.gap) < _LEAST[REACTION]:
        return False
    period, gap = (_middle_half(times) for times in (turns.period, turns.gap))
    return period * 2 < gap


def _middle_half(times: Ints) -> int:
    """The interquartile range."""
    ordered = np.sort(times)
    return int(ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4])
