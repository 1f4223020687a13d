"""``rocekit drill``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rocekit.commands import FILE
from rocekit.commands.conform_options import bench_of, bench_options


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="DRILL…")
@bench_options
@click.option("--verbose", "-v", is_flag=True, help="Print all that happened, also if the device passes.")
@click.option(
    "--keep", type=FILE, metavar="FOLDER", help="Write each drill's capture, journal and explanation there."
)
@click.pass_context
def command(
    ctx: click.Context, /, names: tuple[str, ...], verbose: bool, keep: Path | None, **bench: Any
) -> None:
    """Play drills with a device: packets sent to it, and packets that must come from it.

    A drill is one test in a YAML file: its claim, the clause of the specification, and what happens on one
    clock. DRILL is a file, or the name of one of the suite (`rocekit conform --list`). Without --device or
    --agent the device is a soft one in this process, with a simulated clock. Packets are sent to addresses of
    this machine and its network namespaces only. The exit status is 1 if a drill fails.

    \b
    Example:
      rocekit drill responder/duplicates/write -v
      rocekit lab -- rocekit drill mine.yaml --device rxe0 --interface vb --peer-ip 10.9.0.2
    """
    from rocekit.conform.known import KnownFailures
    from rocekit.conform.language import read_drill
    from rocekit.conform.records import keep as keep_result
    from rocekit.conform.records import transcript
    from rocekit.conform.suite import run, suite
    from rocekit.conform.verdict import FAIL, PASS

    drills = []
    for name in names:
        drills += (
            suite([name]) if not Path(name).exists() and not name.endswith(".yaml") else [read_drill(name)]
        )
    failed = False
    with bench_of(**bench) as made:
        for result in run(drills, made, KnownFailures(())):
            verdict = result.playing.verdict
            colour = {PASS: "green", FAIL: "red"}.get(verdict.outcome, "yellow")
            click.echo(
                f"{result.drill.name}: {click.style(verdict.outcome, fg=colour)}: {result.drill.claim}"
            )
            if verdict.reason:
                click.echo(f"  {verdict.reason}")
            if verdict.line:
                click.echo(f"  line {verdict.line}  {verdict.step}")
                click.echo(f"  expected {verdict.expected}")
                click.echo(f"  came     {verdict.came}")
            if verbose or verdict.line:
                click.echo(transcript(result.playing.said))
            if keep is not None:
                keep_result(result, made.device.name, keep)
            failed |= result.outcome == FAIL
    ctx.exit(1 if failed else 0)
