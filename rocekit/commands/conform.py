"""``rocekit conform``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from rocekit.commands import FILE, format_option, print_json
from rocekit.commands.conform_options import bench_of, bench_options
from rocekit.commands.screen import say, show


@click.command()
@click.argument("names", nargs=-1, metavar="[DRILL…]")
@bench_options
@click.option("--list", "listed", is_flag=True, help="List the drills, with claim and clause.")
@click.option("--junit", type=FILE, metavar="FILE", help="Write the results as JUnit's XML.")
@click.option("--html", type=FILE, metavar="FILE", help="Write the matrix of drills and verdicts as a page.")
@click.option(
    "--failures", type=FILE, metavar="FOLDER", help="Write capture, journal and explanation of each failure."
)
@click.option(
    "--known",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Known failures, in place of rocekit's.",
)
@click.option("--random", "seed", type=int, metavar="SEED", help="Random drills in place of the suite's.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=200, show_default=True, help="How many, with --random."
)
@click.option(
    "--save",
    type=FILE,
    metavar="FOLDER",
    help="With --random: where shrunk drills are written; the others that differ in FOLDER/again.",
)
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    listed: bool,
    junit: Path | None,
    html: Path | None,
    failures: Path | None,
    known: tuple[Path, ...],
    seed: int | None,
    runs: int,
    save: Path | None,
    output: str,
    **bench: Any,
) -> None:
    """Ask a RoCE device, drill by drill, whether it keeps the specification.

    Each drill has a claim and its clause, and ends with pass, fail, not applicable (the device lacks what it
    needs) or inconclusive (the environment, or a text that leaves it open), with the reason. DRILL is a name,
    an area or a pattern; all drills without one. Without --device or --agent the device is a soft one in this
    process, with a simulated clock. The exit status is 1 if a drill fails that is not known to, or passes
    that is known to fail.

    --random draws sequences of moves by hypothesis, plays each with a soft device as the model and then with
    the device, and shrinks what differs to a shortest drill; status 1 if something differs that is not known
    to. It counts exchanges: one request, of the packet side or of the device's program, with all that answers
    it. Ctrl-C ends the search and says what came of it.

    \b
    Example:
      rocekit conform
      rocekit conform responder/length --list
      rocekit conform --random 1 --runs 20
      rocekit lab -- rocekit conform --device rxe0 --interface vb --peer-ip 10.9.0.2 --html matrix.html
    """
    from rocekit.conform import records
    from rocekit.conform.known import read_known
    from rocekit.conform.suite import run, suite, tally
    from rocekit.conform.verdict import FAIL, PASS
    from rocekit.files.outputs import check_output

    if seed is not None:
        if names:
            raise click.UsageError("--random draws its own drills: give no DRILL")
        if listed or junit is not None or html is not None or failures is not None:
            raise click.UsageError(
                "--list, --junit, --html and --failures are for the suite, not for --random"
            )
        _explore(ctx, seed, runs, save, known, output, bench)
        return
    if save is not None or ctx.get_parameter_source("runs") == click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--runs and --save belong to --random")
    drills = suite(names)
    if listed:
        if output == "json":
            print_json([{"drill": d.name, "claim": d.claim, "clause": d.clause} for d in drills])
        else:
            show("\n".join(f"{drill.name}\n    {drill.claim} ({drill.clause})" for drill in drills))
        return
    for out in filter(None, (junit, html)):
        check_output(out, known)
    lists = read_known(known or None)
    results = []
    with bench_of(**bench) as made:
        device = made.device.name
        for result in run(drills, made, lists):
            results.append(result)
            if result.outcome == FAIL and failures is not None:
                records.keep(result, device, failures)
            if output == "text" and (result.outcome != PASS or result.changed):
                colour = "red" if result.changed else "yellow"
                say(f"{result.drill.name}: {click.style(result.playing.verdict.words(), fg=colour)}")
                if result.known:
                    passes = "; it passes now" if result.outcome == PASS else ""
                    say(f"    known: {result.known}{passes}")
    if junit is not None:
        records.written(junit, records.junit(results, device))
    if html is not None:
        title = f"Conformance of {device}"
        records.written(html, records.page(title, {device: [r.to_dict() for r in results]}))
    if output == "json":
        print_json({"device": device, "results": [result.to_dict() for result in results]})
    else:
        click.echo(f"{device}: {tally(results)}")
    ctx.exit(1 if any(result.changed for result in results) else 0)


def _explore(
    ctx: click.Context,
    seed: int,
    runs: int,
    save: Path | None,
    known: tuple[Path, ...],
    output: str,
    bench: dict[str, Any],
) -> None:
    """``--random``."""
    from tempfile import TemporaryDirectory

    from rocekit.conform import records
    from rocekit.conform.known import read_known
    from rocekit.conform.random_drills import Difference, explore

    lists = read_known(known or None)
    if save is not None and save.exists() and not save.is_dir():
        raise click.BadParameter(f"{save} is no folder.", param_hint="--save")

    def noted(difference: Difference) -> str:
        return f"{difference.drill.text}# {difference.signature}\n# {difference.verdict.words()}\n"

    def found(difference: Difference) -> None:
        if output == "text":
            say(f"{click.style(difference.signature, fg='red')}\n  {difference.verdict.words()}")
        if save is None and output == "text":
            click.echo(difference.drill.text)
        elif save is not None:
            records.saved(noted(difference), save)

    def again(difference: Difference) -> None:
        if save is not None:
            records.saved(noted(difference), save / "again")

    with bench_of(**bench) as made, TemporaryDirectory(prefix="rocekit-drills-") as kept:
        # Else hypothesis leaves a folder of its own where the command is called.
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", kept)
        device = made.device.name
        result = explore(
            made, seed, runs, found=found, again=again, explained=lambda kind: lists.explained(device, kind)
        )
    if output == "json":
        print_json({"device": device, "seed": seed, **result.to_dict()})
    else:
        say(
            f"{device}: {'stopped after ' * result.stopped}{result.drills} random drills, "
            f"{result.exchanges} exchanges, {result.packets} packets: "
            f"{result.agreed} as the model, {result.inconclusive} not judged, "
            f"{len(result.differences)} new kinds of differences"
        )
        for reason, count in result.inapplicable.items():
            say(f"  {count} not played: {reason}")
        if result.unconfirmed:
            say(f"  {result.unconfirmed} did not differ in the same way when played again")
        for signature, count in result.repeated.items():
            say(f"  {count} more: {signature}")
        for signature, count in result.explained.items():
            say(f"  {count} known: {signature}\n    {lists.explained(device, signature)}")
    # A device of which nothing could be asked is not one that agrees.
    asked = not result.inapplicable or result.agreed + result.inconclusive > 0
    ctx.exit(0 if asked and not result.differences else 1)
