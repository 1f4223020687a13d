"""Numbers for people: durations, sizes, PSNs, QPNs, each written in one way everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rocekit.wire.psn import wire_psn


def duration(ns: int | float) -> str:
    """A time with four digits: ``412.0 µs``, ``1.070 s``; without decimals where it has none: ``640 µs``."""
    span = abs(ns)
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)):
        # In the next unit as soon as rounding would give 1,000 of this one; most are far from that.
        rough = span / size
        if rough < 999 or (rough < 1000 and round(rough, 1) < 1000) or unit == "s":
            break
    value = ns / size
    whole = ns % size == 0 or span >= 1000 * size
    decimals = 0 if whole else 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{decimals}f} {unit}"


def size(count: int) -> str:
    """``65,536 bytes``."""
    return f"{count:,} byte{'' if count == 1 else 's'}"


def short_size(count: int) -> str:
    """``64.0 KiB``; exact below 10,000."""
    if count < 10_000:
        return f"{count:,} B"
    value, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if value >= 1024:
            value, unit = value / 1024, larger
    return f"{value:,.1f} {unit}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 packet``, ``2 packets``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def qpn(number: int | None) -> str:
    """``QP 0x11``; ``QP ?`` if it is unknown."""
    return "QP ?" if number is None else f"QP {number:#x}"


def end(place: dict[str, object]) -> str:
    """``10.9.0.1 QP 0x11``."""
    number = place["qpn"]
    return f"{place['ip'] or '?'} {qpn(number if isinstance(number, int) else None)}"


def moment(time_ns: int) -> str:
    """UTC with microseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1000:06d} UTC"


def psn_range(first: int, last: int) -> str:
    """``PSN 7`` or ``PSN 7–12``, of unwrapped PSNs."""
    return f"PSN {wire_psn(first)}" if first == last else f"PSN {wire_psn(first)}–{wire_psn(last)}"


def number_ranges(numbers: Iterable[int]) -> str:
    """``0–2, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in runs)
