"""What happened to every packet between one capture point and the next: reached it, or missing there.

For packets from one host to another and two capture points that they pass one after the other, with what each
packet is (``packets.identity``) nothing is inferred: it is at both points, only at the first, or only at the
second. Packets that the other capture may have been too early or too late for are *outside*: nothing follows
from their absence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rocekit.files.frame_names import FRAME_BITS, frame_name
from rocekit.packets import ICRC_INVALID
from rocekit.packets.merging.merge import UNSEEN
from rocekit.packets.slim import PIECE
from rocekit.points.corrupted import corrupted
from rocekit.points.delivered import delivered
from rocekit.points.passing import Passing
from rocekit.points.sightings import CLOCKS, FILES
from rocekit.points.unrecorded import unrecorded
from rocekit.wire.packet_kinds import CNP, DATAGRAM, IGNORED, KINDS, REQUEST, RESPONSE, TRANSPORT
from rocekit.wire.sorting import distinct, starts
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.points.sightings import Sightings
    from rocekit.track.connections import Connection

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.int32]

_NO_ROWS: Final[Ints] = np.empty(0, np.int64)

REACHED, MISSING, CORRUPTED, UNKNOWN = "reached", "missing", "corrupted", "unknown"
_FATES: Final = (UNKNOWN, REACHED, CORRUPTED, MISSING)  # by number, the last is −1
#: Of a capture that missed more than this share of the packets, one that it lacks need not be lost.
_GAPPY: Final = 0.01
#: Frames and connections listed of each path.
MAX_FRAMES: Final = 100
#: The network doubles packets within this time; equal packets without identification behind it are repeats.
_DOUBLED_NS: Final = 1_000_000
_QP1: Final = 1
_MAD: Final = CNP + 1
_KIND: Final = np.array([*KINDS, IGNORED], np.int8)
_KINDS: Final = {"requests": REQUEST, "responses": RESPONSE, "cnps": CNP, "datagrams": DATAGRAM, "mads": _MAD}
_IS_UNANSWERED: Final = np.array([transport in ("UC", "UD") for transport in TRANSPORT])
_WORDS: Final = {
    "requests": "requests",
    "responses": "responses",
    "cnps": "CNPs",
    "datagrams": "datagrams",
    "mads": "CM messages",
}
_EVER: Final = (-1 << 62, 1 << 62)
_NEVER: Final = (1, 0)
_ORDER: Final = {
    CLOCKS: " (order of the capture points: probably, by their clocks)",
    FILES: " (which comes first on the way is unknown)",
}


@dataclass(frozen=True, slots=True)
class MissingOf:
    """The missing packets of one connection."""

    connection: int
    missing: int

    def to_dict(self) -> dict[str, int]:
        return {"connection": self.connection, "missing": self.missing}


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The packets from ``src`` to ``dst`` between one capture point and the next.

    Attributes:
        first, second: the captures, in the order in which packets pass them.
        packets: seen at the first.
        missing: seen at the first, not at the second, though it was capturing: lost between them.
        overtaken: the fewest packets whose moving gives the order of the first point again.
        doubled: came once more at the second than at the first.
        only_second: seen at the second alone, though the first was capturing: the first capture missed them.
        missed_second: not in the second capture, which missed them: they went on, or were acknowledged.
        outside: seen at the first alone, when the second may not have been capturing.
        outside_second: seen at the second alone, when the first may not have been capturing.
        corrupted: reached the second with a bit changed.
        by: what tells the order of the points: ``delays`` of both directions, ``hops``, or, of one direction
            alone, the captures' ``clocks``. ``files``: nothing tells it, so that nothing is known to be lost.
        missing_rows, overtaken_rows: packets, as merged.
        covered: from when to when, at the first, packets passed that the second was surely capturing for;
            always, where both have all.
        kinds: missing packets by kind.
        unrecorded: seen at the first alone, of which the second records none; has_only: what it has.
        at_least: whether more may be missing, and have come twice: of packets that are alike, as over IPv6
            those sent again, one that was lost and one that came twice look like two that came.
        unanswered: whether there are missing packets of which no ACK could tell that they arrived (UC, UD).
    """

    src: str
    dst: str
    first: int
    second: int
    packets: int
    missing: int
    overtaken: int
    doubled: int
    only_second: int
    missed_second: int
    outside: int
    outside_second: int
    corrupted: int
    by: str
    missing_rows: Ints = field(repr=False)
    overtaken_rows: Ints = field(repr=False)
    only_second_rows: Ints = field(repr=False)
    kinds: dict[str, int]
    connections: tuple[MissingOf, ...]
    covered: tuple[int, int]
    unanswered: bool = False
    unrecorded: int = 0
    has_only: str = ""
    at_least: bool = False

    @property
    def clean(self) -> bool:
        """Whether every packet came once and in order, and both captures have all of them."""
        return not (self.missing or self.overtaken or self.doubled or self.only_second or self.missed_second)

    def words(self, names: Sequence[str]) -> str:
        """``of 559 packets seen at a.pcap 17 never reached b.pcap, 4 were overtaken, 0 came twice``."""
        first, second = names[self.first], names[self.second]
        ordered, packets = self.by != FILES, plural(self.packets, "packet")
        if ordered:
            were = "was" if self.overtaken == 1 else "were"
            # A capture that missed others that arrived may have missed these as well. Where no ACK tells of
            # such, it may as much as the first one, which did.
            missed = max(self.missed_second, self.only_second if self.unanswered else 0)
            gappy = self.missing and missed > _GAPPY * (self.packets + self.only_second)
            gone = f"are not at {second}, lost or missed" if gappy else f"never reached {second}"
            least = "at least " if self.at_least else ""
            found = (
                f"of {packets} seen at {first} {least}{self.missing:,} {gone}, "
                f"{self.overtaken:,} {were} overtaken, {least}{self.doubled:,} came twice"
            )
            kinds = [f"{n:,} {_WORDS[kind]}" for kind, n in self.kinds.items() if n]
            if len(kinds) > 1 or self.kinds["requests"] != self.missing:
                found += f"; missing: {', '.join(kinds)}"
        else:
            found = (
                f"of {packets} in {first} {self.missing:,} not in {second}, "
                f"{self.only_second:,} only in {second}"
            )
        if self.corrupted:
            found += f"; {self.corrupted:,} more arrived corrupted"
        if self.missed_second:
            found += f"; {self.missed_second:,} more arrived, but {second} missed them"
        if self.unrecorded:
            lacking = f"which has {self.has_only} of this direction"
            found += f"; {self.unrecorded:,} more are not at {second}, {lacking}"
        if self.only_second and ordered:
            found += f"; {self.only_second:,} only at {second}: {first} missed them"
        if self.outside or self.outside_second:
            both = " and ".join(
                f"{n:,} of {name}" for n, name in ((self.outside, first), (self.outside_second, second)) if n
            )
            found += f"; not counted, outside the time that both captures cover: {both}"
        return found + _ORDER.get(self.by, "")


def _covered(
    here: tuple[int, int] | None, took: tuple[int, int], span: tuple[int, ...] | None
) -> tuple[int, int]:
    """From when to when packets passed that the other capture was running for (see ``Paths._inside``)."""
    if span is None:
        return _NEVER
    begun, end = span[0] - took[0], span[1] - took[1]
    return (begun, end) if here is None else (min(begun, here[0]), max(end, here[1]))


class Paths:
    """Every path, and the fate of each packet.

    Args:
        spans: by capture, from when to when it has what passed, on its own clock.

    Attributes:
        every: all paths, by source, destination and order of the points.
    """

    def __init__(
        self,
        sightings: Sightings,
        spans: Sequence[tuple[int, int] | None],
        connections: Sequence[Connection],
    ) -> None:
        self._sightings = sightings
        self._spans = [
            None if span is None else tuple(alignment.aligned(np.array(span, np.int64)).tolist())
            for span, alignment in zip(spans, sightings.alignments, strict=True)
        ]
        self._connections = connections
        rows = len(sightings)
        #: For each packet its place in ``_FATES``.
        self._fates = np.zeros(rows, np.int8)
        self._lost_after = np.full(rows, -1, np.int16)
        #: Packets with a wrong ICRC that one capture alone has.
        self._strays = np.concatenate(
            [np.flatnonzero(s == ICRC_INVALID) + at for at, s in sightings.icrc_state.pieces()] or [_NO_ROWS]
        )
        alone = sum((frames[self._strays] != 0).astype(np.int8) for frames in sightings.frames) == 1
        self._strays = self._strays[alone]
        self.every: list[Path] = []
        for src, dst, own in sightings.directions():
            points = sightings.points(src, dst) or sightings.probable_points(src, dst)
            by = sightings.order_by(src, dst)
            shown = sightings.seen_by(src, dst)
            for place, (first, second) in enumerate(pairwise(points)):
                if not (shown[first] and shown[second]):
                    continue  # it may be a capture of the other direction only
                beyond = points[place + 2 :]
                if sightings.are_alike(src, dst, first, second):
                    self.every.append(self._clean(src, dst, own, first, second, beyond, by))
                    continue
                self.every.append(self._path(src, dst, own, first, second, beyond, by))

    # ------------------------------------------------------------------ questions

    def fate(self, frame: int) -> str:
        """What happened to the packet of a frame (a frame reference) on its way through the capture points.

        ``reached``: the last one has it, or its receiver acknowledged it. ``missing``: one does not have it,
        though it was capturing. ``corrupted``: one has it with a bit changed, so that its receiver drops it.
        ``unknown``: there is no further point, or that one may not have been capturing.
        """
        row = self._sightings.row_of(frame)
        return UNKNOWN if row < 0 else _FATES[int(self._fates[row])]

    def lost_between(self, frame: int) -> tuple[int, int] | None:
        """The capture points (files) between which the packet of a frame is missing; None if it is not."""
        row = self._sightings.row_of(frame)
        if row < 0 or self._fates[row] >= 0:
            return None
        first = int(self._lost_after[row])
        src, dst = self._sightings.ends_of(row)
        return next((p.first, p.second) for p in self.of(src, dst) if p.first == first)

    @cached_property
    def missed_shares(self) -> Mapping[int, float]:
        """By file, the largest share of the packets of a path that its capture missed, by the others."""
        shares: dict[int, float] = defaultdict(float)
        for path in self.every:
            for file, missed in ((path.first, path.only_second), (path.second, path.missed_second)):
                shares[file] = max(shares[file], missed / max(1, path.packets + path.only_second))
        return shares

    def of(self, src: str, dst: str) -> list[Path]:
        """The paths from one host to another."""
        return self._by_way.get((src, dst), [])

    @cached_property
    def _by_way(self) -> dict[tuple[str, str], list[Path]]:
        found: dict[tuple[str, str], list[Path]] = {}
        for path in self.every:
            found.setdefault((path.src, path.dst), []).append(path)
        return found

    def frames(self, path: Path, rows: Ints) -> list[int]:
        """The frame references of packets in the first capture of a path, or else in the second."""
        first, second = (self._sightings.frames[file][rows] for file in (path.first, path.second))
        return np.where(
            first > 0,
            first + (path.first << FRAME_BITS),
            second + (path.second << FRAME_BITS),
        ).tolist()

    def to_dict(self) -> list[dict[str, Any]]:
        """The JSON's ``paths``."""
        return [self._as_dict(path) for path in self.every]

    def _as_dict(self, path: Path) -> dict[str, Any]:
        def listed(rows: Ints) -> list[int | str]:
            return [frame_name(f, several=True) for f in self.frames(path, rows[:MAX_FRAMES])]

        return {
            "src": path.src,
            "dst": path.dst,
            "files": [path.first, path.second],
            "order_by": path.by,
            "packets": path.packets,
            "missing": path.missing,
            "overtaken": path.overtaken,
            "doubled": path.doubled,
            "at_least": path.at_least,
            "only_second": path.only_second,
            "missed_second": path.missed_second,
            "outside": path.outside,
            "outside_second": path.outside_second,
            "unrecorded": path.unrecorded,
            "corrupted": path.corrupted,
            **{f"missing_{name}": path.kinds.get(name, 0) for name in _KINDS},
            "missing_frames": listed(path.missing_rows),
            "overtaken_frames": listed(path.overtaken_rows),
            "only_second_frames": listed(path.only_second_rows),
            "connections": [c.to_dict() for c in path.connections[:MAX_FRAMES]],
        }

    # ------------------------------------------------------------------ one path

    def _path(
        self, src: str, dst: str, own: Rows, first: int, second: int, beyond: Sequence[int], by: str
    ) -> Path:
        seen = self._sightings.seen_ns
        passing = Passing.of(self._sightings, own, first, second)
        alone = passing.alone
        here, there = seen[first][alone], seen[second][alone]
        gone, new = here != UNSEEN, there != UNSEEN
        # Where a later point has it, this one's capture missed it.
        further = np.zeros(len(alone), np.bool_)
        for point in beyond:
            further |= seen[point][alone] != UNSEEN
        inside = self._inside(passing.here, passing.took, self._spans[second], here)
        inside_first = self._inside(passing.there, passing.took_back, self._spans[first], there)
        missed = gone & further
        missing = gone & ~further & inside
        doubled = new & self._doubled(own, alone, new, there, first, second)
        sent_before = missing.copy()
        arrived = delivered(self._sightings, self._connections, alone[missing], second)
        missed[sent_before] |= arrived
        missing[sent_before] &= ~arrived
        out, has_only = unrecorded(
            self._sightings, src, dst, alone, missing, second, arrived=bool(arrived.any())
        )
        missing = missing & ~out
        changed = self._corrupted(own, alone, missing, here, new & ~doubled, second, passing)
        missing[changed[0]] = False
        only = new & inside_first & ~doubled
        only[changed[1]] = False
        rows = alone[missing]
        if by != FILES:
            self._fates[rows] = -1
            self._lost_after[rows] = first
        if not beyond:
            for at in range(0, len(own), PIECE):
                piece = own[at : at + PIECE]
                self._fates[piece[self._sightings.frames[second][piece] != 0]] = _FATES.index(REACHED)
            self._fates[alone[missed & inside]] = _FATES.index(REACHED)
        self._fates[alone[changed[0]]] = self._fates[alone[changed[1]]] = _FATES.index(CORRUPTED)
        kind = np.where(self._sightings.qpn[rows] == _QP1, _MAD, _KIND[self._sightings.opcode[rows]])
        kinds = np.bincount(kind, minlength=_MAD + 1)
        return Path(
            src,
            dst,
            first,
            second,
            passing.both + int(gone.sum()),
            len(rows),
            len(passing.moved),
            int(doubled.sum()),
            int(only.sum()),
            int(missed.sum()),
            int((gone & ~missed & ~missing & ~out).sum()) - len(changed[0]),
            int((new & ~doubled & ~only).sum()) - len(changed[1]),
            len(changed[0]),
            by,
            rows,
            passing.moved,
            alone[only],
            {name: int(kinds[kind]) for name, kind in _KINDS.items()},
            self._of_connections(rows),
            _covered(passing.here, passing.took, self._spans[second]) if len(passing.alone) else _EVER,
            bool(_IS_UNANSWERED[self._sightings.opcode[rows]].any()),
            int(out.sum()),
            has_only,
            bool(doubled.any()) and self._are_alike(own, alone[doubled]),
        )

    def _are_alike(self, own: Rows, doubled: Ints) -> bool:
        """Whether nothing tells packets from others that were sent, copies that came twice aside."""
        rows = np.setdiff1d(own, doubled)
        alike = self._sightings.identity[rows[self._sightings.ip_id[rows] == 0]]
        return len(distinct(alike)) < len(alike)

    def _clean(
        self, src: str, dst: str, own: Rows, first: int, second: int, beyond: Sequence[int], by: str
    ) -> Path:
        """A path of which both points have all packets in the same order."""
        if not beyond:
            self._fates[own] = _FATES.index(REACHED)
        return Path(
            src,
            dst,
            first,
            second,
            packets=len(own),
            missing=0,
            overtaken=0,
            doubled=0,
            only_second=0,
            missed_second=0,
            outside=0,
            outside_second=0,
            corrupted=0,
            by=by,
            missing_rows=_NO_ROWS,
            overtaken_rows=_NO_ROWS,
            only_second_rows=_NO_ROWS,
            kinds=dict.fromkeys(_KINDS, 0),
            connections=(),
            covered=_EVER,
        )

    @staticmethod
    def _inside(
        here: tuple[int, int] | None, took: tuple[int, int], span: tuple[int, ...] | None, times: Ints
    ) -> Mask:
        """Whether the other capture was running when packets that are here at ``times`` passed it.

        It was if it has one sent before and one sent behind them, or other frames of before and after.

        Args:
            here: the first and the last time of the packets that both have; took: the shortest time and the
                99th percentile of what they were under way (negative if the other point comes first).
        """
        begun, end = _covered(here, took, span)
        inside: Mask = (times >= begun) & (times <= end)
        return inside

    def _doubled(self, own: Rows, alone: Ints, new: Mask, there: Ints, first: int, second: int) -> Mask:
        """Which packets that only the second point has are copies of one that both have.

        Args:
            own: all packets of the way; alone: those that one of the points has, at the second ``there``.
        """
        found = np.zeros(len(alone), np.bool_)
        extra = np.flatnonzero(new)
        if not len(extra):
            return found
        seen = self._sightings
        identity, ip_id = seen.identity[alone], seen.ip_id[alone]
        wanted = distinct(identity[extra])
        both = []
        for at in range(0, len(own), PIECE):
            piece = own[at : at + PIECE]
            piece = piece[np.isin(seen.identity[piece], wanted)]
            both.append(piece[(seen.frames[first][piece] != 0) & (seen.frames[second][piece] != 0)])
        twins = np.concatenate(both)
        of, times = seen.identity[twins], seen.seen_ns[second][twins]
        order = np.argsort(of, kind="stable")
        begins = starts(of[order])
        copies = np.split(times[order], begins[1:]) if len(begins) else []
        by_identity = dict(zip(of[order[begins]].tolist(), copies, strict=True))
        for place in extra.tolist():
            alike = by_identity.get(int(identity[place]))
            if alike is not None:
                nearest = int(np.abs(alike - there[place]).min())
                found[place] = bool(ip_id[place]) or nearest <= _DOUBLED_NS
        return found

    def _corrupted(
        self, own: Rows, alone: Ints, missing: Mask, here: Ints, new: Mask, second: int, passing: Passing
    ) -> tuple[Ints, Ints]:
        """Missing packets whose corrupted copies the second point has, and the copies: places in ``alone``.

        A copy with another address is of another direction, and so not in ``own``.
        """
        seen = self._sightings.seen_ns[second]
        gone, fresh = np.flatnonzero(missing), np.flatnonzero(new)
        if not len(gone):
            return gone, fresh[:0]
        places = np.searchsorted(own, self._strays)
        elsewhere = self._strays[own[np.minimum(places, len(own) - 1)] != self._strays]
        elsewhere = elsewhere[seen[elsewhere] != UNSEEN]
        rows = np.concatenate([alone[fresh], elsewhere])
        usual, late = passing.usual, passing.took[1] - passing.usual
        pairs = corrupted(self._sightings, alone[gone], here[gone], rows, seen[rows], usual, late)
        copies = [copy for _, copy in pairs if copy < len(fresh)]
        return gone[[place for place, _ in pairs]], fresh[copies]

    def _of_connections(self, rows: Ints) -> tuple[MissingOf, ...]:
        """How many of the packets each connection has, the most first."""
        if not len(rows):
            return ()
        numbers = self._sightings.sides_of(rows, self._connections)[0]
        counts = np.bincount(numbers[numbers >= 0])
        found = [MissingOf(int(n), int(counts[n])) for n in distinct(numbers[numbers >= 0])]
        return tuple(sorted(found, key=lambda c: (-c.missing, c.connection)))
