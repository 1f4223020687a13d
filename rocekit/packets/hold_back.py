"""Puts the packets of a capture in order of time, batch by batch, with the latest of them held back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from rocekit.files.frame_names import frame_reference
from rocekit.packets import Packets
from rocekit.packets.mads import find_mads
from rocekit.packets.run_back import NEVER_NS, runs_back
from rocekit.packets.time_order import (
    BY_FILE,
    BY_TIME,
    Choose,
    OrderSurvey,
    TimeOrder,
    by_time,
    flows_run_back,
)

if TYPE_CHECKING:
    from rocekit.wire.mad import Mad

#: How far behind a later one a packet of a stream, which cannot be read twice, is put in order.
STREAM_NS: Final = 1_000_000_000
#: The same of a live interface, whose queues differ by less; what is held is given at the next tick.
LIVE_NS: Final = 2_000_000
#: The most packets held back of a stream, and of a file, which has been surveyed before.
_STREAM_HELD: Final = 1 << 16
_FILE_HELD: Final = 1 << 22


class HoldBack:
    """Batches in order of time, each later than the one before. They are not copied unless times run back.

    Args:
        window_ns: how far behind a later one a packet may be to be put in order.
        most: the most packets to hold.

    Attributes:
        ties: whether packets of a flow at the same time are put in order of their PSNs.
    """

    def __init__(self, window_ns: int, most: int) -> None:
        self.ties = False
        self._window_ns = window_ns
        self._most = most
        self._held: list[Packets] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def batches(self) -> list[Packets]:
        return list(self._held)

    def add(self, packets: Packets) -> None:
        """Add packets without payloads."""
        if not len(packets):
            return
        self._count += len(packets)
        if self.ties or (packets.time_ns[1:] < packets.time_ns[:-1]).any():
            packets = by_time(packets, ties=self.ties)
        # What is at the same time is put in order with it only where PSNs decide.
        first_ns = int(packets.time_ns[0])
        over_ns = first_ns - 1 if self.ties else first_ns
        overlapping = [packets]
        while self._held and int(self._held[-1].time_ns[-1]) > over_ns:
            batch = self._held.pop()
            cut = int(np.searchsorted(batch.time_ns, over_ns, "right"))
            if cut:
                self._held.append(batch.where(slice(0, cut)))
            overlapping.insert(0, batch.where(slice(cut, None)))
        if len(overlapping) > 1:
            packets = by_time(Packets.concat(overlapping), ties=self.ties)
        self._held.append(packets)

    def ready(self) -> list[Packets]:
        """The batches that no packet within the window can come before, and those over the most."""
        given: list[Packets] = []
        last_ns = int(self._held[-1].time_ns[-1]) if self._held else 0
        while self._held and (
            self._count > self._most or int(self._held[0].time_ns[-1]) < last_ns - self._window_ns
        ):
            given.append(self._held.pop(0))
            self._count -= len(given[-1])
        return given

    def until(self, time_ns: int) -> list[Packets]:
        """The packets up to a time; a batch that goes on behind it is divided."""
        given: list[Packets] = []
        while self._held and int(self._held[0].time_ns[0]) <= time_ns:
            batch = self._held.pop(0)
            cut = int(np.searchsorted(batch.time_ns, time_ns, "right"))
            given.append(batch.where(slice(0, cut)))
            self._count -= cut
            if cut < len(batch):
                self._held.insert(0, batch.where(slice(cut, None)))
        return given

    def rest(self) -> list[Packets]:
        """All batches that are held."""
        given, self._held, self._count = self._held, [], 0
        return given


class InOrder:
    """Takes a capture's batches in the order of the file and gives them in order of time.

    Args:
        order: how; None for a stream, of which nothing is known before.
        choose: for a stream, see ``OrderSurvey``.

    Attributes:
        mads: the MADs among all packets so far, by frame reference: the batches given have no payloads.
    """

    def __init__(self, order: TimeOrder | None, choose: Choose) -> None:
        self.mads: dict[int, Mad] = {}
        self._order = order
        self._survey = OrderSurvey(choose) if order is None else None
        self._waiting: list[Packets] = []  # until their order is known
        if order is None:
            self._held = HoldBack(STREAM_NS, _STREAM_HELD)
        else:
            self._held = HoldBack(order.furthest_ns if order.by == BY_TIME else 0, _FILE_HELD)
            self._held.ties = order.by == BY_TIME

    @property
    def order(self) -> TimeOrder:
        """How the packets so far were put in order."""
        if self._survey is None:
            assert self._order is not None
            return self._order
        if self._order is None:
            return self._survey.order()
        return replace(self._order, packets=self._survey.packets, furthest_ns=self._survey.furthest_ns)

    def take(self, packets: Packets) -> list[Packets]:
        """Add a batch while its payloads are at hand; returns batches whose place is certain."""
        for row, mad in find_mads(packets):
            self.mads[frame_reference(int(packets.file[row]), int(packets.frame[row]))] = mad
        packets = packets.detached()
        if self._survey is not None:
            self._survey.feed(packets)
            if self._order is None:
                return self._wait(packets)
            if self._order.by == BY_TIME:
                self._held.ties = self._survey.packets > 0
                if self._survey.clock_was_set_back:
                    self._order = TimeOrder(0, 0, BY_FILE)
        assert self._order is not None
        if self._order.by == BY_FILE:
            return [*self._held.rest(), packets]
        self._held.add(self._order.shifted(packets))
        return self._held.ready()

    def _wait(self, packets: Packets) -> list[Packets]:
        if len(packets):
            self._waiting.append(packets)
        times = [
            (int(p.time_ns.min()), int(p.time_ns.max())) for p in (*self._waiting[:1], *self._waiting[-1:])
        ]
        few = sum(map(len, self._waiting)) <= _STREAM_HELD
        if few and (not times or times[-1][1] - times[0][0] <= STREAM_NS):
            return []
        return self._decide()

    def _decide(self) -> list[Packets]:
        """Put what has waited in order, as its survey says."""
        assert self._survey is not None
        self._order = self._survey.order()
        self._held.ties = self._survey.packets > 0 and self._order.by == BY_TIME
        waiting, self._waiting = self._waiting, []
        if self._order.by == BY_FILE:
            return waiting
        for packets in waiting:
            self._held.add(self._order.shifted(packets))
        return self._held.ready()

    def rest(self) -> list[Packets]:
        """The last batches: no more packets come."""
        given = self._decide() if self._order is None else []
        return [*given, *self._held.rest()]


class LiveOrder:
    """Puts the packets of a live interface in order of time; nothing is held back until times run back once.

    Where the times of a flow run back, the kernel's order is kept: the host took the packets in this order.

    Attributes:
        mads: the MADs among packets given without payloads, by frame reference; None while all have them.
    """

    def __init__(self) -> None:
        self.mads: dict[int, Mad] | None = None
        self._held = HoldBack(LIVE_NS, _STREAM_HELD)
        self._latest_ns = NEVER_NS
        self._packets = self._furthest_ns = 0

    @property
    def order(self) -> TimeOrder | None:
        """How the packets so far were put in order; None if they came in order."""
        return TimeOrder(self._packets, self._furthest_ns) if self._packets else None

    @property
    def holds(self) -> bool:
        """Whether packets are held back."""
        return len(self._held) > 0

    def take(self, packets: Packets) -> list[Packets]:
        """Add a batch while its payloads are at hand; returns batches in order."""
        if not len(packets):
            return []
        if self.mads is None and not runs_back(packets.time_ns, self._latest_ns):
            self._latest_ns = int(packets.time_ns[-1])
            return [packets]
        self.mads = {} if self.mads is None or not self.holds else self.mads
        for row, mad in find_mads(packets):
            self.mads[frame_reference(int(packets.file[row]), int(packets.frame[row]))] = mad
        high = np.maximum(np.maximum.accumulate(packets.time_ns), self._latest_ns)
        behind = high - packets.time_ns
        self._packets += int(np.count_nonzero(behind))
        self._furthest_ns = max(self._furthest_ns, int(behind.max()))
        self._latest_ns = int(high[-1])
        packets = packets.detached()
        if flows_run_back(Packets.concat([*self._held.batches, packets])):
            return [*self._held.rest(), packets]
        self._held.add(packets)
        return self._held.until(self._latest_ns - LIVE_NS)

    def rest(self) -> list[Packets]:
        """What is held back: nothing came behind it for a while, or nothing will."""
        return self._held.rest()
