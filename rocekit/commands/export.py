"""``rocekit export``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rocekit.commands import FILE, journal_option
from rocekit.commands.options import captures, output_option

_TABLES = ("packets", "connections", "transfers", "findings")
_FORMATS = ("parquet", "arrow", "csv", "jsonl")
#: Timelines are one file each, with this suffix.
_TIMELINES = {"perfetto": ".perfetto-trace", "qlog": ".sqlog"}


@click.command()
@captures
@click.option(
    "--to",
    "kind",
    type=click.Choice([*_FORMATS, *_TIMELINES]),
    help="Tables in this format, or a timeline.  [default: what the name of -o ends in]",
)
@output_option(
    "out",
    FILE,
    metavar="FOLDER",
    help='Folder for the tables, or the file of one table or a timeline; "-": standard output for such.  '
    "[default: FILE-tables, FILE.perfetto-trace, FILE.sqlog]",
)
@click.option(
    "--table",
    "names",
    type=click.Choice(_TABLES),
    multiple=True,
    help="Only this table; may be repeated.  [default: all of them]",
)
@journal_option
def command(
    files: tuple[Path, ...],
    kind: str | None,
    out: Path | None,
    names: tuple[str, ...],
    journal: tuple[Path, ...],
) -> None:
    """Write tables for polars, pandas, DuckDB; or a timeline for Perfetto or qlog's tools.

    A table is a file in the folder: packets.parquet, connections.parquet and so on. Columns are named as in
    the JSON of `rocekit analyze`, with units; numbers are typed, unknown values are null.

    --to perfetto: a trace for ui.perfetto.dev and Perfetto's trace processor: hosts, QPs, work requests,
    waits, recoveries, packets and outstanding bytes, joined by arrows. --to qlog: the same as events, a line
    each (JSON-SEQ); docs/formats.md describes them.

    \b
    Example:
      rocekit export x.pcapng --to parquet -o tables
      rocekit export x.pcapng --to perfetto -o x.perfetto-trace
      rocekit export x.pcapng --to qlog -o x.sqlog
      python -c "import polars; print(polars.read_parquet('tables/transfers.parquet'))"
      rocekit export x.pcapng --to csv --table transfers -o - | head
      rocekit export x.pcapng --table transfers -o transfers.csv
    """
    from rocekit.commands.shared import fail_on_damage, inputs_of, load, need_packets
    from rocekit.errors import RocekitError
    from rocekit.files.outputs import STANDARD_OUTPUT, Together, check_output, new_folder
    from rocekit.packets.narrow import Narrow
    from rocekit.report.export import FORMATS, each_table, need_polars, start_table, write_table
    from rocekit.standard_output import standard_output
    from rocekit.wire.words import plural

    kind, is_file = _kind(kind, out, names)
    if kind in _TIMELINES:
        if names:
            raise click.UsageError(f"--table is for tables, not for {kind}")
        _timeline(files, kind, out, journal)
        return
    need_polars()
    wanted = list(dict.fromkeys(names or _TABLES))
    to_stdout = out is not None and str(out) == "-"
    if to_stdout and len(wanted) != 1:
        raise click.UsageError("standard output takes one table: name it with --table")
    if to_stdout and kind in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"{kind} is not text: redirect standard output to a file or a pipe")
    if "packets" in wanted and any(str(file) == "-" for file in files):
        raise RocekitError(
            "the table of packets reads captures twice, not possible with standard input: save it to a file"
        )
    folder = out.parent if is_file and out is not None else _folder(files, out)
    if not to_stdout and folder.exists() and not folder.is_dir():
        raise RocekitError(f"{folder}: this is a file; -o names a folder")
    paths = {name: folder / f"{name}{FORMATS[kind]}" for name in wanted}
    if is_file and out is not None:
        paths = {wanted[0]: out}
    if folder.is_dir():
        for path in paths.values():
            check_output(path, inputs_of(files, journal))
    kept = Narrow() if "packets" in wanted and len(files) == 1 else None
    analysis = load(files, journal, watch=kept, whole=True)
    need_packets(analysis, "export")
    simple = not analysis.capture.orders and not analysis.capture.several
    made = each_table(analysis, wanted, kept.packets() if kept is not None and simple else None)
    if to_stdout:
        write_table(next(made)[1], standard_output(), kind, STANDARD_OUTPUT)
    else:
        said = []
        with new_folder(folder), Together() as together:
            written = None
            for name, table in made:
                if written is not None:
                    written()
                written = start_table(table, together.open(paths[name]), kind, paths[name])
                size = f"{plural(table.height, 'row')} of {plural(table.width, 'column')}"
                said.append(f"{paths[name]}: {size}")
            if written is not None:
                written()
        for line in said:
            click.echo(line)
    fail_on_damage(analysis)


def _kind(kind: str | None, out: Path | None, names: tuple[str, ...]) -> tuple[str, bool]:
    """What is written, and whether ``out`` is a file of one table or timeline and no folder.

    Raises:
        click.UsageError: nothing says what to write, or the name of ``out`` says something else.
    """
    suffix = "" if out is None or out.is_dir() else out.suffix.lower()
    by_name = {**{f".{name}": name for name in _FORMATS}, **{end: name for name, end in _TIMELINES.items()}}
    told = by_name.get(suffix)
    if kind is None and told is None:
        raise click.UsageError("--to says what to write, or a name such as -o x.parquet")
    if told is not None and kind not in (None, told):
        raise click.UsageError(f"{out}: --to {kind} writes no {suffix} file")
    if kind in _TIMELINES and suffix and told is None and not suffix[1:].isdigit():
        raise click.UsageError(f"{out}: this is for {kind}; the name must end in {_TIMELINES[str(kind)]}")
    if told in _FORMATS and len(dict.fromkeys(names)) != 1:
        raise click.UsageError(f"{out}: a file has one table: name it with --table, or give a folder")
    return str(kind or told), told is not None


def _timeline(files: tuple[Path, ...], kind: str, out: Path | None, journal: tuple[Path, ...]) -> None:
    """Write a timeline."""
    from rocekit.commands.shared import fail_on_damage, inputs_of, load, need_packets
    from rocekit.errors import RocekitError
    from rocekit.explanation.packets import packet_stories
    from rocekit.files.outputs import check_output, complete, is_stdout, writing
    from rocekit.report.collector import Collector
    from rocekit.report.lane_columns import build_lanes
    from rocekit.report.timelines.perfetto import need_perfetto, write_perfetto
    from rocekit.report.timelines.qlog import write_qlog
    from rocekit.wire.words import plural

    if kind == "perfetto":
        need_perfetto()
    if any(str(file) == "-" for file in files):
        raise RocekitError(
            f"{kind} reads captures twice, not possible with standard input: save it to a file"
        )
    output = out if out is not None else Path(f"{files[0].name.partition('.')[0]}{_TIMELINES[kind]}")
    if is_stdout(output) and kind == "perfetto" and sys.stdout.isatty():
        raise click.UsageError("a trace is not text: redirect standard output to a file or a pipe")
    check_output(output, inputs_of(files, journal))
    collector = Collector()
    analysis = load(files, journal, watch=collector, whole=True)
    need_packets(analysis, "export")
    stories = packet_stories(analysis)
    with writing(output), complete(output) as file:
        if kind == "perfetto":
            said = plural(write_perfetto(analysis, stories, build_lanes(collector, analysis), file), "packet")
        else:
            said = plural(write_qlog(analysis, stories, file), "event")
        file.flush()
    transfers = plural(len(analysis.transfers), "transfer")
    click.echo(f"{output}: {said}, {transfers}", err=is_stdout(output))
    fail_on_damage(analysis)


def _folder(files: tuple[Path, ...], out: Path | None) -> Path:
    """The folder given, else one named like the first capture, in the current folder."""
    if out is not None:
        return out
    return Path(f"{files[0].name.partition('.')[0] or 'rocekit'}-tables")
