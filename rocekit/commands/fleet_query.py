"""``rocekit fleet query``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

FORMATS = ("text", "json", "csv")


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("sql", required=False)
@click.option("--format", "output", type=click.Choice(FORMATS), default="text", show_default=True)
def command(lake: Path, sql: str | None, output: str) -> None:
    """Ask LAKE a question in SQL, which DuckDB answers; without one, list the tables and their columns.

    "-" reads the question from standard input. The tables are captures, connections, transfers, findings,
    troubles, rates, counters, cm, fingerprints; of pairs of captures matches, paths and placed_findings; of
    the whole LAKE ways, hosts and links.

    \b
    Example:
      rocekit fleet query lake
      rocekit fleet query lake "SELECT rule, count(*) FROM findings GROUP BY rule ORDER BY 2 DESC"
      rocekit fleet query lake - --format csv < question.sql
    """
    import csv

    from rocekit.commands import print_json
    from rocekit.commands.sandbox import become_caller
    from rocekit.fleet.lake import Lake
    from rocekit.fleet.query import Answer, as_text, ask, connect
    from rocekit.fleet.schema import TABLES

    become_caller([lake])
    if sql is None:
        rows = [(t, n, meaning) for t, columns in TABLES.items() for n, (_, meaning) in columns.items()]
        Lake(lake).manifest()
        answer = Answer(["table", "column", "meaning"], rows)
    else:
        answer = ask(connect(Lake(lake)), sys.stdin.read() if sql == "-" else sql)
    if output == "json":
        print_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
    elif output == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([_cell(value) for value in row] for row in (answer.columns, *answer.rows))
    else:
        click.echo("\n".join(as_text(answer)))


def _cell(value: object) -> object:
    from rocekit.wire.text_table import safe_cell

    return safe_cell(value) if isinstance(value, str) else value


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str | list) else str(value)
