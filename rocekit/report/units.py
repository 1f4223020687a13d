"""Numbers for people: durations, sizes, QPNs, in few characters and one way everywhere."""

from __future__ import annotations

from datetime import UTC, datetime


def duration(ns: int | float) -> str:
    """``412.0 µs``, ``3.21 ms``, ``1.50 s``: microseconds below 10 ms."""
    size = abs(ns)
    if size < 10_000_000:
        return f"{ns / 1e3:,.1f} µs"
    if size < 10_000_000_000:
        return f"{ns / 1e6:,.2f} ms"
    return f"{ns / 1e9:,.2f} s"


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
    """``QP 0x11``; a QPN that nothing reveals is ``QP ?``."""
    return "QP ?" if number is None else f"QP {number:#x}"


def end(place: dict[str, object]) -> str:
    """``10.9.0.1 QP 0x11``."""
    number = place["qpn"]
    return f"{place['ip'] or '?'} {qpn(number if isinstance(number, int) else None)}"


def moment(time_ns: int) -> str:
    """UTC with microseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1000:06d} UTC"
