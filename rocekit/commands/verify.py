"""``rocekit verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, print_json
from rocekit.commands.numbers import COUNT
from rocekit.commands.options import capture
from rocekit.commands.screen import show, width

if TYPE_CHECKING:
    from rocekit.verify import TsharkComparison
    from rocekit.verify.frame import Beside, FrameComparison

_TREE_WIDTH = 74
"""Longer lines of tshark's tree are cut in text."""
_SHOWN = 50  # disagreements in text; --format json lists up to a thousand


@click.command()
@capture
@click.option(
    "--frame",
    type=COUNT,
    help="Show tshark's whole tree of this frame, rocekit's values beside it.",
)
@format_option
@click.pass_context
def command(ctx: click.Context, file: Path, frame: int | None, output: str) -> None:
    """Compare how rocekit and tshark read FILE, field by field.

    Each value that differs is printed; the exit status is then 1, also if the capture is damaged (what can be
    read is compared) or has no RoCE packets. Where tshark is known to be wrong (CNP, RD and XRC opcodes,
    FLUSH and ATOMIC WRITE with version 4.0, truncated or damaged packets), differences are counted by
    reason. Not compared: whether an ICRC is valid, and the CM messages MRA, LAP, APR and SIDR, which tshark
    does not decode.

    With --frame, each line of tshark's tree of that frame is printed, and beside it rocekit's value: = where
    both read the same, ≠ where they differ.

    \b
    Example:
      rocekit verify x.pcapng
      rocekit verify x.pcapng --format json
      rocekit verify x.pcapng --frame 25
    """
    if frame is not None:
        from rocekit.verify.frame import compare_frame

        result = compare_frame(file, frame)
        if output == "json":
            print_json(result.to_dict())
        else:
            show(frame_text(result, width()))
        if not result.comparison.agrees:
            ctx.exit(1)
        return
    from rocekit.verify import verify

    comparison = verify(file)
    if output == "json":
        print_json(comparison.to_dict())
    else:
        show(text(comparison))
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


def frame_text(result: FrameComparison, columns: int | None = None) -> str:
    """tshark's tree of a frame with rocekit's values beside it, then its other values.

    On a terminal of so many columns, a value that does not fit beside its line stands below it.
    """
    comparison = result.comparison
    trees = [_cut("  " * line.depth + line.text) for line in result.lines]
    values = ["  ".join(_beside(one) for one in line.ours) for line in result.lines]
    left = max((len(tree) for tree, ours in zip(trees, values, strict=True) if ours), default=0)
    if columns is not None:
        right = max(len(click.unstyle(ours)) for ours in values)
        left = max(min(left, columns - right - 2), columns // 2)
    title = f"frame {result.frame} of {comparison.file}"
    heads = (f"tshark {comparison.tshark}", "rocekit")
    lines = [click.style(title, bold=True), click.style(f"{heads[0]:{left}}  {heads[1]}", dim=True)]
    for tree, line, ours in zip(trees, result.lines, values, strict=True):
        if ours and len(tree) > left:
            lines += [tree, f"{'':{left}}  {ours}"]
        else:
            head = f"{tree:{left}}  " if ours else tree
            lines.append(click.style(head, bold=not line.depth) + ours)
    if result.absent:
        lines += ["", "tshark shows no such field"]
        lines += [f"  {_beside(one)}" for one in result.absent]
    if result.is_roce:
        lines += ["", "rocekit's other values, not compared"]
        lines += [f"  {name} {value}" for name, value in result.others.items()]
    else:
        lines += ["", "rocekit: no RoCE packet"]
    differ = sum(comparison.explained.values())
    explained = f", {differ} explained" if differ else ""
    verdict = (
        click.style("no disagreement", fg="green")
        if comparison.agrees
        else click.style(f"{comparison.total:,} disagree", fg="red", bold=True)
    )
    lines += ["", f"{comparison.values:,} values compared: {verdict}{explained}"]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _TREE_WIDTH else text[: _TREE_WIDTH - 1] + "…"


def _beside(one: Beside) -> str:
    from rocekit.verify import words

    value = str(one.value) if one.name == "time_ns" else words(one.value)
    ours = f"{one.name} {value}"
    if one.agrees:
        return click.style(f"= {ours}", dim=True)
    why = f": {one.reason}" if one.reason else ""
    return click.style(f"≠ {ours}{why}", fg="yellow" if one.reason else "red")
