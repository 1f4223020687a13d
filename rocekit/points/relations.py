"""How several captures go together: the same traffic, one after the other, one direction each, or neither.

Captures with packets in common show the same traffic. Without one, nothing tells their clocks: they are taken
as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.points.sightings import Sightings

#: Two captures have packets in common, or both have some in common with a third.
SAME: Final = "same"
#: The one ends before the other starts, and they have a host in common.
CONSECUTIVE: Final = "consecutive"
#: Of the same hosts, each has packets of the one direction only.
DIRECTIONS: Final = "directions"
#: One has no RoCE packets.
EMPTY: Final = "empty"
#: Nothing of this.
DIFFERENT: Final = "different"
#: Of several captures: not all alike.
MIXED: Final = "mixed"
#: The text lists so many pairs of captures of each relation, and counts the others.
_SHOWN: Final = 10

Span = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Relation:
    """How two captures go together."""

    first: int
    second: int
    relation: str

    def to_dict(self) -> dict[str, Any]:
        return {"files": [self.first, self.second], "relation": self.relation}


@dataclass(frozen=True, slots=True)
class Relations:
    """How captures go together, each two of them.

    Attributes:
        order: the captures in the order of time.
        empty: captures without RoCE packets.
    """

    every: tuple[Relation, ...]
    order: tuple[int, ...]
    empty: tuple[int, ...]

    @classmethod
    def of(cls, sightings: Sightings, spans: Sequence[Span]) -> Relations:
        """The relations; ``spans``: the times of each capture's first and last frame, on its own clock."""
        numbers = range(len(sightings.names))
        ways = _ways(sightings)
        every = []
        for first, second in combinations(numbers, 2):
            same = sightings.alignments[first].group == sightings.alignments[second].group
            relation = SAME if same else _apart(ways[first], ways[second], spans[first], spans[second])
            every.append(Relation(first, second, relation))
        order = tuple(sorted(numbers, key=lambda f: spans[f] or (0, 0)))
        return cls(tuple(every), order, tuple(f for f in numbers if not ways[f]))

    @property
    def overall(self) -> str:
        """The relation of all of them."""
        found = {r.relation for r in self.every}
        return found.pop() if len(found) == 1 else DIFFERENT if DIFFERENT in found else MIXED

    def lines(self, names: Sequence[str]) -> list[str]:
        """What is to be said of captures that are not of the same traffic, a line each."""
        of: dict[str, list[Relation]] = {}
        for relation in self.every:
            of.setdefault(relation.relation, []).append(relation)
        found = []
        different, directions = of.get(DIFFERENT, []), of.get(DIRECTIONS, [])
        for r in different[:_SHOWN]:
            found.append(f"not the same traffic: no packet is in both {names[r.first]} and {names[r.second]}")
        if len(different) > _SHOWN:
            more = plural(len(different) - _SHOWN, "more pair")
            found.append(f"… and {more} of captures that are not of the same traffic")
        for r in directions[:_SHOWN]:
            both = f"{names[r.first]} and {names[r.second]}"
            found.append(
                f"one direction of the traffic each, so no packet is in both {both}; clocks taken as they are"
            )
        if len(directions) > _SHOWN:
            more = plural(len(directions) - _SHOWN, "more pair")
            found.append(f"… and {more} of captures that have one direction of the traffic each")
        found += [f"no RoCE packet in {names[file]}" for file in self.empty]
        if CONSECUTIVE in of:
            following = {f for r in of[CONSECUTIVE] for f in (r.first, r.second)}
            listed = ", ".join(names[f] for f in self.order if f in following)
            found.append(f"one after the other, taken as one stream in the order of time: {listed}")
        return found


def _ways(sightings: Sightings) -> list[set[tuple[str, str]]]:
    """By capture, the directions of which it has packets: source and destination."""
    found: list[set[tuple[str, str]]] = [set() for _ in sightings.names]
    for src, dst, _ in sightings.directions():
        for ways, count in zip(found, sightings.seen_by(src, dst), strict=True):
            if count:
                ways.add((src, dst))
    return found


def _apart(first: set[tuple[str, str]], second: set[tuple[str, str]], span: Span, other: Span) -> str:
    """The relation of two captures without a packet in common."""
    if not first or not second or span is None or other is None:
        return EMPTY
    hosts = {host for way in first for host in way} & {host for way in second for host in way}
    if hosts and (span[1] <= other[0] or other[1] <= span[0]):
        return CONSECUTIVE
    if not first & second and first & {(dst, src) for src, dst in second}:
        return DIRECTIONS
    return DIFFERENT
