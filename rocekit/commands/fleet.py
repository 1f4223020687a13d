"""``rocekit fleet``: the group of its commands."""

from __future__ import annotations

import click

from rocekit.commands.fleet_analyze import command as analyze_command
from rocekit.commands.fleet_query import command as query_command
from rocekit.commands.fleet_report import command as report_command


@click.group()
def command() -> None:
    """Analyze the captures of a whole fleet on Dask, and ask all of them one question.

    \b
    Example:
      rocekit fleet analyze captures/ -o lake
      rocekit fleet report lake -o fleet.html
      rocekit fleet query lake "SELECT rule, count(*) FROM findings GROUP BY rule"
    """


command.add_command(analyze_command, "analyze")
command.add_command(query_command, "query")
command.add_command(report_command, "report")
