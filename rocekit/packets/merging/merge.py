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
from rocekit.packets import alike as is_one_number
from rocekit.packets.blocks import Blocks, Captured, taken
from rocekit.packets.flow_numbers import MIXER
from rocekit.packets.identity import has_icrcs, identities
from rocekit.packets.merging.alignment import Alignment, align
from rocekit.packets.merging.alike import Alike, Ints, Numbers
from rocekit.packets.merging.matching import number
from rocekit.packets.merging.passing import passed
from rocekit.packets.merging.scopes import one_scope

if TYPE_CHECKING:
    from rocekit.packets import Packets

UNSEEN: Final = -1 << 62
_MOST_FRAMES: Final = np.iinfo(np.int32).max
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Merged:
    """One sequence out of several captures.

    Attributes:
        order: indices into the concatenated packets, each packet once, in the order in which they passed
        the first capture point on their way.
        time_ns: their aligned times there (``passing``).
        copies: packets left out because another capture has them.
        seen_ns: by packet and capture, the aligned time at which the capture has it, or ``UNSEEN``.
        frames: by packet and capture, its frame number there, or 0.
        hops: likewise the hop limit (TTL).
        flow, encapsulation: of each packet (see ``merge_scopes``).
        identity: a number for each packet; copies and retransmissions that nothing tells apart have the same.
    """

    order: NDArray[np.int32]
    time_ns: NDArray[np.int64]
    copies: int
    alignments: list[Alignment]
    seen_ns: NDArray[np.int64]
    frames: NDArray[Any]
    hops: NDArray[np.uint8]
    identity: NDArray[np.int32]
    flow: NDArray[np.int64]
    encapsulation: NDArray[np.int32]

    def packets(self, parts: list[Packets]) -> Packets:
        """The packets, each once, in order, at the aligned times; uses up ``parts``, which were merged."""
        whole = parts[0].used_up(parts, self.order)
        return whole.at(self.time_ns).of_flows(self.flow, self.encapsulation)

    def batches(self, parts: Sequence[Blocks], at_once: int) -> Iterator[Packets]:
        """The packets as ``packets`` gives them, so many at once; uses up ``parts``."""
        begin = 0
        for packets in taken(parts, self.order, at_once):
            here = slice(begin, begin := begin + len(packets))
            yield packets.at(self.time_ns[here]).of_flows(self.flow[here], self.encapsulation[here])


def merge(parts: Sequence[Captured], *, one_clock: bool = False) -> Merged:
    """Merge the packets of several captures; ``parts[i]`` are capture ``i``'s, all of one decoder.

    Args:
        one_clock: whether all times are of one clock.
    """
    by_icrc = all(has_icrcs(packets) for packets in parts)
    blocks = [block for part in parts for block in (part.blocks if isinstance(part, Blocks) else [part])]
    identity = np.concatenate([identities(block, by_icrc=by_icrc) for block in blocks])
    alike = Alike(identity, parts)
    alignments = align(parts, alike)
    if one_clock:
        alignments = [Alignment(n, 0, 0, a.common) for n, a in enumerate(alignments)]
    if any(a.group for a in alignments):
        # Equal packets of captures that do not show the same traffic are not the same.
        groups = np.array([a.group for a in alignments]).astype(np.uint64) * np.uint64(MIXER)
        identity ^= np.repeat(groups, [len(part) for part in parts])
        alike = Alike(identity, parts)
    del identity
    times = [a.aligned(part.time_ns) for part, a in zip(parts, alignments, strict=True)]
    numbers, total = number(alike, parts, times)
    order, row = _in_order_of_time(alike, times, numbers, total)
    del numbers
    seen = _by_packet(row, times, UNSEEN, np.int64)
    flow, encapsulation = one_scope(parts, order, row)
    identity = alike.group[order]
    repeated = np.bincount(identity, minlength=1)[identity] > 1
    corrupted = _taken(parts, "icrc_state", order) == ICRC_INVALID
    passed_ns = passed(seen, UNSEEN, flow, repeated | corrupted)
    if (passed_ns[1:] < passed_ns[:-1]).any():
        rows = np.argsort(passed_ns, kind="stable")
        order, passed_ns, seen, identity = order[rows], passed_ns[rows], seen[rows], identity[rows]
        flow, encapsulation = flow[rows], encapsulation[rows]
        place = np.empty(len(rows), np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        row = place[row]
    frames = [part.frame for part in parts]
    last = max(int(frame.max(initial=0)) for frame in frames)
    return Merged(
        order,
        passed_ns,
        len(row) - len(order),
        alignments,
        seen,
        _by_packet(row, frames, 0, np.int32 if last <= _MOST_FRAMES else np.int64),
        _by_packet(row, [part.hop_limit for part in parts], 0, np.uint8),
        identity,
        flow,
        encapsulation,
    )


def _in_order_of_time(
    alike: Alike, times: Sequence[Ints], numbers: Numbers, total: int
) -> tuple[Numbers, Numbers]:
    """The row of each packet where it was seen first, in order of time; and the place of each row's packet.

    Args:
        times: the aligned times of each capture; numbers: of each row, its packet; total: the packets.
    """
    first_ns, where = np.full(total, _NEVER), np.zeros(total, np.int16)
    for file, own_ns in enumerate(times):
        own = numbers[alike.rows_of(file)]
        earlier = own_ns < first_ns[own] if file else None
        if earlier is not None and not earlier.all():
            own, own_ns = own[earlier], own_ns[earlier]
        first_ns[own], where[own] = own_ns, file
    # Of the same time, those of the capture that was named first stand first, each in the order of its file.
    rows = np.concatenate(
        [
            alike.begin[file] + np.flatnonzero(where[numbers[alike.rows_of(file)]] == file)
            for file in range(len(times))
        ],
        dtype=np.int32,
    )
    order = rows[np.argsort(first_ns[numbers[rows]], kind="stable")]
    place = np.zeros(total, np.int32)
    place[numbers[order]] = np.arange(len(order), dtype=np.int32)
    return order, place[numbers]


def _by_packet(row: Numbers, columns: Sequence[NDArray[Any]], without: int, kind: Any) -> NDArray[Any]:
    """Columns of the captures by packet and capture; ``without``: where a capture has not the packet.

    The values of one capture are next to each other in memory: they are read together.
    """
    count = int(row.max(initial=-1)) + 1
    found = np.empty((len(columns), count), kind)
    begin = 0
    for of_file, column in zip(found, columns, strict=True):
        if len(column) < count:
            of_file.fill(without)
        of_file[row[begin : begin + len(column)]] = column
        begin += len(column)
    return found.T


def _taken(parts: Sequence[Captured], name: str, rows: Numbers) -> NDArray[Any]:
    """A column of some rows of the concatenated captures."""
    columns = [part[name] for part in parts]
    if len(rows) and all(is_one_number(column) and column[0] == columns[0][0] for column in columns):
        return np.broadcast_to(columns[0][:1], len(rows))
    return np.concatenate(columns)[rows]
