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

    Counts have the names of the Open Traffic Generator's RoCE v2 results where it has them.

    \b
    Example:
      rocekit stats x.pcapng
      rocekit stats x.pcapng --format json
    """
    from rocekit.commands.screen import show, width
    from rocekit.commands.shared import emit, fail_on_damage, load, not_judged

    analysis = load(files, journal)
    counted = analysis.statistics()
    if output == "json":
        emit(counted.to_dict() | {"capture": analysis.capture.to_dict()})
    else:
        lines = not_judged(analysis)
        if not analysis.capture.contents.is_blank:
            lines.append(text(counted, width()))
        show("\n".join(lines))
    fail_on_damage(analysis)


def text(counted: Statistics, width: int | None = None) -> str:
    """The statistics in text: each flow, all flows together, CM, hosts, one-way delays.

    Args:
        width: of the terminal; None: there is none.
    """
    from rocekit.wire.text_table import filled
    from rocekit.wire.words import end, plural

    lines: list[str] = []
    for flow in counted.flows:
        connection = flow.connection
        title = f"{end(connection.end(flow.side))} → {end(connection.end(1 - flow.side))}"
        lines += [click.style(title, bold=True), *_flow(flow, width)]
        lines += [*_times(flow.times, width, flow), ""]
    if len(counted.flows) > 1:
        lines += [
            click.style(f"All {plural(len(counted.flows), 'flow')}", bold=True),
            *_times(counted.times, width),
            "",
        ]
    if counted.cm_counts:
        names = filled([f"{name} {n:,}" for name, n in counted.cm_counts.items()], width)
        lines += [
            click.style("Connection management", bold=True),
            *names,
            *_times(counted.cm_steps, width),
            "",
        ]
    if counted.peers:
        lines += [click.style("Hosts", bold=True)]
        for peer in counted.peers:
            counts = [f"{name} {n:,}" for name, n in peer.items() if n and name != "ip"]
            below = filled(counts, width, " " * (len(str(peer["ip"])) + 4))
            lines.append(
                f"  {peer['ip']}{below[0][len(str(peer['ip'])) + 2 :]}" if below else f"  {peer['ip']}"
            )
            lines += below[1:]
        lines.append("")
    if counted.one_way:
        lines += [click.style("One-way delays between the captures", bold=True)]
        times = {f"{w.src} → {w.dst}{_bound(w)}": w.took for w in counted.one_way}
        lines += [*_times(times, width), ""]
    return "\n".join(lines[:-1]) if lines else "No transfers."


def _bound(way: OneWay) -> str:
    """The files, and the bound of the clocks."""
    from rocekit.wire.words import duration

    files = f" (file {way.first} to {way.second})"
    return files if way.bound_ns is None else f"{files} ± {duration(way.bound_ns)}"


def _flow(flow: FlowStatistics, width: int | None) -> list[str]:
    """A flow's counts that are not zero."""
    from rocekit.wire.text_table import filled
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
    return filled(shown, width, most=4)


def _times(times: Mapping[str, Spread], width: int | None, flow: FlowStatistics | None = None) -> list[str]:
    """A table of times, with configured values beside them."""
    from rocekit.wire.text_table import columns
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
    # On a narrow terminal the median and the longest stay.
    return columns(rows, right=frozenset(range(1, 6)), width=width, spare=(2, 4, 1), room=0)


def _agreed(name: str, flow: FlowStatistics | None) -> str:
    if flow is None:
        return ""
    from rocekit.wire.words import duration

    key = {"ack_timeout": "ack_timeout_us", "rnr_wait": "min_rnr_timer_us"}.get(name)
    value = None if key is None else flow.agreed.get(key)
    return "" if value is None else f"configured {duration(value * 1000)}"
