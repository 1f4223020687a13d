"""Traffic classes that sent nothing while pause frames for them were in effect."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocekit.findings.evidence import Evidence
    from rocekit.packets.pauses import Pause

#: A pause is in quanta of 512 bit times, and the link's speed is not in the capture: RoCE links have 10 Gb/s
#: or more, so a quantum is at most this.
_QUANTUM_NS: Final = 51.2
#: Pauses must cover at least so much of a silence.
_SHARE: Final = 0.75
#: Packets on their way behind a pause frame, and the frame's own delay.
_SLACK_NS: Final = 100_000


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


def paused_classes(evidence: Evidence, pauses: Sequence[Pause]) -> Iterator[PausedClass]:
    """The classes that were silent during one sender's pauses (its releases included)."""
    if evidence.observer is None or evidence.several:  # several captures have clocks of their own
        return
    effects: dict[frozenset[int], list[tuple[int, int]]] = {}
    for (host, dscp), spells in evidence.observer.silences.spells.items():
        own, by_tag = priorities_of(evidence, dscp)
        key = frozenset(own)
        if key not in effects:
            effects[key] = _in_effect(pauses, own)
        held = [spell for spell in spells if _is_covered(spell, effects[key])]
        if held:
            yield PausedClass(host, dscp, sorted(own), by_tag, held)


def _in_effect(pauses: Iterable[Pause], priorities: Iterable[int]) -> list[tuple[int, int]]:
    """When pauses of some priorities were in effect at most, in order."""
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
    return found


def _is_covered(spell: tuple[int, int], effects: list[tuple[int, int]]) -> bool:
    """Whether pauses were in effect for most of a silence, from its start on."""
    start, end = spell
    first = bisect_right(effects, (start, 1 << 62)) - 1
    covered, began = 0, False
    for begin, until in effects[max(0, first) :]:
        if begin >= end:
            break
        common = min(end, until) - max(start, begin)
        if common > 0:
            began = began or begin <= start + max(_SLACK_NS, (1 - _SHARE) * (end - start))
            covered += common
    return began and covered >= _SHARE * (end - start)
