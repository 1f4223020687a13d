"""ICMP errors about two hosts' packets, by time: there may be very many, and as many silences that ask."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocekit.packets.witnesses.icmp import IcmpError

#: Sources and frames that are named.
_NAMED: Final = 16


class _Part(NamedTuple):
    """Some of the errors: their kinds, sources in order, and places in order of the capture."""

    kinds: frozenset[str]
    sources: tuple[str, ...]
    places: tuple[int, ...]


class ErrorsInTime:
    """The errors about two hosts. Aligned parts of 1, 2, 4, … are summed up once, when asked for."""

    def __init__(self, errors: Sequence[IcmpError]) -> None:
        self._errors = errors
        self._in_time = sorted(range(len(errors)), key=lambda place: errors[place].time_ns)
        self._times = [errors[place].time_ns for place in self._in_time]
        self._parts: dict[tuple[int, int], _Part] = {}

    def between(self, start_ns: int, end_ns: int) -> dict[str, Any] | None:
        """Those between two times, as evidence; None: there are none."""
        at, end = bisect_left(self._times, start_ns), bisect_right(self._times, end_ns)
        if at >= end:
            return None
        parts = []
        while at < end:
            level = min((at & -at or end).bit_length(), (end - at).bit_length()) - 1
            parts.append(self._part(level, at >> level))
            at += 1 << level
        found = _joined(parts)
        return {
            "kinds": sorted(found.kinds),
            "sources": list(found.sources),
            "frames": [self._errors[place].frame for place in found.places],
        }

    def _part(self, level: int, number: int) -> _Part:
        """The errors from ``number`` × 2^``level`` on, so many as 2^``level``."""
        known = self._parts.get((level, number))
        if known is None:
            if level:
                known = _joined([self._part(level - 1, 2 * number), self._part(level - 1, 2 * number + 1)])
            else:
                place = self._in_time[number]
                error = self._errors[place]
                known = _Part(frozenset((error.kind,)), (error.source,), (place,))
            self._parts[level, number] = known
        return known


def _joined(parts: Iterable[_Part]) -> _Part:
    kinds, sources, places = zip(*parts, strict=True)
    return _Part(
        frozenset().union(*kinds),
        tuple(sorted(set().union(*sources))[:_NAMED]),
        tuple(sorted(place for own in places for place in own)[:_NAMED]),
    )
