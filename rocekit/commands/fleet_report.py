"""``rocekit fleet report``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import FILE, load_numpy

if TYPE_CHECKING:
    from rocekit.fleet.page import Span

FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("lake", type=FOLDER)
@click.option(
    "-o",
    "--output",
    type=FILE,
    required=True,
    metavar="FILE",
    help="The page (“-”: standard output).",
)
@click.option("--since", metavar="TIME", help="Show what is from this time on, UTC: 2026-11-20T16:08:43.9.")
@click.option("--until", metavar="TIME", help="Show what is before this time.")
@click.option("--compare", type=FOLDER, metavar="LAKE", help="Compare with another LAKE, of a later time.")
@click.option("--split", metavar="TIME", help="Compare what is before this time with what is after it.")
def command(
    lake: Path, output: Path, since: str | None, until: str | None, compare: Path | None, split: str | None
) -> None:
    """Write an HTML page of LAKE: hosts that stand out, troubles over time, worst ways, first trouble first.

    The page is one file, needs no network and opens in any browser. A click on a row shows the command that
    shows its packets.

    \b
    Example:
      rocekit fleet report lake -o fleet.html
      rocekit fleet report lake -o fleet.html --since 2026-11-20T16:00 --until 2026-11-20T17:00
      rocekit fleet report lake -o change.html --split 2026-11-20T16:30
      rocekit fleet report monday -o change.html --compare tuesday
    """
    load_numpy()
    from rocekit.commands.sandbox import become_caller
    from rocekit.files.outputs import check_output, complete, is_stdout, writing
    from rocekit.fleet.lake import Lake
    from rocekit.fleet.page import Span, fleet_page, lake_name

    if compare is not None and split is not None:
        raise click.UsageError("--compare and --split are two ways to compare: give one of them.")
    span, other = _span(since, until), None
    if compare is not None:
        other = (Lake(compare), span, lake_name(lake), lake_name(compare))
    shown = span
    if split is not None:
        at = time_ns(split, "--split")
        other = (Lake(lake), Span(at, span.until_ns), "before", "after")
        shown = Span(span.since_ns, at)
    check_output(output, [])
    become_caller([lake] if compare is None else [lake, compare], [] if is_stdout(output) else [output])
    text = fleet_page(Lake(lake), span, other, shown)
    with writing(output), complete(output) as file:
        file.write(text.encode())
        file.flush()
    if not is_stdout(output):
        click.echo(f"{output}: {len(text.encode()):,} bytes")


def _span(since: str | None, until: str | None) -> Span:
    from rocekit.fleet.page import Span

    return Span(time_ns(since, "--since"), time_ns(until, "--until"))


def time_ns(text: str | None, option: str) -> int | None:
    """A UTC time of the command line, as ns since the epoch."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time: write 2026-11-20T16:08:43.9", param_hint=option
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    whole = moment.replace(microsecond=0)
    return int(whole.timestamp()) * 10**9 + moment.microsecond * 1000
