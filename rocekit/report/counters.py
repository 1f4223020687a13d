"""Counters of devices in text: how much they went up, and what the packets say to that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rocekit.counters.comparison import AGREES, DIFFERS
from rocekit.counters.meanings import meaning_of
from rocekit.wire.text_table import Style, columns
from rocekit.wire.words import duration, moment

if TYPE_CHECKING:
    from rocekit.counters.comparison import CounterComparison
    from rocekit.machine.counters import CounterSnapshot


def counter_lines(
    comparisons: Sequence[CounterComparison], style: Style, width: int | None = None
) -> list[str]:
    """A table for each device of the counters that went up or ought to have, and what is odd about them."""
    lines: list[str] = []
    by_device: dict[tuple[str, str], list[CounterComparison]] = {}
    for comparison in comparisons:
        by_device.setdefault((comparison.host, str(comparison.place)), []).append(comparison)
    for (host, device), every in by_device.items():
        span = duration(every[0].to_ns - every[0].from_ns)
        head = style("Counters", "title") + f" of {device} on {host}, {span} between two snapshots"
        agreed = sum(c.verdict == AGREES for c in every)
        differing = [c for c in every if c.verdict == DIFFERS]
        shown = [c for c in every if c.matters]
        lines.append(f"{head}: {agreed} as the packets say, {len(differing)} not")
        if shown:
            rows = [("", "went up by", "in packets", ""), *map(_row, shown)]
            lines += columns(rows, right=frozenset({1, 2}), width=width)
        lines += [style(f"  {c.counter}: {c.words}", "warning") for c in differing]
        lines += [style(line, "dim") for line in _not_predicted(shown)]
    return lines


def _row(c: CounterComparison) -> tuple[str, str, str, str]:
    meaning = "" if c.meaning is None else c.meaning.words
    return c.counter, f"{c.went_up_by:,}", "" if c.seen is None else f"{c.seen:,}", meaning


def _not_predicted(comparisons: Sequence[CounterComparison]) -> list[str]:
    """The counters without a prediction that the packets might have given, by reason."""
    by_reason: dict[str, list[str]] = {}
    for c in comparisons:
        if c.predicted is None and c.meaning is not None and c.meaning.cause is not None:
            by_reason.setdefault(c.words.partition("not predicted: ")[2] or c.words, []).append(c.counter)
    return [f"  not predicted ({reason}): {', '.join(names)}" for reason, names in by_reason.items()]


def snapshot_lines(
    snapshot: CounterSnapshot, style: Style, *, every: bool, width: int | None = None
) -> list[str]:
    """The counters of a device or interface.

    Args:
        every: also those that are zero.
    """
    head = style(str(snapshot.place), "title") + f" on {snapshot.host}, {moment(snapshot.time_ns)}"
    rows = _groups(snapshot, snapshot.counts, every, width) or [style("  all are zero", "dim")]
    return [head, *rows, *_left_out(snapshot, style)]


def difference_lines(
    before: CounterSnapshot,
    after: CounterSnapshot,
    style: Style,
    *,
    every: bool,
    width: int | None = None,
) -> list[str]:
    """How much the counters went up between two snapshots.

    Args:
        every: also those that did not change.
    """
    span = duration(after.time_ns - before.time_ns)
    head = style(str(after.place), "title") + f" on {after.host}, {span} from {moment(before.time_ns)}"
    rows = _groups(after, after.since(before), every, width) or [style("  none changed", "dim")]
    return [head, *rows, *_left_out(after, style)]


def _groups(
    snapshot: CounterSnapshot, counts: Mapping[str, Mapping[str, int]], every: bool, width: int | None
) -> list[str]:
    rows = []
    for group, named in counts.items():
        for name, value in named.items():
            if value or every:
                meaning = meaning_of(snapshot.place.driver, group, name)
                rows.append((group, name, f"{value:,}", "" if meaning is None else meaning.words))
    return columns(rows, right=frozenset({2}), width=width, spare=(0,))


def _left_out(snapshot: CounterSnapshot, style: Style) -> list[str]:
    return [style(f"  left out: {reason}", "dim") for reason in snapshot.left_out]
