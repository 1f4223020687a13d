"""Several captures of the same traffic as one sequence: packets seen twice are found, clocks aligned.

Two captures have the same packet if all that no switch changes is equal (addresses, QPN, opcode, PSN, IP
identification, ICRC) and it is the k-th such packet in both. Times decide only where the captures have
different numbers of such packets, or where the k-th of one cannot be the k-th of the other (``matching``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID
from rocekit.packets.flow_numbers import MIXER
from rocekit.packets.identity import Alike, has_icrcs, identities
from rocekit.packets.merging.alignment import Alignment, align
from rocekit.packets.merging.matching import number
from rocekit.packets.merging.passing import passed
from rocekit.packets.merging.scopes import one_scope

if TYPE_CHECKING:
    from rocekit.packets import Packets

UNSEEN: Final = -1 << 62


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
        identity: of each packet; copies and retransmissions that nothing tells apart have the same.
    """

    order: NDArray[np.int64]
    time_ns: NDArray[np.int64]
    copies: int
    alignments: list[Alignment]
    seen_ns: NDArray[np.int64]
    frames: NDArray[np.int64]
    hops: NDArray[np.uint8]
    identity: NDArray[np.uint64]
    flow: NDArray[np.int64]
    encapsulation: NDArray[np.int32]

    def packets(self, parts: list[Packets]) -> Packets:
        """The packets, each once, in order, at the aligned times; uses up ``parts``, which were merged."""
        whole = parts[0].used_up(parts, self.order)
        return whole.at(self.time_ns).of_flows(self.flow, self.encapsulation)


def merge(parts: Sequence[Packets], *, one_clock: bool = False) -> Merged:
    """Merge the packets of several captures; ``parts[i]`` are capture ``i``'s, all of one decoder.

    Args:
        one_clock: whether all times are of one clock.
    """
    by_icrc = all(has_icrcs(packets) for packets in parts)
    identity = np.concatenate([identities(packets, by_icrc=by_icrc) for packets in parts])
    file = np.repeat(np.arange(len(parts), dtype=np.int16), [len(p) for p in parts])
    own_times = np.concatenate([p.time_ns for p in parts])
    alike = Alike.of(identity, file, own_times)
    alignments = align(parts, alike)
    if one_clock:
        alignments = [Alignment(n, 0, 0, a.common) for n, a in enumerate(alignments)]
    del own_times  # what is not needed any more is let go: each of these arrays has a value a packet
    groups = np.array([a.group for a in alignments])
    if groups.any():  # equal packets of captures that do not show the same traffic are not the same
        identity ^= groups.astype(np.uint64)[file] * np.uint64(MIXER)
        alike = Alike.of(identity, file, np.concatenate([p.time_ns for p in parts]))
    times = np.concatenate([a.aligned(p.time_ns) for p, a in zip(parts, alignments, strict=True)])
    src = np.concatenate([p.src for p in parts]).astype(np.int64)
    uncertain = np.concatenate([p.ip_id for p in parts]) == 0
    numbers, total = number(alike, times, src, uncertain)
    group_of_row = alike.group_of_row
    del src, uncertain, alike
    by_time = np.argsort(times, kind="stable")
    sorted_numbers = numbers[by_time]
    first = np.full(total, -1, np.int64)
    first[sorted_numbers[::-1]] = np.arange(
        len(by_time) - 1, -1, -1
    )  # of several, the last one assigned stays
    is_first = np.zeros(len(by_time), np.bool_)
    is_first[first[first >= 0]] = True
    order = by_time[is_first]
    first = (np.cumsum(is_first) - 1)[first]
    copies = len(by_time) - len(order)
    del by_time, sorted_numbers, is_first
    row = first[numbers]
    del first, numbers
    seen = np.full((len(order), len(parts)), UNSEEN, np.int64)
    seen[row, file] = times
    del times
    frames = np.zeros((len(order), len(parts)), np.int64)
    frames[row, file] = np.concatenate([p.frame for p in parts])
    hops = np.zeros((len(order), len(parts)), np.uint8)
    hops[row, file] = np.concatenate([p.hop_limit for p in parts])
    flow, encapsulation = one_scope(parts, order, row)
    group = group_of_row[order]
    repeated = np.bincount(group)[group] > 1
    del row, file, group_of_row, group
    corrupted = np.concatenate([p.icrc_state for p in parts])[order] == ICRC_INVALID
    passed_ns = passed(seen, UNSEEN, flow, repeated | corrupted)
    rows = np.argsort(passed_ns, kind="stable")
    return Merged(
        order[rows],
        passed_ns[rows],
        copies,
        alignments,
        seen[rows],
        frames[rows],
        hops[rows],
        identity[order][rows],
        flow[rows],
        encapsulation[rows],
    )
