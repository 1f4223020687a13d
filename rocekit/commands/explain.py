"""``rocekit explain``."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, journal_option
from rocekit.commands.numbers import INDEX, Number
from rocekit.commands.options import captures, only_one_of, rules_option

if TYPE_CHECKING:
    from rocekit.analysis import Analysis


@click.command()
@captures
@click.option(
    "--transfer",
    "numbers",
    type=INDEX,
    multiple=True,
    metavar="N",
    help="A transfer, by its number in analyze; may be repeated.",
)
@click.option(
    "--wr",
    "wr_ids",
    type=Number("count"),
    multiple=True,
    metavar="WR_ID",
    help="The transfer of the work request with this wr_id; may be repeated.",
)
@click.option(
    "--collective",
    type=INDEX,
    metavar="N",
    help="A collective that NCCL's journal tells of, by its number in analyze.",
)
@click.option("--all", "every", is_flag=True, help="Every transfer.")
@click.option("--steps", is_flag=True, help="Each step, where many alike ones would be one line.")
@journal_option
@rules_option
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    numbers: tuple[int, ...],
    wr_ids: tuple[int, ...],
    collective: int | None,
    every: bool,
    steps: bool,
    journal: tuple[Path, ...],
    rules: tuple[Path, ...],
    output: str,
) -> None:
    """Explain a transfer step by step: posted, sent, lost, sent again, acknowledged, completed, and when.

    Without --transfer, --wr or --all: the most troubled transfer. Where several work requests have one
    wr_id, --wr lists them, with the number that --transfer wants for each.

    \b
    Example:
      rocekit explain x.pcapng --transfer 12
      rocekit explain x.pcapng --transfer 12 --format json
      rocekit explain x.pcapng
    """
    from rocekit.commands.chosen_wr import transfer_of_wr
    from rocekit.commands.screen import show_all
    from rocekit.commands.shared import coloured, emit, fail_on_damage, load, need_packets, not_judged
    from rocekit.errors import RocekitError, check_number
    from rocekit.explanation.transfer import story

    only_one_of(ctx, "every", "numbers")
    only_one_of(ctx, "every", "wr_ids")
    for other in ("every", "numbers", "wr_ids"):
        only_one_of(ctx, "collective", other)
    analysis = load(files, journal, rules=rules, whole=True)
    need_packets(analysis, "explain")
    if collective is not None:
        _explain_collective(analysis, collective, output)
        fail_on_damage(analysis)
        return
    chosen = list(range(len(analysis.transfers))) if every else list(numbers)
    for number in chosen:
        check_number(number, len(analysis.transfers), "transfer")
    chosen += [transfer_of_wr(analysis, wr_id) for wr_id in wr_ids]
    if not chosen:
        if not analysis.transfers:
            raise RocekitError(f"{', '.join(map(str, files))}: no transfers to explain")
        chosen = [max(analysis.transfers, key=lambda t: (len(t.events), t.duration_ns)).id]
    if output == "json":
        documents = (analysis.explain(number).to_dict() for number in chosen)
        emit(next(documents) if len(chosen) == 1 else documents)
    else:
        stories = (story(analysis.explain(number), style=coloured, every=steps) for number in chosen)
        apart = (text if n == 0 else f"\n{text}" for n, text in enumerate(stories))
        show_all(chain(not_judged(analysis), apart))
    fail_on_damage(analysis)


def _explain_collective(analysis: Analysis, number: int, output: str) -> None:
    from rocekit.commands.screen import show
    from rocekit.commands.shared import coloured, emit, not_judged
    from rocekit.errors import RocekitError
    from rocekit.explanation.collective import collective_story

    found = None if analysis.journal is None else analysis.journal.collectives
    if found is None:
        raise RocekitError("no journal tells of collectives: `rocekit record --nccl` writes one")
    if number >= len(found.operations):
        have = f"there are {len(found.operations)}, counted from 0" if found.operations else "there is none"
        raise RocekitError(f"no collective {number}: {have}")
    operation = found.operations[number]
    if output == "json":
        emit(operation.to_dict())
    else:
        show("\n".join([*not_judged(analysis), collective_story(operation, coloured)]))
