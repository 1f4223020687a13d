"""``rocekit fleet analyze``."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import load_numpy
from rocekit.commands.numbers import COUNT, COUNT_OF_BYTES

if TYPE_CHECKING:
    from rocekit.fleet.judgement import FleetVerdict
    from rocekit.fleet.run import FleetProgress


LOOK_S = 5.0
"""Between two looks at the sources. What rests for so long is taken."""
LEAST_MEMORY = 256 << 20
"""Of each process: one that analyzes nothing takes about half of this."""
SHOWN = 10
"""Hosts that stand out, in text."""


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="LAKE",
    help="The folder to add to.",
)
@click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, such as tcp://10.0.0.1:8786.")
@click.option(
    "--workers",
    type=COUNT,
    help="Processes on this machine. [default: one a processor]",
)
@click.option(
    "--memory",
    default="auto",
    show_default=True,
    metavar="BYTES",
    help="Memory of each process, such as 4GiB: one that takes more is stopped.",
)
@click.option(
    "--point",
    metavar="REGEX",
    help="What this finds in a path (its first group) names the capture point; else folders and name do.",
)
@click.option(
    "--transfers",
    default="100",
    show_default=True,
    metavar="N|all",
    help="Transfers without trouble to keep of each capture, the slowest.",
)
@click.option(
    "--split",
    type=COUNT_OF_BYTES,
    default="8G",
    show_default=True,
    help="Split larger captures by pairs of hosts into parts of about so many bytes, at most 8.",
)
@click.option("--no-icrc", is_flag=True, help="Do not verify ICRCs.")
@click.option("--watch", is_flag=True, help="Go on: add what is new or has grown, until Ctrl-C.")
def command(
    sources: tuple[str, ...],
    output: Path,
    scheduler: str | None,
    workers: int | None,
    memory: str,
    point: str | None,
    transfers: str,
    split: int,
    no_icrc: bool,
    watch: bool,
) -> None:
    """Analyze every capture of SOURCE… into LAKE, on the processors of this machine or a Dask cluster.

    A SOURCE is a folder, a capture, a glob in quotes, a URL (s3://, gs://, sftp://, http://), or @FILE with
    one of these a line. Files of a rotation are one capture. Journals are found beside captures. What LAKE
    has is not analyzed again; a run that was stopped goes on where it was.

    \b
    Example:
      rocekit fleet analyze captures/ -o lake
      rocekit fleet analyze 's3://bucket/2026-11-20/*/*.pcapng' -o lake --workers 8
      rocekit fleet analyze captures/ -o lake --point 'host\\d+'
      rocekit fleet analyze captures/ -o /shared/lake --scheduler tcp://10.0.0.1:8786
      rocekit fleet analyze captures/ -o lake --watch
    """
    load_numpy()
    from rocekit.commands.sandbox import become_caller
    from rocekit.errors import RocekitError
    from rocekit.fleet.judgement import summarize
    from rocekit.fleet.lake import Lake, need_polars
    from rocekit.fleet.run import Growth, add_streams, cluster
    from rocekit.fleet.stream_tables import LakeSettings
    from rocekit.fleet.streams import find_streams
    from rocekit.fleet.watching import Watcher
    from rocekit.fleet.witnesses import add_conversations

    if scheduler is not None and workers is not None:
        raise click.UsageError("--workers is for this machine: a scheduler has its own.")
    need_polars()
    _check_memory(memory)
    settings = LakeSettings(_kept(transfers), not no_icrc, split)
    streams = [] if watch else find_streams(sources, point)
    watcher, growing = Watcher(sources, point), Growth()
    found = [file for stream in streams for file in stream.files if "://" not in file]
    local = [source for source in sources if "://" not in source and Path(source).exists()]
    become_caller([*local, *found], [output], or_stay=True)
    lake = Lake(output)
    lake.make(settings)
    with _disk(output), lake.alone(), cluster(scheduler, workers, memory) as client:
        click.echo(f"Dask's dashboard: {client.dashboard_link}", err=True)
        while True:
            if not watch or (streams := watcher.due()):
                lake.unjudge()
                growing.streams = watcher.grown
                progress = add_streams(client, lake, streams, settings, _Line(), growing)
                there = progress.done - progress.new - len(progress.failed)
                progress.failed += add_conversations(client, lake, _Line()).failed
                _tell(output, progress, there, summarize(lake))
            if not watch:
                break
            time.sleep(LOOK_S)
    if progress.failed:
        name, why = progress.failed[0]
        more = f", and {len(progress.failed) - 1:,} more failed" if len(progress.failed) > 1 else ""
        raise RocekitError(f"{name}: {why}{more}")


@contextmanager
def _disk(output: Path) -> Iterator[None]:
    """Say in a line what the LAKE's file system does not do."""
    from rocekit.errors import RocekitError

    try:
        yield
    except OSError as error:
        words = error.strerror or str(error)
        raise RocekitError(
            f"{output}: cannot be written: {words}; complete captures stay, run it again"
        ) from None


def _tell(output: Path, progress: FleetProgress, there: int, verdict: FleetVerdict) -> None:
    """Print what was added, beside how many captures that were there, and which hosts stand out."""
    from rocekit.wire.text_table import safe
    from rocekit.wire.words import plural

    said = [f"{plural(progress.new, 'capture')} analyzed"]
    said += [f"{there:,} were there"] if there else []
    said += [f"{progress.unreadable:,} unreadable (see captures.error)"] if progress.unreadable else []
    said += [f"{progress.replaced:,} older replaced"] if progress.replaced else []
    click.echo(f"{output}: {', '.join(said)}, {progress.packets:,} packets in {progress.seconds:,.1f} s")
    for name, why in progress.failed:
        click.echo(safe(f"  not added: {name}: {why}"), err=True)
    for suspect in verdict.suspects[:SHOWN]:
        click.echo(f"  {suspect.words}")
    if len(verdict.suspects) > SHOWN:
        click.echo(f"  … and {len(verdict.suspects) - SHOWN:,} more hosts (table hosts)")


def _kept(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor all.", param_hint="--transfers")
    return int(text)


def _check_memory(text: str) -> None:
    """Check what is given to Dask as a process's memory."""
    from rocekit.errors import needs_extra

    try:
        from dask.utils import parse_bytes
    except ImportError:
        raise needs_extra("fleet needs", "dask", "fleet") from None
    if text == "auto":
        return
    try:
        given = parse_bytes(text)
    except (ValueError, OverflowError):
        given = -1
    if given < LEAST_MEMORY:
        raise click.BadParameter(
            f"{text!r} is neither auto nor at least {LEAST_MEMORY >> 20} MiB, such as 4GiB.",
            param_hint="--memory",
        )


class _Line:
    """Shows progress: on a terminal one line that changes, else one now and then; what fails at once."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._last = 0.0
        self._shown = 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, progress: FleetProgress) -> None:
        from rocekit.wire.text_table import safe

        clear = "\r\x1b[2K" if self._terminal else ""
        for trouble in progress.troubles[self._shown :]:
            self._shown += 1
            if self._shown <= SHOWN:
                click.echo(f"{clear}{safe(trouble)}", err=True)
            elif self._shown == SHOWN + 1:
                click.echo(f"{clear}more fail: see the end, and captures.error for the unreadable", err=True)
        last = progress.done == progress.total
        if self._terminal:
            words = progress.words()[
                : shutil.get_terminal_size().columns - 1
            ]  # one that wraps is not cleared
            click.echo(f"{clear}{words}", err=True, nl=last)
        elif not progress.workers or progress.seconds - self._last >= self.EVERY_S:
            self._last = progress.seconds
            click.echo(progress.words(), err=True)
