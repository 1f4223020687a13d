"""``rocekit plot``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import FILE, journal_option

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.report.lanes import Lanes
    from rocekit.track.transfers import Transfer

GRAPHS = ("psn", "rate", "outstanding", "rtt", "congestion", "ladder")
FORMATS = (".png", ".svg", ".pdf")


@click.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE…")
@click.option(
    "-o", "--output", type=FILE, required=True, metavar="FILE", help="The picture: .png, .svg or .pdf."
)
@click.option(
    "--connection",
    "connection_id",
    type=click.IntRange(min=0),
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
    type=click.IntRange(min=0),
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
@click.option("--dpi", type=click.IntRange(30, 600), default=150, show_default=True)
@journal_option
def command(
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
    from rocekit.commands.shared import capture_time, fail_on_damage, inputs_of, load, need_packets
    from rocekit.errors import RocekitError, check_number, needs_extra
    from rocekit.files.outputs import check_output, complete, writing

    if output.suffix.lower() not in FORMATS:
        raise click.UsageError(f"{output}: the name must end in {', '.join(FORMATS)}")
    if "ladder" in graphs and len(graphs) > 1:
        raise click.UsageError("a ladder cannot be combined: leave out the other --graph")
    check_output(output, inputs_of(files, journal))
    try:
        from rocekit.report.figure_scene import Scene
        from rocekit.report.figures import draw, save, span, worth_drawing
        from rocekit.report.ladder_figure import draw_ladder
    except ModuleNotFoundError as error:
        raise needs_extra("plot needs", error.name, "plot") from None
    from rocekit.report.collector import Collector
    from rocekit.report.ladder import ladder
    from rocekit.report.lane_columns import build_lanes

    collector = Collector()
    analysis = load(files, journal, watch=collector)
    need_packets(analysis, "draw")
    if not analysis.connections:
        raise RocekitError(f"{', '.join(map(str, files))}: no connection to draw")
    if connection_id is not None:
        check_number(connection_id, len(analysis.connections), "connection")
    if transfer_id is not None:
        check_number(transfer_id, len(analysis.transfers), "transfer")
    lanes = build_lanes(collector, analysis)
    transfer = None if transfer_id is None else analysis.transfers[transfer_id]
    if "ladder" in graphs and transfer is None:
        transfer = _most_troubled(analysis, connection_id)
    number = _lane(analysis, lanes, connection_id, side, transfer)
    lane = lanes.lane(number)
    if "ladder" in graphs:
        assert transfer is not None
        figure = draw_ladder(transfer, ladder(analysis, lane, transfer))
    else:
        if not len(lane):
            raise RocekitError(
                f"connection {number // 2} has no packets of side {'ab'[number % 2]}: try the other --side"
            )
        first, last = span(analysis, lane, number)
        if transfer is not None:
            margin = transfer.duration_ns // 10 + 1_000
            first, last = transfer.first_ns - margin, transfer.first_ns + transfer.duration_ns + margin
        first = capture_time(begin, "--from", analysis) or first
        last = capture_time(end, "--to", analysis) or last
        if last <= first:
            raise RocekitError("there is nothing between these times: --from must be before --to")
        scene = Scene(analysis, lane, number, first, last)
        figure = draw(scene, list(graphs) or worth_drawing(scene))
    with writing(output), complete(output) as path:
        save(figure, path, dpi=dpi)
    click.echo(f"{output}: connection {number // 2}, requests of side {'ab'[number % 2]}")
    fail_on_damage(analysis)


def _lane(
    analysis: Analysis, lanes: Lanes, connection: int | None, side: str | None, transfer: Transfer | None
) -> int:
    """The side of a connection to draw: as given, or with findings, or with most packets.

    Raises:
        RocekitError: the transfer belongs to another connection.
    """
    from rocekit.errors import RocekitError

    if transfer is not None:
        own = transfer.connection.id
        if connection not in (None, own):
            raise RocekitError(f"transfer {transfer.id} belongs to connection {own}, not {connection}")
        return 2 * own + (transfer.side if side is None else "ab".index(side))
    if connection is None:
        troubled = [f.connection.id for f in analysis.findings if f.connection is not None]
        busiest = max(analysis.connections, key=lambda c: c.packets)
        connection = troubled[0] if troubled else busiest.id
    if side is not None:
        return 2 * connection + "ab".index(side)

    def weight(number: int) -> tuple[int, int]:
        rows = lanes.rows(number)
        return int((lanes.round[rows] > 1).sum()), rows.stop - rows.start

    return max((2 * connection, 2 * connection + 1), key=weight)


def _most_troubled(analysis: Analysis, connection: int | None) -> Transfer:
    from rocekit.errors import RocekitError

    own = [t for t in analysis.transfers if connection in (None, t.connection.id)]
    if not own:
        raise RocekitError("no transfer to draw a ladder of")
    return max(own, key=lambda t: (len(t.events), t.duration_ns))
