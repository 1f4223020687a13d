"""``rocekit topology``."""

from __future__ import annotations

from pathlib import Path

import click

from rocekit.commands import journal_option
from rocekit.commands.options import captures


@click.command()
@captures
@click.option(
    "--format",
    "output",
    type=click.Choice(["text", "json", "dot"]),
    default="text",
    show_default=True,
    help="Text, JSON for programs, or a graph for Graphviz.",
)
@click.option("--qps", is_flag=True, help="List every QP pair of every link; with dot, draw each QP.")
@journal_option
def command(files: tuple[Path, ...], output: str, qps: bool, journal: tuple[Path, ...]) -> None:
    """Show which hosts talk to each other: QPs, bytes of each link, and the shape of the links.

    Shapes are ring, mesh, star, tree and pair. Three hosts that all talk to each other are a ring if the data
    goes round one way, else a mesh. Bytes are payload on the wire, including what was sent again. A capture
    made at one host contains only the links of that host: give the captures of several hosts.

    \b
    Example:
      rocekit topology x.pcapng
      rocekit topology host1.pcap host2.pcap --qps
      rocekit topology x.pcapng --format dot | dot -Tsvg -o x.svg
    """
    from rocekit.commands.screen import show, width
    from rocekit.commands.shared import coloured, emit, fail_on_damage, load, not_judged

    analysis = load(files, journal, plain=0)
    found = analysis.topology()
    if output == "json":
        emit({"schema": "rocekit/1", "capture": analysis.capture.to_dict(), **found.to_dict()})
    else:
        from rocekit.report.topology import dot, text

        lines = not_judged(analysis)
        if output == "dot":
            if lines:
                click.echo("\n".join(lines), err=True)
            lines = [dot(found, every=qps)]
        elif not analysis.capture.contents.is_blank:
            lines.append(text(found, style=coloured, every=qps, width=width()))
        show("\n".join(lines)) if output == "text" else click.echo("\n".join(lines))
    fail_on_damage(analysis)
