"""One capture that has packets twice, as mirrors of two ports give them: two capture points in one file.

A copy behind a router has a lower TTL; one from another port may have other MAC addresses, another VLAN or
another mirror session. Where most packets from one host to another come as such pairs, the file is used as
two captures. Of more than two places the outermost are used, and the copies between them are left out. Where
nothing tells the copies apart, all but the first are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.packets import Packets
from rocekit.packets.flow_numbers import MIXER
from rocekit.packets.identity import Whole, identities
from rocekit.points.overlapping import OVERLAP, overlapping
from rocekit.points.place_table import PlaceTable, mac_numbers
from rocekit.points.second_sights import at_both
from rocekit.points.twice import LEAST
from rocekit.wire import RNR_TIMER_US
from rocekit.wire.sorting import distinct, distinct_rows, starts
from rocekit.wire.text_table import safe
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.files.frames import FrameBatch

Ints = NDArray[np.int64]
Place = tuple[int, int, int, int]  #: hop limit, VLAN, encapsulation, MAC addresses (see ``mac_numbers``)
Way = tuple[str, str]

#: Places looked at of each direction.
_MOST_PLACES: Final = 8
#: So many of a hundred packets of a direction must be in places that go together.
_MOST: Final = 95
#: Of copies that nothing tells apart, ``LEAST`` packets one way and so many the other way: few ACKs suffice.
_LEAST_BACK: Final = 3
#: Copies that nothing tells apart come sooner than a requester repeats, and of nearly every packet.
_AT_ONCE_NS: Final = 1_000_000
_NEARLY_ALL: Final = 90
#: A requester that was told to wait sends again no sooner (9.7.5.2.8).
_SHORTEST_WAIT_NS: Final = min(RNR_TIMER_US) * 1_000
#: Of so many copies at most headers may differ: a capture may have a few packets of its own.
_FEW: Final = 0.01
#: Copies further apart are traffic of its own.
_NEAR_NS: Final = 100_000_000
_NEVER: Final = np.iinfo(np.int64).max
_NO_ROWS: Final[Ints] = np.empty(0, np.int64)


class Doubled(NamedTuple):
    """How a capture that has packets twice is used.

    Attributes:
        file: the capture.
        points: of each direction (source, destination) that has two places: the capture point of each place.
        packets: how many different packets these directions have; twice: those that are there twice.
        nearer: the hosts that the first point is nearer to than the second, and those of the second; empty
            where that is not the same for all directions.
        words: what tells the copies apart.
        dropped: frames of copies that are left out: nothing tells them apart, or they are at other places.
        elsewhere: how many of them are at other places than the two that are used.
        times: how often most packets are there where nothing tells their copies apart.
        varied: whether those copies differ in their places, and still make no two points.
        second: frames at the second of two places whose packets are at the first, too; only if asked for.
    """

    file: str
    points: Mapping[Way, Mapping[Place, int]]
    packets: int
    twice: int
    nearer: tuple[tuple[str, ...], tuple[str, ...]]
    words: str
    dropped: frozenset[int]
    elsewhere: int = 0
    times: int = 2
    varied: bool = False
    second: frozenset[int] = frozenset()

    @property
    def names(self) -> list[str]:
        """The names of the capture points."""
        if not self.points:
            return [self.file]
        file = "standard input" if self.file == "-" else self.file
        if not self.nearer[0]:
            return [f"{file} (point {n})" for n in (1, 2)]
        return [f"{file} (nearer to {_hosts(hosts)})" for hosts in self.nearer]

    def as_one_point(self) -> Doubled:
        """The same beside other captures: each packet once, at the first of its places."""
        return self._replace(points={}, dropped=self.dropped | self.second, second=frozenset())

    def line(self, where: str = "the capture") -> str:
        """What is said of it first."""
        every = (
            "Every packet is"
            if self.twice == self.packets
            else f"{self.twice:,} of {self.packets:,} packets are"
        )
        if not self.points and self.words:
            return f"{every} in {where} twice: {self.words}. The copies are left out."
        if not self.points:
            often, many = ("twice", "two") if self.times == 2 else (f"{self.times} times", str(self.times))
            if len(self.dropped) != self.twice * (self.times - 1):
                often, many = f"up to {self.times} times", "several"
            told = "and nothing tells the copies apart (same TTL, VLAN and MAC addresses)"
            if self.varied:
                told, many = "with TTLs, outer headers or MAC addresses that vary", "several"
            return (
                f"{every} in {where} {often}, {told}: probably captured at {many} interfaces. "
                "All but the first are left out."
            )
        first, second = (safe(PurePath(name).name) for name in self.names)
        left = ""
        if self.elsewhere:
            left = f" {plural(self.elsewhere, 'copy', 'copies')} at places between these left out."
        alike = len(self.dropped) - self.elsewhere
        if alike:
            left += f" {plural(alike, 'copy', 'copies')} more that nothing tells apart left out."
        used = f"Used as two capture points: {first} and {second}."
        return f"{every} in {where} twice: {self.words}. {used}{left}"

    def split(self, batch: FrameBatch, packets: Packets) -> Packets:
        """The packets of a batch, with the capture point as their file; without the copies to leave out."""
        if self.dropped and len(packets):
            packets = packets.where(~np.isin(packets.frame, np.fromiter(self.dropped, np.int64)))
        if not self.points or not len(packets):
            return packets
        points = np.zeros(len(packets), np.int32)
        table = PlaceTable(packets, [mac_numbers(batch, packets)])
        for src, dst, rows in _ways(packets):
            of_way = self.points.get((src, dst))
            if of_way is None:
                continue
            places, which = distinct_rows(table.of(rows))
            found = [of_way.get(_place(place), 0) for place in places]
            points[rows] = np.array(found, np.int32)[which]
        return packets.of_files(points)

    def to_dict(self) -> dict[str, object]:
        """As in the JSON's ``capture``."""
        return {
            "packets": self.packets,
            "twice": self.twice,
            "points": 2 if self.points else 1,
            "by": self.words,
        }


class DoublesSurvey:
    """Reads a capture's packets to see whether it has them twice.

    Args:
        beside: whether it is one of several captures, so that ``Doubled.second`` is wanted.
    """

    def __init__(self, file: str, *, beside: bool = False) -> None:
        self._file, self._beside = file, beside
        self._parts: list[Packets] = []
        self._macs: list[Ints] = []

    def feed(self, batch: FrameBatch, packets: Packets) -> None:
        if len(packets):
            self._parts.append(packets.detached())
            self._macs.append(mac_numbers(batch, packets))

    def found(self) -> Doubled | None:
        """How the capture is to be used; None if it has not most packets of any direction twice."""
        if not self._parts:
            return None
        packets = Packets.used_up(self._parts)
        table = PlaceTable(packets, self._macs)
        identity = identities(packets, Whole.of(packets))
        every_way = list(_ways(packets))
        pairs = self._of_ways(packets, every_way, table, identity)
        dropped: list[Ints] = []
        second: list[Ints] = []
        every = twice = elsewhere = 0
        ways = {(src, dst): rows for src, dst, rows in every_way}
        # What is in another VLAN or virtual network is other traffic, unless two places show it.
        scoped = (identity ^ packets.scope.astype(np.uint64)) * np.uint64(MIXER)
        alike = _alike({way: rows for way, rows in ways.items() if way not in pairs}, packets, scoped, pairs)
        times = max((copies.times for copies in alike.values()), default=2)
        varied = False
        for (src, dst), rows in ways.items():
            if (src, dst) in pairs:
                between = [place for pair in pairs[src, dst] for place in pair.others]
                for place in between:
                    dropped.append(packets.frame[rows[(table.of(rows) == np.array(place)).all(axis=1)]])
                    elsewhere += len(dropped[-1])
                if self._beside:
                    for pair in pairs[src, dst]:
                        first, behind = (
                            rows[(table.of(rows) == np.array(place)).all(axis=1)]
                            for place in (pair.before, pair.behind)
                        )
                        copied = at_both(identity, packets.time_ns, first, behind)
                        second.append(packets.frame[behind[copied]])
                every += sum(pair.packets for pair in pairs[src, dst])
                twice += sum(pair.both for pair in pairs[src, dst])
                continue
            copies = alike.get((src, dst))
            if copies is not None:
                own, first = rows[copies.rows], rows[copies.firsts]
                dropped.append(packets.frame[own])
                every += len(rows) - len(own)
                twice += copies.packets
                varied = varied or bool((table.of(own) != table.of(first)).any(axis=1).mean() > _FEW)
        if not pairs and not dropped:
            return self._overlapping(packets, identity)
        sides, is_same = _sides(pairs)
        points = {}
        for (src, dst), of_way in pairs.items():
            nearest = sides[src] if is_same else int(src > dst)
            points[src, dst] = {pair.before: nearest for pair in of_way} | {
                pair.behind: 1 - nearest for pair in of_way
            }
        nearer = (
            (tuple(host for host in sides if not sides[host]), tuple(host for host in sides if sides[host]))
            if is_same
            else ((), ())
        )
        most = max(
            (pair for of_way in pairs.values() for pair in of_way), key=lambda p: p.packets, default=None
        )
        words = "" if most is None else _words(most)
        left_out, later = (frozenset(np.concatenate([_NO_ROWS, *of]).tolist()) for of in (dropped, second))
        return Doubled(
            self._file, points, every, twice, nearer, words, left_out, elsewhere, times, varied, later
        )

    def _overlapping(self, packets: Packets, identity: NDArray[np.uint64]) -> Doubled | None:
        """The same of a file that was made of files that overlap."""
        copies = overlapping(packets, identity)
        if not len(copies):
            return None
        first = len(packets) - len(copies)
        stamped = (identity ^ packets.time_ns.view(np.uint64)) * np.uint64(MIXER)
        twice = len(distinct(stamped[copies]))
        left_out = frozenset(packets.frame[copies].tolist())
        return Doubled(self._file, {}, first, twice, ((), ()), OVERLAP, left_out)

    @staticmethod
    def _of_ways(
        packets: Packets,
        ways: Sequence[tuple[str, str, Ints]],
        table: PlaceTable,
        identity: NDArray[np.uint64],
    ) -> dict[Way, list[_Pair]]:
        """The pairs of places of each direction that has packets twice.

        Copies of both directions may be far apart only if those of one are near: else it is other traffic.
        """
        pairs: dict[Way, list[_Pair]] = {}
        near: set[Way] = set()
        for is_second in (False, True):
            for src, dst, rows in ways:
                if (src, dst) in near or is_second != ((dst, src) in near):
                    continue
                places, which = distinct_rows(table.of(rows))
                least = 1 if is_second else LEAST
                found = _pairs(identity[rows], which, places, packets.time_ns[rows], least)
                if found and (is_second or found[0].took_ns <= _NEAR_NS):
                    pairs[src, dst] = found
                    if not is_second:
                        near.add((src, dst))
        return pairs


class _Pair(NamedTuple):
    """Two places of a direction that have the same packets: ``before`` comes first on the way.

    Attributes:
        packets: those that either place has; both: those that both have.
        took_ns: the median time from the one place to the other.
        others: other places that have these packets.
    """

    before: Place
    behind: Place
    packets: int
    both: int
    took_ns: int
    others: tuple[Place, ...] = ()


class _Copies(NamedTuple):
    """Copies of a direction's packets, as indices.

    Attributes:
        rows: the copies; firsts: what each is a copy of.
        packets: how many different packets have copies; times: how often each is there.
    """

    rows: Ints
    firsts: Ints
    packets: int
    times: int


def _ways(packets: Packets) -> Iterable[tuple[str, str, Ints]]:
    """The directions of two hosts: source, destination, and the rows of their packets."""
    key = packets.src * (len(packets.addresses) + 1) + packets.dst
    order = np.argsort(key, kind="stable")
    first = starts(key[order])
    for rows in np.split(order, first[1:]):
        if len(rows):
            yield packets.addresses[packets.src[rows[0]]], packets.addresses[packets.dst[rows[0]]], rows


def _place(row: Ints) -> Place:
    hops, vlan, encapsulation, macs = row.tolist()
    return hops, vlan, encapsulation, macs


def _pairs(identity: NDArray[np.uint64], which: Ints, places: Ints, times: Ints, least: int) -> list[_Pair]:
    """The places of a direction that have most packets in common; none if there are other places, too.

    Args:
        least: so many of them; 1: any, not only most.
    """
    counts = np.bincount(which, minlength=len(places))
    usual = np.argsort(-counts, kind="stable")[:_MOST_PLACES].tolist()
    if len(usual) < 2:
        return []
    _, same = np.unique(identity, return_inverse=True)
    same = same.reshape(-1)
    of_place = {place: np.bincount(same[which == place], minlength=int(same.max()) + 1) for place in usual}
    common = {
        (a, b): int(np.minimum(of_place[a], of_place[b]).sum()) for a, b in combinations(sorted(usual), 2)
    }
    found: list[_Pair] = []
    taken: set[int] = set()
    for (a, b), n in sorted(common.items(), key=lambda pair: -pair[1]):
        few = n < least and not found
        if taken & {a, b} or few or not n or (least > 1 and not _is_most(n, (a, b), counts)):
            continue
        group = {
            c
            for pair, n_of in common.items()
            if _is_most(n_of, pair, counts) and {a, b} & set(pair)
            for c in pair
        } - taken | {a, b}
        pairs = [pair for pair in combinations(sorted(group), 2) if common[pair] * 10 >= n * 9]
        apart = [abs(float(np.median(_took(c, d, same, which, times)))) for c, d in pairs]
        a, b = pairs[int(np.argmax(apart))]  # the outermost
        n = common[a, b]
        took = _took(a, b, same, which, times)
        taken |= group
        before, behind = _in_order(a, b, places, took)
        every = int(np.maximum(of_place[a], of_place[b]).sum())
        took_ns = int(np.median(np.abs(took)))
        others = tuple(_place(places[c]) for c in sorted(group - {a, b}))
        found.append(_Pair(_place(places[before]), _place(places[behind]), every, n, took_ns, others))
    return found if sum(counts[place] for place in taken) * 100 >= _MOST * len(which) else []


def _is_most(n: int, pair: tuple[int, int], counts: Ints) -> bool:
    """Whether ``n`` packets are at least half of those that each of two places has."""
    return n * 2 >= max(counts[pair[0]], counts[pair[1]])


def _took(a: int, b: int, same: Ints, which: Ints, times: Ints) -> Ints:
    """How much later each packet was in place ``b`` than in place ``a``, when it was there first."""
    first = []
    for place in (a, b):
        earliest = np.full(int(same.max()) + 1, _NEVER)
        np.minimum.at(earliest, same[which == place], times[which == place])
        first.append(earliest)
    both = (first[0] != _NEVER) & (first[1] != _NEVER)
    took: Ints = first[1][both] - first[0][both]
    return took


def _in_order(a: int, b: int, places: Ints, took: Ints) -> tuple[int, int]:
    """Two places in the order in which packets pass them: by hop limits, else by times."""
    if places[a][0] != places[b][0]:
        return (a, b) if places[a][0] > places[b][0] else (b, a)
    return (a, b) if np.median(took) >= 0 else (b, a)


def _alike(
    ways: Mapping[Way, Ints], packets: Packets, identity: NDArray[np.uint64], apart: Iterable[Way]
) -> dict[Way, _Copies]:
    """Of each direction whose packets have copies that nothing tells apart: all but the first.

    A requester that goes back again and again sends each packet several times, too, but it does not double
    its responses. So the opposite direction must be doubled as well, or be in ``apart``; where it has few
    packets or none, each copy must come at once behind its packet, as no requester repeats.
    """
    found = {}
    for way, rows in ways.items():
        copies = _copies(identity[rows], packets.time_ns[rows])
        if copies is not None:
            found[way] = copies
    surely = {way for way, copies in found.items() if copies.packets >= LEAST}
    both = {(src, dst) for src, dst in surely if (dst, src) in surely or (dst, src) in apart}
    for way in surely - both:
        rows, back = ways[way], way[::-1]
        few = back in found or back not in ways
        if few and _are_behind_their_packets(packets.where(rows), found[way]):
            both |= {way, back}
    both |= {(src, dst) for src, dst in found if (dst, src) in apart}
    return {way: copies for way, copies in found.items() if way in both}


def _are_behind_their_packets(packets: Packets, copies: _Copies) -> bool:
    """Whether nearly every copy comes at once behind its packet, as what its requester sends again does not.

    Sooner than any wait, or right behind a packet with an IPv4 identification, which would differ.
    """
    at_once = packets.time_ns[copies.rows] - packets.time_ns[copies.firsts] < _SHORTEST_WAIT_NS
    behind = (copies.rows == copies.firsts + 1) & (packets.ip_id[copies.rows] != 0)
    return int(np.count_nonzero(at_once | behind)) * 100 >= _NEARLY_ALL * len(copies.rows)


def _copies(identity: NDArray[np.uint64], times: Ints) -> _Copies | None:
    """All but the first copies among a direction's packets, if nearly every one of many packets has them.

    One packet that is there again and again is one that a requester repeats, as after RNR NAKs.
    """
    order = np.lexsort((times, identity))
    value, when = identity[order], times[order]
    soon = np.append(False, (value[1:] == value[:-1]) & (np.diff(when) < _AT_ONCE_NS))
    begins = np.flatnonzero(~soon)
    runs = np.diff(np.append(begins, len(soon)))
    each = max(2, int(np.median(runs)))  # so often a packet is there; the next one is a packet of its own
    at = np.arange(len(soon))
    is_copy = soon & ((at - np.repeat(begins, runs)) % each != 0)
    first = order[np.maximum.accumulate(np.where(is_copy, 0, at))]
    copies, others = order[is_copy], len(identity) - int(is_copy.sum())
    twice = len(distinct(first[is_copy]))
    if twice < _LEAST_BACK or len(copies) * 100 < _NEARLY_ALL * others * (each - 1):
        return None
    return _Copies(copies, first[is_copy], twice, each)


def _sides(pairs: Iterable[Way]) -> tuple[dict[str, int], bool]:
    """By host: the point that it is nearer to; and whether that is the same for all directions."""
    peers: dict[str, list[str]] = defaultdict(list)
    for src, dst in pairs:
        peers[src].append(dst)
        peers[dst].append(src)
    sides: dict[str, int] = {}
    for host in sorted(peers):
        if host in sides:
            continue
        sides[host] = 0
        ahead = [host]
        while ahead:
            near = ahead.pop()
            for peer in peers[near]:
                if peer not in sides:
                    sides[peer] = 1 - sides[near]
                    ahead.append(peer)
                elif sides[peer] == sides[near]:
                    return sides, False
    return sides, True


def _words(pair: _Pair) -> str:
    """What tells the two places of a pair apart."""
    (hops, vlan, around, _), (hops_behind, vlan_behind, around_behind, _) = pair.before, pair.behind
    if hops != hops_behind:
        return f"before and behind a router (TTL {hops} and {hops_behind})"
    if vlan != vlan_behind:
        return f"{_vlan(vlan)} and {_vlan(vlan_behind)}"
    if around != around_behind:
        return "with different headers around it (a tunnel or a mirror session)"
    return "with different MAC addresses"


def _vlan(number: int) -> str:
    return "without a VLAN tag" if number < 0 else f"in VLAN {number}"


def _hosts(hosts: Sequence[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{hosts[0]} and {len(hosts) - 1:,} more"
