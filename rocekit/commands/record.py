"""``rocekit record``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import FILE

if TYPE_CHECKING:
    from rocekit.record_collect import Recording

JOURNAL_SUFFIX = ".journal.jsonl"
"""As ``rocekit.analysis`` looks for it; that module is too long in coming for a program that waits."""


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--output", "-o", type=FILE, metavar="FILE", help="The journal.  [default: PROGRAM.journal.jsonl]"
)
@click.option("--interface", "-i", metavar="IFACE", help="Capture its packets as well, and explain them.")
@click.option("--write", "-w", type=FILE, metavar="FILE", help="Keep the packets in a pcapng file.")
@click.option(
    "--ring-size",
    type=click.IntRange(min=64, max=1 << 24),
    default=32768,
    show_default=True,
    metavar="SLOTS",
    help="Room for records that are not written out yet, for each thread; a work request takes two slots.",
)
@click.option(
    "--follow-children/--no-follow-children",
    default=True,
    show_default=True,
    help="Record the programs that the program starts as well.",
)
@click.option("--redact", is_flag=True, help="Replace keys and memory addresses, the same ones alike.")
@click.option("--attach-cm", is_flag=True, help="Also what the kernel's connection manager does. Needs root.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing on standard error.")
@click.argument("command_line", metavar="-- PROGRAM…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    output: Path | None,
    interface: str | None,
    write: Path | None,
    ring_size: int,
    follow_children: bool,
    redact: bool,
    attach_cm: bool,
    quiet: bool,
    command_line: tuple[str, ...],
) -> None:
    """Run a program and write the journal of what it asks of verbs: strace for RDMA.

    The program is not changed and not slowed down to speak of: a library that is put into it notes work
    requests, completions, queue pairs, memory regions and connection events in shared memory. What there is
    no room for is counted, never waited for. Its output, exit status and signals are its own.

    \b
    Example:
      rocekit record -- ib_write_bw -d rxe0 10.9.0.2
      rocekit record --interface eth0 --write x.pcapng -- rping -c -a 10.9.0.2 -C 5
      rocekit record -o x.journal.jsonl --redact -- python train.py
    """
    from rocekit.record import Recorder
    from rocekit.record_build import interposer

    if write is not None and interface is None:
        raise click.UsageError("--write needs --interface")
    if output is None:
        output = default_output(command_line[0], write)
    library = interposer()
    recorder = Recorder(
        command_line,
        output,
        library,
        slots=1 << (ring_size - 1).bit_length(),
        children=follow_children,
        redact=redact,
    )
    result = recorder.run()
    if not quiet:
        tell(result)
    end_as(result)


def default_output(program: str, write: Path | None) -> Path:
    """Beside the capture, where it is found by itself; else a new file in the current folder."""
    if write is not None:
        return write.with_suffix("").with_name(write.with_suffix("").name + JOURNAL_SUFFIX)
    stem = Path(program).name
    path = Path(stem + JOURNAL_SUFFIX)
    number = 1
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{JOURNAL_SUFFIX}")
    return path


def tell(result: Recording) -> None:
    """What was recorded, and what was not, on standard error."""
    counts = f"{result.sends:,} sends, {result.receives:,} receives, {result.completions:,} completions"
    click.secho(f"record: {counts}; journal {result.journal}", err=True, dim=True)


def end_as(result: Recording) -> None:
    """End as the program ended: with its status, or by its signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if result.signal is None:
        raise SystemExit(result.status)
    import resource

    # The program has left its core, if one was wanted.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if result.signal not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(result.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {result.signal})
    os.kill(os.getpid(), result.signal)
    raise SystemExit(128 + result.signal)
