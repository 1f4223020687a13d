"""``rocekit verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import FILE, format_option, print_json

if TYPE_CHECKING:
    from rocekit.verify import TsharkComparison

_SHOWN = 50  # disagreements printed as text; --format json lists up to a thousand


@click.command()
@click.argument("file", type=FILE)
@format_option
@click.pass_context
def command(ctx: click.Context, file: Path, output: str) -> None:
    """Compare how rocekit and tshark read FILE, field by field.

    Each value that the two read differently is printed; the exit status is then 1, as it is where the capture
    is damaged, of which as much is compared as can be read. Where tshark is known not
    to know better (CNP, RD and XRC opcodes, FLUSH and ATOMIC WRITE before version 4.4, packets cut short or
    damaged), differences are counted under their reason. It is not asked whether an ICRC is valid, which it
    does not compute, nor for the CM messages MRA, LAP, APR and SIDR, which it does not dissect.

    \b
    Example:
      rocekit verify x.pcapng
      rocekit verify x.pcapng --format json
    """
    from rocekit.verify import verify

    comparison = verify(file)
    if output == "json":
        print_json(comparison.to_dict())
    else:
        click.echo(text(comparison))
    comparison.damage.end(comparison.file)
    if not comparison.agrees:
        ctx.exit(1)


def text(comparison: TsharkComparison) -> str:
    """The comparison for people: each disagreement, then how much agreed."""
    lines = [str(disagreement) for disagreement in comparison.disagreements[:_SHOWN]]
    if comparison.total > len(lines):
        lines.append(f"… and {comparison.total - len(lines):,} more")
    verdict = (
        click.style("no disagreement", fg="green")
        if comparison.agrees
        else click.style(f"{comparison.total:,} disagree", fg="red", bold=True)
    )
    lines.append(
        f"{comparison.packets:,} RoCE packets in {comparison.frames:,} frames, {comparison.values:,} values "
        f"compared with tshark {comparison.tshark}: {verdict}"
    )
    for reason, count in comparison.explained.most_common():
        lines.append(f"  {count:,} explained: {reason}")
    if comparison.left_out:
        lines.append(
            f"  not asked, for this tshark has no such field: {', '.join(sorted(comparison.left_out))}"
        )
    if comparison.problem is not None:
        lines.append(f"  tshark says: {comparison.problem}")
    return "\n".join(lines)
