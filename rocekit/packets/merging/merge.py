"""Several captures of the same traffic as one sequence: packets seen twice are found, clocks aligned.

Two captures have the same packet if all that no switch changes is equal (addresses, QPN, opcode, PSN, IP
identification, ICRC) and it is the k-th such packet in both. Times decide only where the captures have
different numbers of such packets, or where the k-th of one cannot be the k-th of the other (``matching``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID
from rocekit.packets.merging.alignment import AlignedTimes, Alignment, align
from rocekit.packets.merging.alike import Alike, Numbers
from rocekit.packets.merging.matching import number
from rocekit.packets.merging.outline import Outline, Outlines
from rocekit.packets.merging.passing import passed
from rocekit.packets.merging.scopes import one_scope
from rocekit.packets.merging.sources import taken
from rocekit.packets.slim import SlimColumn, SlimTimes, looked_up
from rocekit.wire.network import ECN_CE

if TYPE_CHECKING:
    from rocekit.packets import Packets
    from rocekit.packets.merging.sources import RowSource

UNSEEN: Final = -1 << 62
#: A copy comes so soon behind the packet that it is a copy of.
_COPY_NS: Final = 50_000
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Merged:
    """One sequence out of several captures.

    Attributes:
        sizes: the packets of each capture.
        order: indices into the concatenated packets, each packet once, in the order in which they passed
        the first capture point on their way.
        time_ns: their aligned times there (``passing``).
        copies: packets left out because another capture has them.
        seen_ns: by capture and packet, the aligned time at which the capture has it, or ``UNSEEN``.
        frames: by capture and packet, its frame number there, or 0.
        hops: likewise the hop limit (TTL).
        flow, encapsulation: of each packet (see ``merge_scopes``).
        marked: whether any capture has the packet marked "congestion experienced"; None: no packet is.
        identity: a number for each packet; copies and retransmissions that nothing tells apart have the same.
    """

    sizes: list[int]
    order: SlimColumn
    time_ns: SlimColumn
    copies: int
    alignments: list[Alignment]
    seen_ns: list[SlimTimes]
    frames: list[SlimColumn]
    hops: list[SlimColumn]
    identity: SlimColumn
    flow: SlimColumn
    encapsulation: SlimColumn
    marked: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.order)

    def packets(self, parts: list[Packets]) -> Packets:
        """The packets, each once, in order, at the aligned times; uses up ``parts``, which were merged."""
        whole = parts[0].used_up(parts, self.order.whole())
        times = whole.at(self.time_ns.whole(), **self._classes(whole, slice(None)))
        return times.of_flows(self.flow.whole(), self.encapsulation.whole())

    def batches(self, sources: Sequence[RowSource], at_once: int) -> Iterator[Packets]:
        """The packets as ``packets`` gives them, so many at once; ``sources``: of each capture's."""
        begin = 0
        for packets in taken(sources, self.sizes, self.order, at_once):
            here = slice(begin, begin := begin + len(packets))
            packets = packets.at(self.time_ns[here], **self._classes(packets, here))
            yield packets.of_flows(self.flow[here], self.encapsulation[here])

    def _classes(self, packets: Packets, here: slice) -> dict[str, NDArray[Any]]:
        """The traffic classes of packets with the marks that another capture has, where these are others."""
        if self.marked is None or not (marked := self.marked[here]).any():
            return {}
        return {"tclass": np.where(marked, packets.tclass | ECN_CE, packets.tclass)}


def merge(outlines: Outlines, *, one_clock: bool = False) -> Merged:
    """Merge the packets of several captures, given in outlines.

    Args:
        one_clock: whether all times are of one clock.
    """
    alike = Alike(outlines)
    alignments = align(alike)
    if one_clock:
        alignments = [Alignment(n, 0, 0, a.common) for n, a in enumerate(alignments)]
    if any(a.group for a in alignments):
        # Equal packets of captures that do not show the same traffic are not the same.
        outlines.part([a.group for a in alignments])
        alike = Alike(outlines)
    parts = outlines.every
    times = [AlignedTimes(part.time_ns, a) for part, a in zip(parts, alignments, strict=True)]
    numbers, total = number(alike, times)
    groups = alike.groups
    del alike
    order = _in_order_of_time(times, numbers, total)
    flows = one_scope(parts, order, numbers)
    found = _Gathered(parts, times, order, numbers, total)
    if flows is not None:
        found.flow, found.encapsulation = SlimColumn.of(flows[0]), SlimColumn.of(flows[1], np.int32)
    passed_ns = passed(found.seen_ns, UNSEEN, found.flow, found.may_be_copies(groups, parts, order))
    if (passed_ns[1:] < passed_ns[:-1]).any():
        rows = np.argsort(passed_ns, kind="stable").astype(np.int32)
        passed_ns = passed_ns[rows]
        order = _reordered(order, rows)
        found.reorder(rows)
    marked = _marked(parts, numbers, order, total)
    sizes, time_ns = list(map(len, parts)), SlimColumn.of(passed_ns)
    del passed_ns, times, numbers
    return Merged(
        sizes,
        order,
        time_ns,
        sum(sizes) - len(order),
        alignments,
        [SlimTimes(time_ns, seen, UNSEEN) for seen in found.seen_ns],
        found.frames,
        found.hops,
        found.identity,
        found.flow,
        found.encapsulation,
        marked,
    )


def _marked(
    parts: Sequence[Outline], numbers: Sequence[SlimColumn], order: SlimColumn, total: int
) -> NDArray[np.bool_] | None:
    """Which packets any capture has marked: those behind a switch that marks, and not those before it."""
    if not any(part.marked for part in parts):
        return None
    by_number = np.zeros(total, np.bool_)
    for part, of in zip(parts, numbers, strict=True):
        for rows in part.marked:
            by_number[of[rows]] = True
    return np.concatenate([by_number[looked_up(numbers, rows)] for _, rows in order.pieces()])


class _Gathered:
    """What is known of each merged packet, in their order; see ``Merged``."""

    def __init__(
        self,
        outlines: Sequence[Outline],
        times: Sequence[AlignedTimes],
        order: SlimColumn,
        numbers: Sequence[SlimColumn],
        total: int,
    ) -> None:
        self.seen_ns = [SlimColumn(missing=UNSEEN) for _ in outlines]
        self.frames = [SlimColumn() for _ in outlines]
        self.hops = [SlimColumn(np.uint8) for _ in outlines]
        self.identity, self.flow = SlimColumn(np.int32), SlimColumn()
        self.encapsulation = SlimColumn(np.int32)
        self._icrc_states = SlimColumn(np.uint8)
        places = [_places(of, total) for of in numbers]
        groups, flows, states, around = (
            [getattr(outline, name) for outline in outlines]
            for name in ("group", "flow", "icrc_state", "encapsulation")
        )
        for _, rows in order.pieces():
            self.identity.add(looked_up(groups, rows))
            self.flow.add(looked_up(flows, rows))
            self._icrc_states.add(looked_up(states, rows))
            self.encapsulation.add(looked_up(around, rows))
            own = looked_up(numbers, rows)
            for file, outline in enumerate(outlines):
                row = places[file][own]
                has = row >= 0
                mine = row if has.all() else row[has]
                self.seen_ns[file].add(_spread(times[file][mine], has, UNSEEN))
                self.frames[file].add(_spread(outline.frame[mine], has, 0))
                self.hops[file].add(_spread(outline.hop_limit[mine], has, 0))

    def may_be_copies(self, groups: int, outlines: Sequence[Outline], order: SlimColumn) -> NDArray[np.bool_]:
        """Which packets may have been made behind the first point: copies, and those that are corrupted.

        A copy equals another packet. Without IPv4 identifications, so do packets that are sent again; but a
        copy comes at once.

        Args:
            groups: how many groups there are; order: as for ``__init__``.
        """
        found = np.empty(len(self.identity), np.bool_)
        for at, states in self._icrc_states.pieces():
            found[at : at + len(states)] = states == ICRC_INVALID
        if len(self.identity) == groups:  # each group has a packet, so each has one
            return found
        counts = np.zeros(groups, np.int32)
        for _, piece in self.identity.pieces():
            least = int(piece.min())
            here = np.bincount(piece - least)
            counts[least : least + len(here)] += here.astype(np.int32)
        equal = np.concatenate([at + np.flatnonzero(counts[p] > 1) for at, p in self.identity.pieces()])
        told = looked_up([outline.ip_id for outline in outlines], order[equal]) != 0
        found[equal[told]] = True
        equal = equal[~told]
        identity = self.identity[equal]
        for seen in self.seen_ns:
            times = seen[equal]
            has = np.flatnonzero(times != UNSEEN)
            by_time = has[np.lexsort((times[has], identity[has]))]
            soon = np.diff(times[by_time]) < _COPY_NS
            copies = np.flatnonzero(soon & (np.diff(identity[by_time]) == 0))
            found[equal[by_time[copies]]] = found[equal[by_time[copies + 1]]] = True
        return found

    def reorder(self, rows: Numbers) -> None:
        """Put the packets in another order."""
        for columns in (self.seen_ns, self.frames, self.hops):
            columns[:] = [_reordered(column, rows) for column in columns]
        self.identity, self.flow = _reordered(self.identity, rows), _reordered(self.flow, rows)
        self.encapsulation = _reordered(self.encapsulation, rows)


def _in_order_of_time(times: Sequence[AlignedTimes], numbers: Sequence[SlimColumn], total: int) -> SlimColumn:
    """The row of each packet where it was seen first, in order of time.

    Args:
        times: the aligned times of each capture; numbers: of each of its packets.
        total: more than any number.
    """
    where = _first_captures(times, numbers, total)
    # Of the same time, those of the capture that was named first stand first, each in the order of its file.
    order, first_ns = SlimColumn(np.int32), SlimColumn()
    begin, last_ns, is_sorted = 0, -_NEVER, True
    for file, of in enumerate(numbers):
        for at, own in of.pieces():
            rows = np.flatnonzero(where[own] == file)
            when = times[file][at : at + len(own)][rows]
            order.add((rows + (at + begin)).astype(np.int32))
            first_ns.add(when)
            if len(when):
                is_sorted = is_sorted and bool(when[0] >= last_ns and (when[1:] >= when[:-1]).all())
                last_ns = int(when[-1])
        begin += len(of)
    del where
    if is_sorted:
        return order
    return _reordered(order, np.argsort(first_ns.whole(), kind="stable"))


def _first_captures(
    times: Sequence[AlignedTimes], numbers: Sequence[SlimColumn], total: int
) -> NDArray[np.int16]:
    """By number, the capture that has the packet first."""
    first_ns, where = np.full(total, _NEVER), np.zeros(total, np.int16)
    for file, own_ns in enumerate(times):
        for at, own in numbers[file].pieces():
            when = own_ns[at : at + len(own)]
            earlier = when < first_ns[own] if file else None
            if earlier is not None and not earlier.all():
                own, when = own[earlier], when[earlier]
            first_ns[own], where[own] = when, file
    return where


def _places(numbers: SlimColumn, total: int) -> Numbers:
    """The row of a capture that has each number; −1: it has no such packet."""
    found = np.full(total, -1, np.int32)
    for at, own in numbers.pieces():
        found[own] = np.arange(at, at + len(own), dtype=np.int32)
    return found


def _spread(values: NDArray[Any], has: NDArray[np.bool_], without: int) -> NDArray[Any]:
    """Values of the packets that a capture has, and ``without`` of the others."""
    if len(values) == len(has):
        return values
    found = np.full(len(has), without, values.dtype)
    found[has] = values
    return found


def _reordered(column: SlimColumn, rows: NDArray[np.integer[Any]]) -> SlimColumn:
    return column.like(column.whole()[rows])
