"""What the packets of a capture are matched and put in order by: some ten bytes each, not the packets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import ICRC_INVALID, ICRC_UNCHECKED, Column
from rocekit.packets.identity import Whole, cut_in_aeth, identities
from rocekit.packets.merging.group_numbers import GroupNumbers
from rocekit.packets.slim import SlimColumn
from rocekit.wire.network import ECN_CE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rocekit.packets import Packets

Ints = NDArray[np.int64]

_ALL: Final = Whole(aeth=True, icrc=True)

_COLUMNS: Final[dict[str, Any]] = {
    "time_ns": np.int64,
    "frame": np.int64,
    "flow": np.int64,
    "ip_id": np.uint16,
    "icrc_state": np.uint8,
    "hop_limit": np.uint8,
    "encapsulation": np.int32,
}


class FlowEnds:
    """The source and the destination of each flow, of all captures of one decoder."""

    def __init__(self) -> None:
        self._ends = np.full((2, 0), -1, np.int64)
        self._known = 0  # all flows below are known

    def learn(self, packets: Packets) -> None:
        """Note the flows of a batch."""
        flow = packets.flow
        if not len(flow):
            return
        most = int(flow.max()) + 1
        if most <= self._known:
            return
        if most > self._ends.shape[1]:
            more = np.full((2, max(most, 2 * self._ends.shape[1]) - self._ends.shape[1]), -1, np.int64)
            self._ends = np.concatenate([self._ends, more], axis=1)
        if (self._ends[0][flow] < 0).any():
            self._ends[0][flow], self._ends[1][flow] = packets.src, packets.dst
        unknown = np.flatnonzero(self._ends[0] < 0)
        self._known = int(unknown[0]) if len(unknown) else self._ends.shape[1]

    @property
    def src(self) -> Ints:
        """The source of each flow, −1 of numbers that are none."""
        return self._ends[0]

    @property
    def dst(self) -> Ints:
        """Likewise the destination."""
        return self._ends[1]


class Outline:
    """The packets of one capture, as far as merging looks at them.

    Attributes:
        group: of each packet; packets of all captures that may be the same one have the same (``Outlines``).
        in_order: whether no time is before the one in front of it.
        marked: the rows of packets that are marked "congestion experienced" (RFC 3168), in pieces.
        ends: of the flows.
    """

    def __init__(self, ends: FlowEnds) -> None:
        self._columns = {name: SlimColumn(kind) for name, kind in _COLUMNS.items()}
        self.ends = ends
        self.group = SlimColumn(np.int32)
        self.in_order = True
        self.marked: list[NDArray[np.int32]] = []
        self._last_ns: int | None = None
        self._unchecked = self._invalid = self._cut = 0

    def __len__(self) -> int:
        return len(self._columns["frame"])

    def add(self, packets: Packets) -> None:
        """Add packets at the end."""
        if not len(packets):
            return
        self.ends.learn(packets)
        marked = np.flatnonzero(packets.ecn == ECN_CE)
        if len(marked):
            self.marked.append((marked + len(self)).astype(np.int32))
        for name, column in self._columns.items():
            column.add(packets[name])
        times = packets.time_ns
        if (self._last_ns is not None and times[0] < self._last_ns) or (times[1:] < times[:-1]).any():
            self.in_order = False
        self._last_ns = int(times[-1])
        self._unchecked += int(np.count_nonzero(packets.icrc_state == ICRC_UNCHECKED))
        self._invalid += int(np.count_nonzero(packets.icrc_state == ICRC_INVALID))
        self._cut += cut_in_aeth(packets)

    def keep_times(self) -> None:
        """Keep only the frame numbers and times."""
        self.group, self.marked = SlimColumn(np.int32), []
        for name in self._columns.keys() - {"frame", "time_ns"}:
            self._columns[name] = SlimColumn(_COLUMNS[name])

    def __getattr__(self, name: str) -> SlimColumn:
        try:
            return self.__dict__["_columns"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def whole(self) -> Whole:
        """What the capture has of all packets."""
        return Whole(not self._cut, not self._unchecked and self._invalid * 2 <= len(self))

    def src(self, rows: Column) -> Ints:
        """The sources of packets."""
        found: Ints = self.ends.src[self.flow[rows]]
        return found

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last time; there must be packets."""
        found = self.time_ns.bounds()
        assert found is not None
        return found

    def sources(self, first_ns: int, last_ns: int) -> Ints:
        """How many packets each host sent in a time, that is included."""
        counts = np.zeros(int(self.ends.src.max(initial=-1)) + 1, np.int64)
        for rows in self._within(first_ns, last_ns):
            counts += np.bincount(self.src(rows), minlength=len(counts))
        return counts

    def flows(self, first_ns: int, last_ns: int) -> Ints:
        """How many packets of each flow came in a time, that is included."""
        counts = np.zeros(len(self.ends.src), np.int64)
        for rows in self._within(first_ns, last_ns):
            counts += np.bincount(self.flow[rows], minlength=len(counts))
        return counts

    def _within(self, first_ns: int, last_ns: int) -> Iterator[Ints]:
        """The rows of a time, in parts."""
        for at, times in self.time_ns.pieces():
            yield np.flatnonzero((times >= first_ns) & (times <= last_ns)) + at


class Outlines:
    """Outlines of several captures, made while they are read one after the other.

    Args:
        expected: how many different packets there may be.

    Attributes:
        every: an outline a capture.
    """

    def __init__(self, expected: int = 0) -> None:
        self.every: list[Outline] = []
        self._ends = FlowEnds()
        self._expected = expected
        self._whole: Whole | None = None
        self._numbers = GroupNumbers(expected)

    @classmethod
    def of(cls, captures: Sequence[Packets]) -> Outlines:
        """Of captures that were read."""
        made = cls(max(map(len, captures), default=0))
        made._whole = reduce(Whole.both, map(Whole.of, captures), _ALL)
        for capture in captures:
            made.begin()
            made.add(capture)
        return made

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self._numbers.count

    def begin(self) -> None:
        """The next packets are of the next capture."""
        self.every.append(Outline(self._ends))

    def add(self, packets: Packets) -> None:
        """Add packets of the capture that was begun last."""
        self._add(self.every[-1], packets)

    def _add(self, outline: Outline, packets: Packets) -> None:
        if not len(packets):
            return
        if self._whole is None:
            unchecked = bool((packets.icrc_state == ICRC_UNCHECKED).any())
            self._whole = Whole(not cut_in_aeth(packets), not unchecked)
        outline.add(packets)
        outline.group.add(self._numbers.number(identities(packets, self._whole)))

    def replace(self, file: int, blocks: Iterable[Packets]) -> None:
        """All packets of a capture are these."""
        outline = self.every[file] = Outline(self._ends)
        for packets in blocks:
            self._add(outline, packets)

    def with_repeats(self, least: int, often: int) -> list[int]:
        """The captures that have so many packets, and one in so many, more than once."""
        found = []
        for file, outline in enumerate(self.every):
            has = np.zeros(self.groups, np.bool_)
            for _, piece in outline.group.pieces():
                has[piece] = True
            again = len(outline) - int(np.count_nonzero(has))
            if again >= max(least, len(outline) // often):
                found.append(file)
        return found

    def settled(self) -> bool:
        """Whether packets were told apart as they are to be, which only all of them say; else ``regroup``."""
        return self._whole in (None, self._of_all())

    def regroup(self, captures: Sequence[Iterable[Packets]]) -> None:
        """Tell packets apart anew; ``captures``: all packets of each."""
        whole = self._of_all()
        self._numbers = GroupNumbers(self.groups)
        for outline, blocks in zip(self.every, captures, strict=True):
            outline.group = SlimColumn(np.int32)
            for packets in blocks:
                outline.group.add(self._numbers.number(identities(packets, whole)))

    def _of_all(self) -> Whole:
        """What all captures have whole."""
        return reduce(Whole.both, (outline.whole for outline in self.every), _ALL)

    def part(self, groups: Sequence[int]) -> None:
        """Equal packets of captures in different groups of captures are not the same."""
        numbers = GroupNumbers(self.groups)
        for outline, of in zip(self.every, groups, strict=True):
            before, outline.group = outline.group, SlimColumn(np.int32)
            for _, piece in before.pieces():
                outline.group.add(numbers.number(piece.astype(np.uint64) | np.uint64(of << 32)))
        self._numbers = numbers

    def done(self) -> None:
        """No packets follow: what numbers groups is let go."""
        self._numbers.let_go()
