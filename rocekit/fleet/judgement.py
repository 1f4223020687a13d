"""Which hosts lose packets, and which only see what another one loses.

A loss between two hosts is seen at both of them, so it blames neither. A host stands out if packets to it
(or from it) are lost with several peers, and this explains the losses better than the peers do: hosts that
explain most are taken first, and what they explain counts for no other. What is left of a single pair of
hosts stays open between the two and the path. Losses as they are spread over the whole fleet blame nobody:
a host must lose far more than the rest of the fleet, by a likelihood ratio of Poisson rates.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rocekit.fleet.query import connect, dicts
from rocekit.fleet.stream_tables import table_of
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.fleet.lake import Lake

#: How much better (log-likelihood) an explanation must be than none: 1,000 times, for each that is tried.
_NEED: Final = math.log(1_000)
#: The same for a host's losses without those with the worst peer: else they are that pair's matter.
_NEED_REST: Final = math.log(100)

TO, FROM = "to", "from"

WAYS: Final = """
WITH sent AS (
    SELECT src, dst, max(n) AS packets, count(*) AS points
    FROM (SELECT point, src, dst, sum(packets) AS n FROM rates GROUP BY ALL) GROUP BY ALL
), per_capture AS (
    SELECT point, capture, src, dst, sum(lost_packets) AS lost, sum(added_ns) AS added, count(*) AS troubles,
        min(time_ns) FILTER (lost_packets > 0) AS first_ns
    FROM troubles GROUP BY ALL
), per_point AS (
    SELECT point, src, dst, sum(lost) AS lost, sum(added) AS added, sum(troubles) AS troubles,
        min(first_ns) AS first_ns, arg_max(capture, (lost, capture)) AS capture
    FROM per_capture GROUP BY ALL
), lost AS (
    SELECT src, dst, max(lost) AS lost, max(added) AS added, max(troubles) AS troubles,
        min(first_ns) AS first_ns, arg_max(capture, (lost, capture)) AS capture
    FROM per_point GROUP BY ALL
), between_points AS (
    SELECT src, dst, max(missing) AS missing FROM paths WHERE order_by <> 'files' GROUP BY ALL
)
SELECT src, dst, packets, greatest(coalesce(lost, 0), coalesce(missing, 0)) AS lost_packets,
    coalesce(added, 0) AS added_ns, coalesce(troubles, 0) AS troubles, points, first_ns, capture
FROM sent LEFT JOIN lost USING (src, dst) LEFT JOIN between_points USING (src, dst)
ORDER BY src, dst
"""


class Way(NamedTuple):
    """What went from one host to another, and what of it was lost."""

    src: str
    dst: str
    packets: int
    lost: int
    first_ns: int | None = None


class SuspectHost(NamedTuple):
    """A host that stands out.

    Attributes:
        way: ``to`` or ``from``: where packets are lost.
        peers: with how many hosts it has traffic this way; lossy: with how many of them losses.
    """

    host: str
    way: str
    peers: int
    lossy: int
    packets: int
    lost: int
    first_ns: int | None

    @property
    def words(self) -> str:
        """What is known, and what follows probably."""
        share = 100 * self.lost / max(1, self.packets)
        return (
            f"{plural(self.lost, 'packet')} {self.way} {self.host} lost ({share:.2g} %), with {self.lossy:,} "
            f"of its {plural(self.peers, 'peer')}: probably at its NIC, cable or switch port"
        )


class FleetVerdict(NamedTuple):
    """The hosts that stand out, and the ways with losses that none of them explains."""

    suspects: list[SuspectHost]
    open: list[Way]


def judge(ways: Iterable[Way]) -> FleetVerdict:
    """Which hosts stand out.

    First every loss is explained: by hosts, then by single ways. Then explanations are given up, the weakest
    first, that are not far better than the losses of what is not explained.
    """
    every = sorted(ways)
    causes = _cover(every)
    covered = {id(way) for cause in causes for way in cause.lossy}
    causes += [_Cause("", "", (way,), (way,)) for way in every if way.lost and id(way) not in covered]
    hosts = {name for way in every for name in (way.src, way.dst)}
    need_host = _NEED + math.log(max(1, 2 * len(hosts)))
    need_way = _NEED + math.log(max(1, len(every)))
    while True:
        explained = {id(way) for cause in causes for way in cause.every}
        rest = [way for way in every if id(way) not in explained]
        lost, packets = sum(w.lost for w in rest), sum(w.packets for w in rest)
        weak = []
        for cause in causes:
            gain = _gain(cause.lost, cause.packets, lost, packets)
            fails = gain < (need_host if cause.host else need_way)
            if cause.host and not fails:
                worst = max(cause.lossy, key=lambda w: w.lost)
                others = _gain(cause.lost - worst.lost, cause.packets - worst.packets, lost, packets)
                fails = others < _NEED_REST
            if fails:
                weak.append((gain, cause.lost / max(1, cause.packets), cause))
        if not weak:
            break
        weak.sort(key=lambda one: (*one[:2], one[2].host, one[2].way, one[2].every[0]))
        given_up = [cause for *_, cause in weak[: (len(weak) + 1) // 2]]
        causes = [cause for cause in causes if not any(cause is one for one in given_up)]
        causes += [_Cause("", "", (way,), (way,)) for one in given_up if one.host for way in one.lossy]
    suspects = sorted((c.suspect for c in causes if c.host), key=lambda s: (-s.lost, s))
    return FleetVerdict(
        suspects, sorted((c.every[0] for c in causes if not c.host), key=lambda w: (-w.lost, w))
    )


class _Cause(NamedTuple):
    """An explanation of losses: a host, or, without one, a way by itself."""

    host: str
    way: str
    every: tuple[Way, ...]
    lossy: tuple[Way, ...]

    @property
    def lost(self) -> int:
        return sum(w.lost for w in self.lossy)

    @property
    def packets(self) -> int:
        return sum(w.packets for w in self.every)

    @property
    def suspect(self) -> SuspectHost:
        first = min((w.first_ns for w in self.lossy if w.first_ns is not None), default=None)
        counts = len(self.every), len(self.lossy), self.packets, self.lost
        return SuspectHost(self.host, self.way, *counts, first)


def _cover(ways: Sequence[Way]) -> list[_Cause]:
    """Hosts that explain losses with several peers, those that explain most ways first."""
    of: dict[tuple[str, str], list[Way]] = defaultdict(list)
    for way in ways:
        of[way.dst, TO].append(way)
        of[way.src, FROM].append(way)
    left = {key: {id(w) for w in own if w.lost} for key, own in of.items()}
    lost = {id(w): w.lost for w in ways}
    found: list[_Cause] = []
    queue = [(-len(own), -sum(lost[w] for w in own), key) for key, own in left.items() if len(own) > 1]
    heapq.heapify(queue)
    while queue:
        count, total, key = heapq.heappop(queue)
        own = left[key]
        now = (-len(own), -sum(lost[w] for w in own), key)
        if len(own) < 2 or 2 * len(own) < len(of[key]):
            continue
        if now != (count, total, key):
            heapq.heappush(queue, now)  # another host has explained some of it
            continue
        lossy = tuple(w for w in of[key] if id(w) in own)
        # Ways that another host explains are no measure of this one.
        clean = tuple(w for w in of[key] if not w.lost)
        found.append(_Cause(*key, (*lossy, *clean), lossy))
        for way in lossy:
            left[way.dst, TO].discard(id(way))
            left[way.src, FROM].discard(id(way))
    return found


def _gain(lost: int, packets: int, other_lost: int, other_packets: int) -> float:
    """By how much a rate of their own explains losses better than the rate of the others (log-likelihood).

    0 where the losses are no more than the others'.
    """
    if lost <= 0 or packets <= 0 or other_packets <= 0:
        return 0.0
    both = (lost + other_lost) / (packets + other_packets)
    if lost / packets <= both:
        return 0.0
    own = lost * math.log(lost / packets / both)
    other = other_lost * math.log(other_lost / other_packets / both) if other_lost else 0.0
    return own + other


def summarize(lake: Lake) -> FleetVerdict:
    """Judge a LAKE, and write its tables ``ways``, ``hosts`` and ``links``.

    Raises:
        OSError: they cannot be written.
    """
    rows = dicts(connect(lake), WAYS)
    ways = [Way(r["src"], r["dst"], int(r["packets"]), int(r["lost_packets"]), r["first_ns"]) for r in rows]
    verdict = judge(ways)
    lake.replace("ways", table_of("ways", _columns("ways", rows), ""))
    hosts = [
        {
            "host": s.host,
            "way": s.way,
            "peers": s.peers,
            "lossy_peers": s.lossy,
            "packets": s.packets,
            "lost_packets": s.lost,
            "first_ns": s.first_ns,
            "words": s.words,
        }
        for s in verdict.suspects
    ]
    lake.replace("hosts", table_of("hosts", _columns("hosts", hosts), ""))
    links = [
        {**w._asdict(), "lost_packets": w.lost, "words": _open_words(w)}
        for w in verdict.open
    ]  # fmt: skip
    lake.replace("links", table_of("links", _columns("links", links), ""))
    return verdict


def _open_words(way: Way) -> str:
    return (
        f"{plural(way.lost, 'packet')} from {way.src} to {way.dst} lost, and no host that stands out "
        "explains it: open whether at one of the two or on the path between them"
    )


def _columns(table: str, rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    from rocekit.fleet.schema import TABLES

    return {name: [row[name] for row in rows] for name in TABLES[table]}
