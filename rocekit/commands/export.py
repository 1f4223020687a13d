"""``rocekit export``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rocekit.commands import FILE, journal_option
from rocekit.commands.options import captures, output_option

_TABLES = ("packets", "connections", "transfers", "findings")
_FORMATS = ("parquet", "arrow", "csv", "jsonl")


@click.command()
@captures
@click.option("--to", "kind", type=click.Choice(_FORMATS), required=True, help="The tables' format.")
@output_option(
    "out",
    FILE,
    metavar="FOLDER",
    help='Folder for the tables, "-": standard output, for one table.  [default: FILE-tables]',
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
    files: tuple[Path, ...], kind: str, out: Path | None, names: tuple[str, ...], journal: tuple[Path, ...]
) -> None:
    """Write packets, connections, transfers and findings as tables for polars, pandas, DuckDB.

    A table is a file in the folder: packets.parquet, connections.parquet and so on. Columns are named as in
    the JSON of `rocekit analyze`, with units; numbers are typed, unknown values are null.

    \b
    Example:
      rocekit export x.pcapng --to parquet -o tables
      python -c "import polars; print(polars.read_parquet('tables/transfers.parquet'))"
      rocekit export x.pcapng --to csv --table transfers -o - | head
    """
    from rocekit.commands.shared import fail_on_damage, load, need_packets
    from rocekit.errors import RocekitError
    from rocekit.report.export import FORMATS, need_polars, tables, write_table
    from rocekit.wire.words import plural

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
    folder = _folder(files, out)
    if not to_stdout and folder.exists() and not folder.is_dir():
        raise RocekitError(f"{folder}: this is a file; -o names a folder")
    analysis = load(files, journal)
    need_packets(analysis, "export")
    made = tables(analysis, wanted)
    if to_stdout:
        write_table(made[wanted[0]], sys.stdout.buffer, kind)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in made.items():
            path = folder / f"{name}{FORMATS[kind]}"
            write_table(table, path, kind)
            click.echo(f"{path}: {plural(table.height, 'row')} of {plural(table.width, 'column')}")
    fail_on_damage(analysis)


def _folder(files: tuple[Path, ...], out: Path | None) -> Path:
    """The folder given, else one named like the first capture, in the current folder."""
    if out is not None:
        return out
    return Path(f"{files[0].name.partition('.')[0] or 'rocekit'}-tables")
