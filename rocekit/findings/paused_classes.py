"""Traffic classes that sent nothing while pause frames for them were in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocekit.findings.finding import MAX_LISTED
from rocekit.machine.limits import PAUSE_LOOKS, limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.packets.pauses import Pause

#: A pause is in quanta of 512 bit times, and the link's speed is not in the capture: RoCE links have 10 Gb/s
#: or more, so a quantum is at most this.
_QUANTUM_NS: Final = 51.2
#: Pauses must cover at least so much of a silence.
_SHARE: Final = 0.75
#: Packets on their way behind a pause frame, and the frame's own delay.
_SLACK_NS: Final = 100_000
#: Times of today as floating-point numbers are this near, with room to spare.
_ROUNDED_NS: Final = 1_000

#: Silences that each sender's pauses are compared with on average, beside the limit ``PAUSE_LOOKS`` for all.
_LOOKS: Final = 64

Column = NDArray[np.int64]


class PausedClass(NamedTuple):
    """A class of a host that was silent while pauses of its priority were in effect.

    Attributes:
        by_tag: whether VLAN tags show its priority; else it is DSCP / 8, as switches have it by default.
        spells: (start, end) of each silence.
    """

    host: str
    dscp: int
    priorities: list[int]
    by_tag: bool
    spells: list[tuple[int, int]]

    @property
    def longest_ns(self) -> int:
        return max(end - start for start, end in self.spells)

    def to_dict(self) -> dict[str, Any]:
        start, end = max(self.spells, key=lambda s: s[1] - s[0])
        return {
            "host": self.host,
            "dscp": self.dscp,
            "priorities": self.priorities,
            "priority_by": "VLAN tag" if self.by_tag else "DSCP / 8",
            "silences": len(self.spells),
            "longest_ns": end - start,
            "longest_from_ns": start,
        }


def priorities_of(evidence: Evidence, dscp: int) -> tuple[set[int], bool]:
    """The priorities of a DSCP, and whether VLAN tags show them."""
    tagged = evidence.tagged_priorities.get(dscp)
    return ({dscp >> 3}, False) if tagged is None else (tagged, True)


class HeldClasses(NamedTuple):
    """The classes that were silent during one sender's pauses.

    Attributes:
        longest: those with the longest silences, up to ``MAX_LISTED``.
        by_dscp: whether the priority of any of them is an eighth of its DSCP.
        several_hosts: whether they are of several hosts.
    """

    longest: list[PausedClass]
    by_dscp: bool
    several_hosts: bool


class SilentClasses:
    """The silences of all classes, in arrays: there may be very many senders of pauses, too."""

    def __init__(self, evidence: Evidence) -> None:
        silences = None if evidence.observer is None or evidence.several else evidence.observer.silences
        # Several captures have clocks of their own.
        spells = {} if silences is None else silences.spells
        self._classes = [(host, dscp, *priorities_of(evidence, dscp)) for host, dscp in spells]
        hosts: dict[str, int] = {}
        self._host = np.array([hosts.setdefault(host, len(hosts)) for host, *_ in self._classes], np.int64)
        self._by_tag = np.array([by_tag for *_, by_tag in self._classes], np.bool_)
        self._class = np.repeat(np.arange(len(spells)), [len(own) for own in spells.values()])
        self._spells = np.array([spell for own in spells.values() for spell in own], np.int64).reshape(-1, 2)
        of_key: dict[frozenset[int], list[int]] = {}
        for number, (_, _, own, _) in enumerate(self._classes):
            of_key.setdefault(frozenset(own), []).append(number)
        by_start = np.argsort(self._spells[:, 0], kind="stable")
        keys = np.zeros(len(self._classes), np.int64)
        for key, numbers in enumerate(of_key.values()):
            keys[numbers] = key
        key_of = keys[self._class[by_start]]
        self._rows_of = {own: by_start[key_of == key] for key, own in enumerate(of_key)}
        self._starts_of = {own: self._spells[rows, 0] for own, rows in self._rows_of.items()}
        self._looks = limit(PAUSE_LOOKS)
        self._met = evidence.limits_met

    def during(self, pauses: Sequence[Pause]) -> HeldClasses:
        """Those that were silent during one sender's pauses (its releases included).

        None where a limit on looks is met: where all hosts are silent at once, each sender's pauses are about
        the silences of all.
        """
        effects = {own: spans for own in self._rows_of if (spans := _in_effect(pauses, own))}
        parts = {own: self._parts(own, in_effect) for own, in_effect in effects.items()}
        looks = sum(int(np.maximum(high - low, 0).sum()) for low, high in parts.values())
        if looks > _LOOKS and self._looks < 0:  # one sender may be compared with all silences there are
            self._met.add(PAUSE_LOOKS)
            return HeldClasses([], by_dscp=False, several_hosts=False)
        self._looks += _LOOKS - looks
        found = [self._held(own, in_effect, *parts[own]) for own, in_effect in effects.items()]
        rows = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
        if not len(rows):
            return HeldClasses([], by_dscp=False, several_hosts=False)
        lengths = self._spells[rows, 1] - self._spells[rows, 0]
        first = np.flatnonzero(np.diff(self._class[rows], prepend=-1))
        held = self._class[rows[first]]
        longest = np.argsort(-np.maximum.reduceat(lengths, first), kind="stable")[:MAX_LISTED]
        ends = np.append(first[1:], len(rows))
        shown = []
        for at in longest.tolist():
            host, dscp, own, by_tag = self._classes[int(held[at])]
            spells = [(start, end) for start, end in self._spells[rows[first[at] : ends[at]]].tolist()]
            shown.append(PausedClass(host, dscp, sorted(own), by_tag, spells))
        hosts = self._host[held]
        return HeldClasses(shown, not self._by_tag[held].all(), bool((hosts != hosts[0]).any()))

    def _parts(self, own: frozenset[int], effects: list[tuple[int, int]]) -> tuple[Column, Column]:
        """Where the silences stand that each pause may have most of: the first and one past the last.

        What is held has at least _SHARE of it in the pauses, so it starts within one or not long before it.
        """
        begin, until = np.array(effects, np.int64).T
        before = int((until - begin).sum() * (1 - _SHARE) / _SHARE)
        low = np.searchsorted(self._starts_of[own], begin - max(_SLACK_NS, before) - _ROUNDED_NS)
        high = np.searchsorted(self._starts_of[own], until)
        low[1:] = np.maximum(low[1:], high[:-1])
        return low, high

    def _held(self, own: frozenset[int], effects: list[tuple[int, int]], low: Column, high: Column) -> Column:
        """The silences of classes of some priorities for most of which pauses were in effect, from the start.

        ``low``, ``high``: see :meth:`_parts`.
        """
        begin, until = np.array(effects, np.int64).T
        passed = np.append(0, np.cumsum(until - begin))
        near = np.concatenate(
            [self._rows_of[own][a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True) if a < b]
            or [low[:0]]
        )
        start, end = self._spells[near].T
        # The first pause with a part of the silence, and the first one behind it.
        first, behind = np.searchsorted(until, start, "right"), np.searchsorted(begin, end)
        some = first < behind
        near, start, end, first, behind = (x[some] for x in (near, start, end, first, behind))
        covered = passed[behind] - passed[first]
        covered -= np.maximum(start - begin[first], 0) + np.maximum(until[behind - 1] - end, 0)
        latest = np.floor(start + np.maximum(_SLACK_NS, (1 - _SHARE) * (end - start))).astype(np.int64)
        held: Column = near[(begin[first] <= latest) & (covered >= _SHARE * (end - start))]
        return held


def _in_effect(pauses: Iterable[Pause], priorities: Iterable[int]) -> list[tuple[int, int]]:
    """When pauses of some priorities were in effect at most, in order; they do not overlap."""
    found: list[tuple[int, int]] = []
    for pause in sorted(pauses, key=lambda p: p.time_ns):
        at = pause.time_ns
        start, end = found[-1] if found else (at, -1)
        quanta = max((pause.times[priority] for priority in priorities), default=-1)
        if quanta > 0:
            until = at + round(quanta * _QUANTUM_NS)
            if at <= end:
                found[-1] = (start, until)
            else:
                found.append((at, until))
        elif quanta == 0 and at < end:
            found[-1] = (start, at)
    return [(start, end) for start, end in found if start < end]
