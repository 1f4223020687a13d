"""``rocekit plot``."""

from __future__ import annotations

from pathlib import Path

import click

from rocekit.commands import journal_option
from rocekit.commands.numbers import INDEX, Number
from rocekit.commands.options import Output, captures, given, output_option

GRAPHS = ("psn", "rate", "outstanding", "rtt", "congestion", "ladder")
FORMATS = (".png", ".svg", ".pdf")
_PICTURE = Output("a picture", *FORMATS)


@click.command()
@captures
@output_option("output", _PICTURE, required=True, help="The picture: .png, .svg or .pdf.")
@click.option(
    "--connection",
    "connection_id",
    type=INDEX,
    metavar="N",
    help="A connection, by its number in analyze.  [default: where something went wrong]",
)
@click.option(
    "--side",
    type=click.Choice(["a", "b"]),
    help="Requests of the connection's first or second end.  [default: where more happened]",
)
@click.option(
    "--transfer",
    "transfer_id",
    type=INDEX,
    metavar="N",
    help="Only the time of this transfer; or the transfer of the ladder.",
)
@click.option(
    "--graph",
    "graphs",
    type=click.Choice(GRAPHS),
    multiple=True,
    help="A graph to draw; may be repeated, except ladder.  [default: all that are not empty]",
)
@click.option("--from", "begin", metavar="TIME", help="From this time on: seconds, 250ms, or UTC.")
@click.option("--to", "end", metavar="TIME", help="Up to this time.")
@click.option("--dpi", type=Number("count", 30, 600), default=150, show_default=True)
@journal_option
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    output: Path,
    connection_id: int | None,
    side: str | None,
    transfer_id: int | None,
    graphs: tuple[str, ...],
    begin: str | None,
    end: str | None,
    dpi: int,
    journal: tuple[Path, ...],
) -> None:
    """Draw a connection over time as PNG, SVG or PDF: the graphs of `rocekit report`.

    From top to bottom: PSNs with what was sent again, ACKs and NAKs; payload rate; outstanding packets; round
    trips; CNPs and ECN-CE marks. Or the ladder of one transfer between its two hosts.

    \b
    Example:
      rocekit plot x.pcapng -o x.png
      rocekit plot x.pcapng --connection 0 --side a --graph psn --from 180ms --to 185ms -o x.svg
      rocekit plot x.pcapng --transfer 16 --graph ladder -o ladder.pdf
    """
    from rocekit.commands.shared import capture_time, drawing, fail_on_damage, inputs_of, load, need_packets
    from rocekit.files.outputs import check_output

    if output.suffix.lower() not in FORMATS:  # not even of a pipe: it decides what is written
        raise click.UsageError(f"{output}: the name must end in .png, .svg or .pdf")
    if "ladder" in graphs and len(graphs) > 1:
        raise click.UsageError("a ladder cannot be combined: leave out the other --graph")
    if "ladder" in graphs and (others := given(ctx, ("begin", "end", "side"))):
        raise click.UsageError(f"a ladder is of one whole transfer: leave out {others[0]}")
    check_output(output, inputs_of(files, journal))
    from rocekit.report.collector import Collector
    from rocekit.report.drawings import Drawings, need_matplotlib
    from rocekit.report.lane_columns import build_lanes

    need_matplotlib()
    collector = Collector()
    analysis = load(files, journal, watch=collector, whole=True)
    need_packets(analysis, "draw")
    picture = Drawings(analysis, build_lanes(collector, analysis)).plot(
        graphs,
        connection=connection_id,
        side=side,
        transfer=transfer_id,
        begin_ns=capture_time(begin, "--from", analysis),
        end_ns=capture_time(end, "--to", analysis),
    )
    with drawing(files):
        picture.save(output, dpi=dpi)
    click.echo(f"{output}: {picture.words}")
    fail_on_damage(analysis)
