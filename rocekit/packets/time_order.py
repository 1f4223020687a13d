"""How the packets of a capture are put in order where their times run back.

Three things make times run back, and they are told apart:

- Several queues or files were written in turn, in blocks: the times are right, and decide.
- Several ports have clocks of their own: the order in the file is right. A constant for each sender then
  makes all times run forward, and is added.
- The clock was set back: within a flow the times run back while the PSNs go on. The order in the file is
  kept.
- A host's processors took packets in another order than that in which they had arrived and been stamped: NAKs
  name the PSNs that were overtaken. The order in the file is kept, because the responder saw it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit import wire
from rocekit.packets import Packets
from rocekit.packets.run_back import NEVER_NS, runs_back
from rocekit.wire.psn import HALF, MASK
from rocekit.wire.sorting import stable_order

Ints = NDArray[np.int64]

BY_TIME, BY_CLOCKS, BY_FILE = "time", "clocks", "file"

#: Packets further behind are not moved: no queue holds a packet for so long.
FURTHEST_NS: Final = 60_000_000_000
#: A packet was stamped late if one of so many that follow it is stamped before it, by no more than this;
#: early likewise. Farther off, the clock was set, or the packets were queued.
_STAMPED_AMONG: Final = 64
_STAMPED_OFF_NS: Final = 1_000_000
#: More senders than this are not examined for clocks of their own.
_MOST_SENDERS: Final = 64
#: How often a sender's packet must be behind that of another one to make a clock of its own more probable.
_LEAST_TURNS: Final = 4
#: The part of overtaken packets that NAKs name if the responder saw them overtaken; it sends one NAK a gap.
_REFUSED: Final = 0.6
#: Of more packets overtaken in the file its order says nothing: several queues wrote it in turn.
_MOST_OVERTAKEN: Final = 4096
_SENDER_BITS: Final = 20
_SAMPLE: Final = 1 << 16
_KEPT: Final = _SAMPLE // 2

_IS_RESPONSE: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].response for v in range(257)])
_HAS_ORDER: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].transport != "UD" for v in range(257)])
_IS_ACK: Final = np.array([v in wire.OPCODES and wire.OPCODES[v].operation == "ACK" for v in range(257)])
_SEQUENCE_NAK: Final = wire.make_syndrome(wire.NAK, wire.NAK_SEQUENCE_ERROR)
_IS_SEQUENCE_NAK: Final = np.arange(256) == _SEQUENCE_NAK


def _keys(packets: Packets, rows: Ints) -> list[tuple[int, int, int]]:
    columns = (column[rows].tolist() for column in (packets.src, packets.dst, packets.psn))
    return list(zip(*columns, strict=True))


def flows_run_back(packets: Packets) -> bool:
    """Whether the times of a flow run back."""
    order = np.argsort(packets.flow, kind="stable")
    flow, time = packets.flow[order], packets.time_ns[order]
    return bool(((flow[1:] == flow[:-1]) & (time[1:] < time[:-1])).any())


@dataclass(frozen=True, slots=True)
class TimeOrder:
    """How a capture's packets are put in order.

    Attributes:
        packets: how many are behind a later one in the file; furthest_ns: by how much at most.
        by: ``BY_TIME``, ``BY_CLOCKS`` or ``BY_FILE``.
        shifts_ns: with ``BY_CLOCKS``, by sender, what is added to its times.
        refused: (sender, receiver, PSN) of requests that a later one overtook in the file, and that a NAK
            behind it names, if that is so of most that were overtaken: responders saw the file's order.
        overtaken: the same of all that a later one overtook in the file, unless they are too many for that.
    """

    packets: int
    furthest_ns: int
    by: str = BY_TIME
    shifts_ns: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    refused: frozenset[tuple[str, str, int]] = frozenset()
    overtaken: frozenset[tuple[str, str, int]] = frozenset()

    def shifted(self, packets: Packets) -> Packets:
        """Packets at the times of one clock."""
        if not self.shifts_ns:
            return packets
        added_ns = np.array([self.shifts_ns.get(text, 0) for text in packets.addresses], np.int64)
        return packets.at(packets.time_ns + added_ns[packets.src])

    def of(self, packets: Packets) -> Packets:
        """All packets of a capture in order."""
        return packets if self.by == BY_FILE else by_time(self.shifted(packets), ties=self.by == BY_TIME)

    def to_merge(self, packets: Packets) -> Packets:
        """All packets of a capture in order, at times that run forward, so that others sort among them."""
        packets = self.of(packets)
        if self.by != BY_FILE:
            return packets
        stamped_late = _levelled(packets.time_ns)
        stamped_early = -_levelled(-packets.time_ns[::-1])[::-1]
        changed = [np.count_nonzero(times != packets.time_ns) for times in (stamped_late, stamped_early)]
        return packets.at(_set_back(stamped_late if changed[0] <= changed[1] else stamped_early))

    def to_dict(self) -> dict[str, Any]:
        """An entry of the JSON's ``capture.time_orders``."""
        shifts = [{"ip": ip, "added_ns": ns} for ip, ns in self.shifts_ns.items()]
        return {"packets": self.packets, "furthest_ns": self.furthest_ns, "by": self.by, "shifts": shifts}


def _levelled(time_ns: Ints) -> Ints:
    """Times in the order of the file, none of them behind one that follows shortly after it."""
    level = time_ns.copy()
    for step in range(min(_STAMPED_AMONG, len(level) - 1), 0, -1):
        ahead_ns = level[:-step] - level[step:]
        late = (ahead_ns > 0) & (ahead_ns <= _STAMPED_OFF_NS)
        level[:-step][late] = level[step:][late]
    return level


def _set_back(time_ns: Ints) -> Ints:
    """Times as if the clock had stood still where it was set back, if it was, once."""
    steps = np.diff(time_ns)
    back = np.flatnonzero(steps < -_STAMPED_OFF_NS)
    if len(back) != 1 or (2 * steps > -steps[back[0]]).any():
        return time_ns
    lifted = time_ns.copy()
    lifted[back[0] + 1 :] -= steps[back[0]]
    return lifted


def by_time(packets: Packets, *, ties: bool) -> Packets:
    """Packets in order of time; with ``ties``, those of a flow at the same time in order of their PSNs.

    Else the order of the file decides between them.
    """
    rows = np.argsort(packets.time_ns, kind="stable")
    if ties:
        time = packets.time_ns[rows]
        equal = time[1:] == time[:-1]
        tied = np.flatnonzero(np.r_[False, equal] | np.r_[equal, False])
        if len(tied):
            at = rows[tied]
            run = np.cumsum(np.r_[True, ~equal])[tied]
            flow = packets.flow[at] << 1 | _IS_RESPONSE[packets.opcode[at]]
            slots = np.lexsort((tied, flow, run))
            begins = np.flatnonzero(np.r_[True, (np.diff(run[slots]) != 0) | (np.diff(flow[slots]) != 0)])
            psn = packets.psn[at][slots]
            first = np.repeat(psn[begins], np.diff(np.r_[begins, len(slots)]))
            ahead = ((psn - first + HALF) & MASK) - HALF
            ahead[~_HAS_ORDER[packets.opcode[at][slots]]] = 0
            rows[tied[slots]] = at[slots][np.lexsort((tied[slots], ahead, flow[slots], run[slots]))]
    return packets.where(rows)


#: Takes one of several orders, the most probable first, by a sample of the packets.
Choose = Callable[[Sequence[TimeOrder], Packets], TimeOrder]


class OrderSurvey:
    """Collects, batch by batch in the file's order, what says how packets are to be put in order.

    Args:
        choose: takes one of several orders by a sample of the packets.

    Attributes:
        packets: how many are behind a later one; furthest_ns: by how much at most.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._sample: list[Packets] = []
        self._room = _SAMPLE
        self._ahead: list[Packets] = []
        self.packets = self.furthest_ns = 0
        self._latest_ns = NEVER_NS
        self._back: set[int] = set()  # senders whose own times run back
        self._last_of: dict[int, int] = {}
        self._flow_ends: dict[int, tuple[int, int]] = {}
        self._before: tuple[int, int] | None = None
        # By two senders, one directly behind the other: the most by which the second is earlier, and how
        # often it is earlier.
        self._turns: dict[tuple[int, int], tuple[int, int]] = {}
        self._for_file = self._for_time = 0
        # (sender, receiver, PSN) of requests that a later one overtook in the file, and of those that a NAK
        # names: where in the file the later one stands, and the NAK.
        self._overtaken: dict[tuple[int, int, int], int] = {}
        self._refused: dict[tuple[int, int, int], int] = {}
        self._examined = 0
        self._addresses: list[str] = []

    def feed(self, packets: Packets) -> None:
        """Add a batch."""
        if not len(packets):
            return
        if not self.packets:
            if not runs_back(packets.time_ns, self._latest_ns):
                self._latest_ns = int(packets.time_ns[-1])
                self._keep(packets.detached())
                return
            self._latest_ns = NEVER_NS
            ahead, self._ahead = self._ahead, []
            for batch in ahead:
                self._examine(batch)
        self._examine(packets)

    def _keep(self, packets: Packets) -> None:
        """Keep the latest packets: what is behind them may belong before them."""
        self._ahead.append(packets.where(slice(-_KEPT, None)))
        while sum(map(len, self._ahead[1:])) >= _KEPT:
            del self._ahead[0]

    def _examine(self, packets: Packets) -> None:
        self._addresses = packets.addresses
        if self._room > 0:
            self._sample.append(packets.where(slice(0, self._room)).detached())
            self._room -= len(self._sample[-1])
        time, sender = packets.time_ns, packets.src
        high = np.maximum(np.maximum.accumulate(time), self._latest_ns)
        behind = high - time
        self.packets += int(np.count_nonzero(behind))
        self.furthest_ns = max(self.furthest_ns, int(behind.max()))
        self._latest_ns = int(high[-1])
        self._compare_senders(time, sender)
        self._compare_flows(packets)

    def _compare_senders(self, time: Ints, sender: Ints) -> None:
        order = stable_order(sender)
        own, at = sender[order], time[order]
        same = own[1:] == own[:-1]
        self._back |= set(own[1:][same & (at[1:] < at[:-1])].tolist())
        for first in [0, *(np.flatnonzero(~same) + 1).tolist()]:
            if int(at[first]) < self._last_of.get(int(own[first]), NEVER_NS):
                self._back.add(int(own[first]))
        for last in [*np.flatnonzero(~same).tolist(), len(own) - 1]:
            self._last_of[int(own[last])] = int(at[last])
        if self._before is not None:
            sender = np.concatenate([[self._before[0]], sender])
            time = np.concatenate([[self._before[1]], time])
        self._before = int(sender[-1]), int(time[-1])
        turns = np.flatnonzero(sender[1:] != sender[:-1])
        key = (sender[turns] << _SENDER_BITS) | sender[turns + 1]
        back_ns = time[turns] - time[turns + 1]
        keys, number = np.unique(key, return_inverse=True)
        most = np.full(len(keys), NEVER_NS, np.int64)
        np.maximum.at(most, number, back_ns)
        earlier = np.bincount(number[back_ns > 0], minlength=len(keys))
        for k, ns, negative in zip(keys.tolist(), most.tolist(), earlier.tolist(), strict=True):
            pair = k >> _SENDER_BITS, k & ((1 << _SENDER_BITS) - 1)
            before_ns, before = self._turns.get(pair, (NEVER_NS, 0))
            self._turns[pair] = max(before_ns, ns), before + negative

    def _compare_flows(self, packets: Packets) -> None:
        """Where times run back within a flow, count whether its PSNs go on or back."""
        rows = np.flatnonzero(_HAS_ORDER[packets.opcode] & (packets.malformed == 0))
        if not len(rows):
            return
        key = packets.flow[rows] << 1 | _IS_RESPONSE[packets.opcode[rows]]
        order = np.argsort(key, kind="stable")
        key, time, psn = key[order], packets.time_ns[rows][order], packets.psn[rows][order]
        before_ns, before = np.r_[NEVER_NS, time[:-1]], np.r_[0, psn[:-1]]
        begins = [0, *(np.flatnonzero(key[1:] != key[:-1]) + 1).tolist()]
        for i in begins:
            before_ns[i], before[i] = self._flow_ends.get(int(key[i]), (NEVER_NS, 0))
        for i in [*(np.array(begins[1:], np.int64) - 1).tolist(), len(key) - 1]:
            self._flow_ends[int(key[i])] = int(time[i]), int(psn[i])
        back = time < before_ns
        step = ((psn - before + HALF) & MASK) - HALF
        self._for_file += int((back & (step > 0)).sum())
        self._for_time += int((back & (step < 0)).sum())
        overtaken_at = np.flatnonzero(back & (step < 0) & (key & 1 == 0))
        overtaken = rows[order[overtaken_at]]
        refused = rows[_IS_ACK[packets.opcode[rows]] & _IS_SEQUENCE_NAK[packets.syndrome[rows]]]
        by = np.r_[-1, rows[order[:-1]]]
        by[begins] = -1  # what overtook them came with an earlier batch
        by = by[overtaken_at]
        for one, place in zip(_keys(packets, overtaken), by.tolist(), strict=True):
            self._overtaken[one] = self._examined + place
        for (host, peer, named), place in zip(_keys(packets, refused), refused.tolist(), strict=True):
            self._refused[peer, host, named] = self._examined + place
        self._examined += len(packets)

    @property
    def clock_was_set_back(self) -> bool:
        """Whether times run back where the packets of a flow go on."""
        return self._for_file > self._for_time

    @property
    def _was_seen(self) -> bool:
        """Whether responders saw packets in the order of the file: their NAKs name those overtaken.

        A responder's own packets, on the host that captured, do not run back.
        """
        return self._are_most([one for one in self._named() if one[1] not in self._back])

    def _named(self) -> list[tuple[int, int, int]]:
        """The overtaken requests that a NAK behind them names."""
        return [one for one, place in self._overtaken.items() if self._refused.get(one, -1) > place]

    def _are_most(self, named: list[tuple[int, int, int]]) -> bool:
        return len(named) >= max(1, _REFUSED * len(self._overtaken))

    def order(self) -> TimeOrder:
        """How the packets are to be put in order; where times leave it open, the sample decides."""
        if not self.packets:
            return TimeOrder(0, 0)
        if self.clock_was_set_back or self._was_seen or self.furthest_ns > FURTHEST_NS:
            return self._as(BY_FILE)
        orders = [self._as(BY_TIME)]
        shifts = None if self._back else self._shifts()
        if shifts is not None:
            by_name = {self._addresses[sender]: ns for sender, ns in shifts.items() if ns}
            often = max(earlier for _, earlier in self._turns.values()) >= _LEAST_TURNS
            orders.insert(0 if often else 1, self._as(BY_CLOCKS, by_name))
        if not self._back:
            orders.append(self._as(BY_FILE))
        return self._choose(orders, Packets.concat(self._sample))

    def _as(self, by: str, shifts_ns: Mapping[str, int] = MappingProxyType({})) -> TimeOrder:
        names, named = self._addresses, self._named()
        if not self._are_most(named):
            named = []
        overtaken = self._overtaken if len(self._overtaken) <= _MOST_OVERTAKEN else ()
        refused, late = (
            frozenset((names[src], names[dst], psn) for src, dst, psn in some) for some in (named, overtaken)
        )
        return TimeOrder(self.packets, self.furthest_ns, by, MappingProxyType(dict(shifts_ns)), refused, late)

    def _shifts(self) -> dict[int, int] | None:
        """What to add to each sender's times so that all run forward; None: their clocks are not it.

        They are bounded from both sides, by the packets before and those behind; the least is taken.
        """
        back = [pair for pair, (_, earlier) in self._turns.items() if earlier]
        if not back:
            return None
        senders = sorted({sender for pair in self._turns for sender in pair})
        if len(senders) > _MOST_SENDERS:
            return None
        place = {sender: i for i, sender in enumerate(senders)}
        least = np.full((len(senders), len(senders)), -np.inf)
        np.fill_diagonal(least, 0)
        for (first, second), (ns, _) in self._turns.items():
            least[place[first], place[second]] = ns
        for k in range(len(senders)):
            least = np.maximum(least, least[:, k, None] + least[None, k, :])
        if (np.diagonal(least) > 0).any():
            return None  # no shifts make all times run forward
        if any(np.isinf(least[place[second], place[first]]) for first, second in back):
            return None
        known = np.isfinite(least[0]) & np.isfinite(least[:, 0])
        both = (np.where(known, least[0], 0), np.where(known, -least[:, 0], 0))
        shifts = min(both, key=lambda one: float(np.abs(one).max()))
        if (shifts[None, :] - shifts[:, None] < least).any():
            return None
        return {sender: round(float(ns)) for sender, ns in zip(senders, shifts, strict=True)}
