"""``rocekit report``."""

from __future__ import annotations

from pathlib import Path

import click

from rocekit.commands import journal_option
from rocekit.commands.options import PAGE, captures, output_option, rules_option


@click.command()
@captures
@output_option("output", PAGE, required=True, help="The page to write, .html (“-”: standard output).")
@journal_option
@rules_option
def command(
    files: tuple[Path, ...], output: Path, journal: tuple[Path, ...], rules: tuple[Path, ...]
) -> None:
    """Write an HTML page: findings, connections, transfers, and every packet over time.

    The page is one file, needs no network and opens in any browser. Findings with their cost come first, each
    with a link to its place in the graphs.

    \b
    Example:
      rocekit report x.pcapng -o report.html
      rocekit report host1.pcap host2.pcap -o report.html
    """
    from rocekit.commands.shared import drawing, fail_on_damage, inputs_of, load
    from rocekit.files.outputs import check_output, complete, is_stdout, writing
    from rocekit.report.collector import Collector
    from rocekit.report.document import document
    from rocekit.report.lane_columns import build_lanes
    from rocekit.report.page import page
    from rocekit.wire.words import plural

    check_output(output, [*inputs_of(files, journal), *rules])
    collector = Collector()
    analysis = load(files, journal, rules=rules, plain=KEPT_TRANSFERS, watch=collector)
    if analysis.capture.interrupted and output.is_file():
        click.echo(f"{output}: stays as it was; a page of what was read needs a new name", err=True)
        raise KeyboardInterrupt
    lanes = build_lanes(collector, analysis)
    with drawing(files):
        text = page(
            f"rocekit: {', '.join(f.name for f in files)}",
            *document(analysis, lanes),
        )
    summary = analysis.capture
    with writing(output), complete(output) as file:
        file.write(text.encode())
        file.flush()
    contents = summary.contents
    said = contents.refusal("judge") or (
        f"{plural(summary.counts.roce_packets - summary.copies - summary.left_out, 'RoCE packet')}, "
        f"{plural(len(analysis.connections), 'connection')}, "
        f"{plural(len(analysis.findings), 'finding')}"
    )
    if contents.notice is not None:
        said += f". {contents.notice} {contents.next_step}"
    if contents.one_direction is not None:
        said += f". {contents.one_direction}"
    click.echo(f"{output}: {said}", err=is_stdout(output))
    fail_on_damage(analysis)


KEPT_TRANSFERS = 20_000
"""Transfers without trouble in a page: the slowest; others are only counted."""
