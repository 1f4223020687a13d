"""``rocekit doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, mark, print_json

if TYPE_CHECKING:
    from rocekit.commands.doctor_checks import Report


@click.command()
@format_option
def command(output: str) -> None:
    """Show what works on this machine, and how to add what is missing.

    Nothing is changed: each missing piece is shown with the command that adds it. The exit status is
    0 even if pieces are missing: reading captures needs none of them.

    \b
    Example:
      rocekit doctor
      rocekit doctor --format json
    """
    from rocekit.commands.doctor_checks import examine
    from rocekit.commands.screen import show

    report = examine()
    if output == "json":
        print_json(report.to_dict())
    else:
        show(text(report))


def text(report: Report) -> str:
    """The report in text: what works, then each piece and the command that adds it."""
    lines = [report.system, "", click.style("What works here", bold=True)]
    titles = {check.name: check.title for check in report.checks}
    for ability in report.abilities:
        lacks = (
            f"  (missing: {', '.join(titles[name] for name in ability.missing)})" if ability.missing else ""
        )
        lines.append(f"  {mark(ability.ok)} {ability.title}{click.style(lacks, dim=True)}")
    lines += ["", click.style("Pieces", bold=True)]
    width = max(len(check.title) for check in report.checks)
    for check in report.checks:
        lines.append(f"  {mark(check.ok)} {check.title:<{width}}  {check.detail}")
        if check.fix is not None:
            lines.append(f"    {'':<{width}}  {click.style(check.fix, fg='cyan')}")
    return "\n".join(lines)
