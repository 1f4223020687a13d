"""``rocekit stats``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, journal_option
from rocekit.commands.options import captures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocekit.explanation.statistics import FlowStatistics, Statistics
    from rocekit.flows.spread import Spread
    from rocekit.points.sightings import OneWay


@click.command()
@captures
@journal_option
@format_option
def command(files: tuple[Path, ...], journal: tuple[Path, ...], output: str) -> None:
    """Print counts and times of flows: round trips, timeouts, NAK reaction, RNR waits, CNPs, CM handshakes.

    Counts have the names of the Open Traffic Generator's RoCE v2 results.

    \b
    Example:
      rocekit stats x.pcapng
      rocekit stats x.pcapng --format json
    """
    from rocekit.commands.screen import show
    from rocekit.commands.shared import emit, fail_on_damage, load, not_judged

    analysis = load(files, journal)
    counted = analysis.statistics()
    if output == "json":
        emit(counted.to_dict() | {"capture": analysis.capture.to_dict()})
    else:
        lines = not_judged(analysis)
        if not analysis.capture.contents.is_blank:
            lines.append(text(counted))
        show("\n".join(lines))
    fail_on_damage(analysis)


def text(counted: Statistics) -> str:
    """The statistics in text: each flow, all flows together, CM, hosts, one-way delays."""
    from rocekit.wire.words import end, plural

    lines: list[str] = []
    for flow in counted.flows:
        connection = flow.connection
        title = f"{end(connection.end(flow.side))} → {end(connection.end(1 - flow.side))}"
        lines += [click.style(title, bold=True), *_flow(flow), *_times(flow.times, flow), ""]
    if len(counted.flows) > 1:
        lines += [
            click.style(f"All {plural(len(counted.flows), 'flow')}", bold=True),
            *_times(counted.times),
            "",
        ]
    if counted.cm_counts:
        names = "  ".join(f"{name} {n:,}" for name, n in counted.cm_counts.items())
        lines += [
            click.style("Connection management", bold=True),
            f"  {names}",
            *_times(counted.cm_steps),
            "",
        ]
    if counted.peers:
        lines += [click.style("Hosts", bold=True)]
        for peer in counted.peers:
            counts = "  ".join(f"{name} {n:,}" for name, n in peer.items() if n and name != "ip")
            lines.append(f"  {peer['ip']}  {counts}")
        lines.append("")
    if counted.one_way:
        lines += [click.style("One-way delays between the captures", bold=True)]
        times = {f"{w.src} → {w.dst}{_bound(w)}": w.took for w in counted.one_way}
        lines += [*_times(times), ""]
    return "\n".join(lines[:-1]) if lines else "No transfers."


def _bound(way: OneWay) -> str:
    """The files, and the bound of the clocks."""
    from rocekit.wire.words import duration

    files = f" (file {way.first} to {way.second})"
    return files if way.bound_ns is None else f"{files} ± {duration(way.bound_ns)}"


def _flow(flow: FlowStatistics) -> list[str]:
    """A flow's counts that are not zero."""
    from rocekit.wire.words import duration

    shown = []
    for name, value in flow.counts.items():
        if not value or name.startswith(("first_", "last_")) or name.endswith("_latency_ns"):
            continue
        if name.endswith("_ns"):
            shown.append(f"{name.removesuffix('_ns')} {duration(value)}")
        elif name.endswith("_bps"):
            shown.append(f"{name.removesuffix('_bps')} {value / 1e9:.3f} Gb/s")
        else:
            shown.append(f"{name} {value:,}")
    return [f"  {'  '.join(shown[i : i + 4])}" for i in range(0, len(shown), 4)]


def _times(times: Mapping[str, Spread], flow: FlowStatistics | None = None) -> list[str]:
    """A table of times, with configured values beside them."""
    from rocekit.wire.words import duration

    if not times:
        return []
    rows: list[tuple[str, ...]] = [("", "count", "min", "median", "99%", "max", "")]
    for name, s in times.items():
        agreed = _agreed(name, flow)
        rows.append(
            (
                name,
                f"{s.count:,}",
                *(duration(t) for t in (s.min_ns, s.median_ns, s.p99_ns, s.max_ns)),
                agreed,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i in (0, 6) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _agreed(name: str, flow: FlowStatistics | None) -> str:
    if flow is None:
        return ""
    from rocekit.wire.words import duration

    key = {"ack_timeout": "ack_timeout_us", "rnr_wait": "min_rnr_timer_us"}.get(name)
    value = None if key is None else flow.agreed.get(key)
    return "" if value is None else f"configured {duration(value * 1000)}"
