"""``rocekit verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import FILE, format_option, print_json

if TYPE_CHECKING:
    from rocekit.verify import TsharkComparison

_SHOWN = 50  # disagreements in text; --format json lists up to a thousand


@click.command()
@click.argument("file", type=FILE)
@format_option
@click.pass_context
def command(ctx: click.Context, file: Path, output: str) -> None:
    """Compare how rocekit and tshark read FILE, field by field.

    Each value that differs is printed; the exit status is then 1, also if the capture is damaged (what can be
    read is compared) or has no RoCE packets. Where tshark is known to be wrong (CNP, RD and XRC opcodes,
    FLUSH and ATOMIC WRITE before version 4.4, truncated or damaged packets), differences are counted by
    reason. Not compared: whether an ICRC is valid, and the CM messages MRA, LAP, APR and SIDR, which tshark
    does not decode.

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
    if not comparison.agrees or comparison.contents.is_blank:
        ctx.exit(1)


def text(comparison: TsharkComparison) -> str:
    """The comparison in text: what was not read, each disagreement, then the counts."""
    contents = comparison.contents
    refusal = contents.refusal("compare")
    lines = [] if refusal is None else [click.style(refusal, fg="yellow")]
    if contents.notice is not None:
        lines = [click.style(f"{contents.notice} {contents.next_step}", fg="yellow")]
    lines += [str(disagreement) for disagreement in comparison.disagreements[:_SHOWN]]
    if comparison.total > _SHOWN:
        lines.append(f"… and {comparison.total - _SHOWN:,} more")
    agreed = "no disagreement" if refusal is None else "no disagreement, and nothing said of RoCE"
    verdict = (
        click.style(agreed, fg="green" if refusal is None else "yellow")
        if comparison.agrees
        else click.style(f"{comparison.total:,} disagree", fg="red", bold=True)
    )
    what = "RoCE packets" if refusal is None else "packets"
    lines.append(
        f"{comparison.packets:,} {what} in {comparison.frames:,} frames, {comparison.values:,} values "
        f"compared with tshark {comparison.tshark}: {verdict}"
    )
    for reason, count in comparison.explained.most_common():
        lines.append(f"  {count:,} explained: {reason}")
    if comparison.left_out:
        lines.append(
            f"  not compared, because this tshark has no such field: {', '.join(sorted(comparison.left_out))}"
        )
    if comparison.problem is not None:
        lines.append(f"  tshark says: {comparison.problem}")
    return "\n".join(lines)
