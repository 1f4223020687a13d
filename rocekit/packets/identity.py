"""What makes a packet the same in every capture, and which packets of several captures are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID, ICRC_UNCHECKED
from rocekit.packets.flow_numbers import MIXER
from rocekit.wire.sorting import order_of_hashes

if TYPE_CHECKING:
    from rocekit.packets import Packets

Ints = NDArray[np.int64]

#: Nothing on the way changes these. TTL, DSCP, ECN, MAC addresses and VLAN tags may change at each hop.
_IDENTITY: Final = (
    *("src", "dst", "dest_qpn", "opcode", "psn", "ip_id", "payload_length", "syndrome", "msn"),
)
#: So many packets are enough to learn the clocks and delays from.
_ENOUGH: Final = 16


def identities(packets: Packets, *, by_icrc: bool = True) -> NDArray[np.uint64]:
    """A 64-bit identity of each packet, the same in every capture; a corrupted copy has another one."""
    packets = packets.where(slice(None))  # derived columns are kept for this only
    value = np.zeros(len(packets), np.uint64)
    for name in (*_IDENTITY, *(("icrc", "icrc_state") if by_icrc else ())):
        column = packets[name] == ICRC_INVALID if name == "icrc_state" else packets[name]
        value = (value ^ column.astype(np.int64).view(np.uint64)) * np.uint64(MIXER)
        value ^= value >> np.uint64(29)
    return value


def has_icrcs(packets: Packets) -> bool:
    """Whether all ICRCs are captured, and most are right."""
    wrong = int((packets.icrc_state == ICRC_INVALID).sum())
    return not (packets.icrc_state == ICRC_UNCHECKED).any() and wrong * 2 <= len(packets)


@dataclass(frozen=True)
class Alike:
    """Packets of several captures, sorted so that those with the same identity form a *group*.

    Within a group they are sorted by capture and then by time: packets of one group and one capture are a
    *run*.

    Attributes:
        rows: the packets, sorted; indices into the concatenated captures.
        file: their captures.
        run_first: where in ``rows`` each run starts; count: its packets; group_of_run: its group.
        first_run: the first run of each group.
    """

    rows: Ints
    file: NDArray[np.int16]
    run_first: Ints
    count: Ints
    group_of_run: Ints
    first_run: Ints

    @classmethod
    def of(cls, identity: NDArray[np.uint64], file: NDArray[np.int16], time_ns: Ints) -> Alike:
        """Sort the packets of the concatenated captures. Times are compared within a capture only."""
        back = np.flatnonzero(time_ns[1:] < time_ns[:-1])
        if (file[back] == file[back + 1]).any():  # a capture is not in the order of time
            order = np.lexsort((time_ns, file))
            rows = order[np.argsort(identity[order], kind="stable")]
        else:
            rows = order_of_hashes(identity)
        value, of = identity[rows], file[rows]
        starts = np.ones(len(rows), np.bool_)
        starts[1:] = value[1:] != value[:-1]
        new_group = starts.copy()
        starts[1:] |= of[1:] != of[:-1]
        run_first = np.flatnonzero(starts)
        new_group = new_group[run_first]
        count = np.diff(np.append(run_first, len(rows)))
        return cls(rows, of, run_first, count, np.cumsum(new_group) - 1, np.flatnonzero(new_group))

    @cached_property
    def most(self) -> Ints:
        """The most packets that one capture has of each group."""
        return np.maximum.reduceat(self.count, self.first_run) if len(self.count) else self.count

    @cached_property
    def even(self) -> NDArray[np.bool_]:
        """Whether all captures that have packets of a group have equally many of them."""
        if not len(self.count):
            return np.empty(0, np.bool_)
        return np.minimum.reduceat(self.count, self.first_run) == self.most

    @cached_property
    def group_of_row(self) -> Ints:
        """The group of each packet of the concatenated captures."""
        groups = np.empty(len(self.rows), np.int64)
        groups[self.rows] = np.repeat(self.group_of_run, self.count)
        return groups

    @cached_property
    def _of_all(self) -> dict[tuple[int, int], tuple[Ints, Ints]]:
        """What two captures have in common where each has it once, so that there is no choice."""
        return {}

    def expand(self, runs: Ints) -> tuple[Ints, Ints]:
        """Each packet of some runs, as a place in ``rows``, and its place in its run."""
        lengths = self.count[runs]
        ends = np.cumsum(lengths)
        within = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
        return np.repeat(self.run_first[runs], lengths) + within, within

    def common(self, first: int, second: int, least: int = _ENOUGH) -> tuple[Ints, Ints]:
        """The packets that two captures have in common: indices of the one's and of the other's.

        Of identities that each has once, if there are enough of them (``least``; 0: in no case); else the
        k-th of all that both have equally often.
        """
        if (first, second) in self._of_all:
            return self._of_all[first, second]
        file = self.file[self.run_first]
        runs = []
        for wanted in (first, second):
            of_group = np.full(len(self.first_run), -1)
            own = np.flatnonzero(file == wanted)
            of_group[self.group_of_run[own]] = own
            runs.append(of_group)
        both = (runs[0] >= 0) & (runs[1] >= 0)
        a, b = runs[0][both], runs[1][both]
        equal = self.count[a] == self.count[b]
        once = equal & (self.count[a] == 1)
        if (once == equal).all() or (least and np.count_nonzero(once) >= least):
            found = self.rows[self.run_first[a[once]]], self.rows[self.run_first[b[once]]]
        else:
            found = self.rows[self.expand(a[equal])[0]], self.rows[self.expand(b[equal])[0]]
        # In the order of the one's packets: what is read by these indices is then near each other.
        partner = np.full(len(self.rows), -1, np.int64)
        partner[found[0]] = found[1]
        in_order = np.flatnonzero(partner >= 0)
        found = in_order, partner[in_order]
        if (once == equal).all():
            self._of_all[first, second] = found
        return found
