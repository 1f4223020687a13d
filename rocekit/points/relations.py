"""How several captures go together: the same traffic, one after the other, one direction each, or neither.

Captures with packets in common show the same traffic. Without one, nothing tells their clocks: they are taken
as they are. For each capture, those that it has something in common with are the bits of a number, so that
all relations are counted without a look at each two captures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocekit.machine.limits import CAPTURE_PAIRS, limit, met_dicts
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
Way = tuple[str, str]
"""Source and destination."""
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Relation:
    """How two captures go together."""

    first: int
    second: int
    relation: str

    def to_dict(self) -> dict[str, Any]:
        return {"files": [self.first, self.second], "relation": self.relation}


class Relations:
    """How captures go together, each two of them.

    Attributes:
        order: the captures in the order of time.
        empty: captures without RoCE packets.
        counts: how many pairs of captures have each relation.
    """

    def __init__(self, groups: Sequence[int], ways: Sequence[set[Way]], spans: Sequence[Span]) -> None:
        numbers = range(len(groups))
        self.order = tuple(sorted(numbers, key=lambda f: spans[f] or (0, 0)))
        self.empty = tuple(f for f in numbers if not ways[f])
        self._of = _later_ones(groups, ways, spans)
        self.counts = Counter[str]()
        for later in self._of:
            self.counts.update({relation: n for relation, ones in later.items() if (n := ones.bit_count())})

    @classmethod
    def of(cls, sightings: Sightings, spans: Sequence[Span]) -> Relations:
        """The relations; ``spans``: the times of each capture's first and last frame, on its own clock."""
        return cls([alignment.group for alignment in sightings.alignments], _ways(sightings), spans)

    @property
    def overall(self) -> str:
        """The relation of all of them."""
        if len(self.counts) == 1:
            return next(iter(self.counts))
        return DIFFERENT if DIFFERENT in self.counts else MIXED

    @property
    def are_all_listed(self) -> bool:
        """Whether ``every`` has each two captures: as many as ``capture-pairs`` allows."""
        return self.counts.total() <= limit(CAPTURE_PAIRS)

    @cached_property
    def every(self) -> tuple[Relation, ...]:
        """The relation of each two captures; of more than ``capture-pairs``, of the nearest in time."""
        count = len(self._of)
        if self.are_all_listed:
            return tuple(self._between(a, b) for a in range(count) for b in range(a + 1, count))
        near = (
            sorted((self.order[place], self.order[place + apart]))
            for apart in range(1, count)
            for place in range(count - apart)
        )
        return tuple(self._between(a, b) for a, b in sorted(islice(near, limit(CAPTURE_PAIRS))))

    def _between(self, first: int, second: int) -> Relation:
        bit = 1 << second
        relation = next(relation for relation, ones in self._of[first].items() if ones & bit)
        return Relation(first, second, relation)

    def _pairs(self, relation: str) -> Iterator[tuple[int, int]]:
        """The pairs of captures with this relation."""
        for first, later in enumerate(self._of):
            for second in _bits(later[relation]):
                yield first, second

    def to_dict(self, limits_met: Set[str]) -> dict[str, Any]:
        """The JSON's keys; ``limits_met``: of the analysis, to which this list may add its own."""
        listed = [relation.to_dict() for relation in self.every]
        met = limits_met if self.are_all_listed else limits_met | {CAPTURE_PAIRS}
        return {"relation": self.overall, "relations": listed, "limits_met": met_dicts(met)}

    def lines(self, names: Sequence[str]) -> list[str]:
        """What is to be said of captures that are not of the same traffic, a line each."""
        found = []
        for a, b in islice(self._pairs(DIFFERENT), _SHOWN):
            found.append(f"not the same traffic: no packet is in both {names[a]} and {names[b]}")
        if (left := self.counts[DIFFERENT] - _SHOWN) > 0:
            found.append(f"… and {plural(left, 'more pair')} of captures that are not of the same traffic")
        for a, b in islice(self._pairs(DIRECTIONS), _SHOWN):
            both = f"{names[a]} and {names[b]}"
            found.append(
                f"one direction of the traffic each, so no packet is in both {both}; clocks taken as they are"
            )
        if (left := self.counts[DIRECTIONS] - _SHOWN) > 0:
            more = plural(left, "more pair")
            found.append(f"… and {more} of captures that have one direction of the traffic each")
        found += [f"no RoCE packet in {names[file]}" for file in self.empty]
        if self.counts[CONSECUTIVE]:
            following = _any(
                1 << a | later[CONSECUTIVE] for a, later in enumerate(self._of) if later[CONSECUTIVE]
            )
            listed = ", ".join(names[f] for f in self.order if following >> f & 1)
            found.append(f"one after the other, taken as one stream in the order of time: {listed}")
        return found


def _ways(sightings: Sightings) -> list[set[Way]]:
    """By capture, the directions of which it has packets: source and destination."""
    found: list[set[Way]] = [set() for _ in sightings.names]
    for src, dst, _ in sightings.directions():
        for ways, count in zip(found, sightings.seen_by(src, dst), strict=True):
            if count:
                ways.add((src, dst))
    return found


def _later_ones(
    groups: Sequence[int], ways: Sequence[set[Way]], spans: Sequence[Span]
) -> list[dict[str, int]]:
    """For each capture, by relation, the captures of higher numbers that it has this relation to, as bits."""
    hosts = [{host for way in here for host in way} for here in ways]
    of_group, of_way, of_host = _holders([g] for g in groups), _holders(ways), _holders(hosts)
    before, behind = _apart_in_time(spans)
    empty = _any(1 << f for f, here in enumerate(ways) if not here or spans[f] is None)
    whole, found = (1 << len(groups)) - 1, []
    for number, here in enumerate(ways):
        later = whole >> number + 1 << number + 1
        same = later & of_group[groups[number]]
        left = later & ~same
        none = left if empty >> number & 1 else left & empty
        left &= ~none
        following = left & _any(of_host[host] for host in hosts[number]) & (before[number] | behind[number])
        left &= ~following
        shared = _any(of_way[way] for way in here)
        opposite = _any(of_way.get((dst, src), 0) for src, dst in here)
        directions = left & opposite & ~shared
        relations = {SAME: same, EMPTY: none, CONSECUTIVE: following, DIRECTIONS: directions}
        found.append(relations | {DIFFERENT: left & ~directions})
    return found


def _holders(every: Iterable[Iterable[_Key]]) -> Mapping[_Key, int]:
    """Which captures have something, as bits."""
    found: dict[_Key, int] = {}
    for number, held in enumerate(every):
        bit = 1 << number
        for key in held:
            found[key] = found.get(key, 0) | bit
    return found


def _apart_in_time(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """For each capture, those that end before it starts, and those that start after its end, as bits."""
    before, behind = [0] * len(spans), [0] * len(spans)
    known = [(span[0], span[1], number) for number, span in enumerate(spans) if span is not None]
    ends, ended, at = sorted((last, number) for _, last, number in known), 0, 0
    for first, _, number in sorted(known):
        while at < len(ends) and ends[at][0] <= first:
            ended |= 1 << ends[at][1]
            at += 1
        before[number] = ended & ~(1 << number)
    starts, started, at = sorted(((f, n) for f, _, n in known), reverse=True), 0, 0
    for last, number in sorted(((last, n) for _, last, n in known), reverse=True):
        while at < len(starts) and starts[at][0] >= last:
            started |= 1 << starts[at][1]
            at += 1
        behind[number] = started & ~(1 << number)
    return before, behind


def _any(every: Iterable[int]) -> int:
    """The bits that any of these has."""
    found = 0
    for bits in every:
        found |= bits
    return found


def _bits(number: int) -> Iterator[int]:
    """The places of a number's bits, from the lowest."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
