"""Many alike steps of an explanation as one line: how many, which PSNs and frames, until when."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rocekit.explanation.event_steps import Step, event_words, frames_words
from rocekit.files.frame_names import FRAME_BITS
from rocekit.wire.words import duration, plural, psn_range, size

if TYPE_CHECKING:
    from rocekit.track.events import Event
    from rocekit.track.transfers import Transfer

#: So many steps fill a screen; only an explanation that has more is summed up.
SCREEN: Final = 24
#: So many alike steps stay single even then.
FEW: Final = 3

#: Packets that left a gap and filled it later are one kind of step, in which two events concern one packet.
_ORDER: Final = "arrived out of order"
_NOUNS: Final = {"response_hole": "response", "response_repeat": "response"}
_DURATION: Final = re.compile(r"([\d,]+(?:\.\d+)?) (ns|µs|ms|s)\b")
_UNITS: Final = {"ns": 1, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def filled_late(events: Iterable[Event]) -> set[int]:
    """The gaps (the ``id`` of each ``hole``) that packets filled which were not sent again."""
    events = list(events)
    late = sorted((e.psn, e.last_psn) for e in events if e.kind == "late")
    spans: list[tuple[int, int]] = []
    for first, last in late:
        if spans and first <= spans[-1][1] + 1:
            spans[-1] = spans[-1][0], max(last, spans[-1][1])
        else:
            spans.append((first, last))
    filled = set()
    for event in events:
        if event.kind == "hole":
            at = bisect_right(spans, event.psn, key=lambda span: span[0]) - 1
            if at >= 0 and event.last_psn <= spans[at][1]:
                filled.add(id(event))
    return filled


def summed_up(
    steps: Sequence[Step], transfer: Transfer, several: bool, *, origin_ns: int | None = None
) -> list[Step]:
    """The steps; of more than fill a screen, each kind of events that comes more than ``FEW`` times as one.

    A summed step stands where the first of its events stood.

    Args:
        origin_ns: where the times that are printed start; None: at the first step.
    """
    if len(steps) <= SCREEN:
        return list(steps)
    since_ns = steps[0].time_ns if origin_ns is None else origin_ns
    late = filled_late(transfer.events)
    kinds: dict[tuple[str, str], list[Event]] = {}
    names: list[tuple[str, str] | None] = []
    for step in steps:
        name = None if step.event is None else _kind(transfer, step.event, several, late)
        names.append(name)
        if name is not None and step.event is not None:
            kinds.setdefault(name, []).append(step.event)
    shown = []
    for step, name in zip(steps, names, strict=True):
        alike = [] if name is None else kinds[name]
        if len(alike) <= FEW:
            shown.append(step)
        elif alike[0] is step.event:
            shown.append(_one(transfer, alike, several, since_ns))
    return shown


def _kind(transfer: Transfer, event: Event, several: bool, late: set[int]) -> tuple[str, str]:
    """What alike events share; how long each waited may differ."""
    if event.kind == "late" or id(event) in late:
        return "late", _ORDER
    return event.kind, _DURATION.sub("…", event_words(transfer, event, several))


def _one(transfer: Transfer, events: list[Event], several: bool, origin_ns: int) -> Step:
    """Alike events as one step."""
    first, last = events[0], events[-1]
    where = psn_range(min(e.psn for e in events), max(e.last_psn for e in events))
    if first.kind in ("repeat", "response_repeat"):
        where += " again"
    words = [_counted(transfer, events, several)]
    if any(e.kind == "late" for e in events):
        words = [_late_words(events)]
    frames = min(e.frame for e in events), max(e.last_frame or e.frame for e in events)
    if frames[0] >> FRAME_BITS == frames[1] >> FRAME_BITS:  # frames of two captures have no range
        words.append(frames_words(*frames, several))
    if last.time_ns > first.time_ns:
        words.append(f"until +{duration(last.time_ns - origin_ns)}")
    return Step(first.time_ns, where, ", ".join(words), first.kind != "duplicate")


def _late_words(events: list[Event]) -> str:
    """How many packets were out of order, and by how much at most."""
    gaps = sorted((e for e in events if e.kind == "hole"), key=lambda e: e.psn)
    most = 0
    for event in events:
        if event.kind == "late":
            at = bisect_right(gaps, event.psn, key=lambda e: e.psn) - 1
            if at >= 0 and event.psn <= gaps[at].last_psn:
                most = max(most, event.time_ns - gaps[at].time_ns)
    delay = f", up to {duration(most)} behind the packet that overtook them" if most else ""
    return f"{plural(sum(e.count for e in events if e.kind == 'late'), 'packet')} {_ORDER}{delay}"


def _counted(transfer: Transfer, events: list[Event], several: bool) -> str:
    """Alike events in words, with their numbers."""
    times, kind = f"{len(events):,} times", events[0].kind
    words = _ranged([event_words(transfer, e, several) for e in events])
    packets = sum(e.count for e in events)
    if kind == "hole":
        return f"{times}: {plural(packets, 'packet')} {words}"
    if kind in _NOUNS:
        return f"{times}: {plural(packets, _NOUNS[kind])} {words}"
    if kind != "repeat":
        return f"{times}: {words}"
    if transfer.is_read:
        return f"{times}: READ request {words}"
    unseen = sum(e.first_sight for e in events)
    seen = f", {unseen:,} of them not in the capture before" if unseen else ""
    return f"{times}: {plural(packets, 'packet')}, {size(sum(e.bytes for e in events))} {words}{seen}"


def _ranged(texts: list[str]) -> str:
    """Texts that differ in durations only as one, each duration from its smallest to its largest."""
    found = [_DURATION.findall(text) for text in texts]
    spans = []
    for place in zip(*found, strict=True):
        by_size = sorted(place, key=lambda d: float(d[0].replace(",", "")) * _UNITS[d[1]])
        low, high = " ".join(by_size[0]), " ".join(by_size[-1])
        spans.append(low if low == high else f"{low} to {high}")
    each = iter(spans)
    return _DURATION.sub(lambda _: next(each), texts[0])
