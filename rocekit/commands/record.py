"""``rocekit record``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from rocekit.commands import FILE
from rocekit.errors import RocekitError

if TYPE_CHECKING:
    from rocekit.record.recording import Recording

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
@click.option(
    "--redact", is_flag=True, help="Replace keys, memory addresses and CM private data, the same alike."
)
@click.option("--attach-cm", is_flag=True, help="Also what the kernel's connection manager does. Needs root.")
@click.option("--quiet", "-q", is_flag=True, help="Say nothing on standard error but what fails.")
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
    if write is not None and interface is None:
        raise click.UsageError("--write needs --interface")
    for option, path in (("--output", output), ("--write", write)):
        if str(path) == "-":
            raise click.UsageError(f"{option}: standard output is the program's; name a file")
    from rocekit.files.outputs import check_apart

    check_apart(write, output)
    for path in filter(None, (write, output)):
        program = shutil.which(command_line[0])
        if program is not None and path.exists() and path.samefile(program):
            raise RocekitError(f"{path}: this is the program; name another file")
    from rocekit.record import ProgramError, ProgramRecorder, find_program, holding_signals
    from rocekit.record.build import interposer

    try:
        find_program(command_line[0])
        library = interposer()
        with ExitStack() as undo:
            # Before NumPy comes with threads of its own, which would take signals that are the program's.
            with holding_signals() as mask:
                capture = None
                if interface is not None:
                    from rocekit.record.capture import PacketCapture

                    folder = undo.enter_context(TemporaryDirectory(prefix="rocekit-record-"))
                    capture = PacketCapture(interface, write or Path(folder) / "packets.pcapng")
                kernel_cm = None
                if attach_cm:
                    from rocekit.record.kernel_cm import KernelCm

                    kernel_cm = KernelCm()
                result = ProgramRecorder(
                    command_line,
                    output or default_output(command_line[0], write),
                    library,
                    mask=mask,
                    slots=1 << (ring_size - 1).bit_length(),
                    children=follow_children,
                    redact=redact,
                    nicer=5,
                    capture=capture,
                    kernel_cm=kernel_cm,
                ).run()
            for what in result.failed:
                click.secho(f"record: {what}; what is there is kept, and lacks the rest", err=True, fg="red")
            if not quiet:
                tell(result)
                if redact and write is not None:
                    what = "--redact is for the journal, the packets are as they were"
                    click.secho(
                        f"record: {what}: rocekit slice --redact replaces both alike", err=True, fg="yellow"
                    )
                if capture is not None:
                    try:
                        explain(capture.path, result, write)
                    except RocekitError as error:
                        click.secho(f"record: cannot be explained: {error}", err=True, fg="red")
    except ProgramError as error:
        click.echo(f"rocekit: error: {error}", err=True)
        ctx.exit(error.status)
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
    for words in shortcomings(result):
        click.secho(f"record: {words}", err=True, fg="yellow")


def shortcomings(result: Recording) -> list[str]:
    """What the journal lacks, and why."""
    words = []
    if not result.processes:
        words.append(
            "no process opened a verbs device where it could be seen: it used none, is linked statically, or "
            "has privileges of its own"
        )
    if result.total_lost:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in result.lost.items())
        words.append(
            f"{result.total_lost:,} records found no room ({kinds}): a larger --ring-size holds more"
        )
    words += [f"not seen: {what}" for what in dict.fromkeys(result.not_recorded)]
    if result.going_on:
        words.append(
            f"processes that go on are not recorded any more: {', '.join(map(str, result.going_on))}"
        )
    return words


def explain(capture: Path, result: Recording, kept: Path | None) -> None:
    """The transfers of the packets and the journal, on standard error: standard output is the program's."""
    from rocekit.analysis import analyze
    from rocekit.commands.shared import coloured
    from rocekit.explanation.transfer import story
    from rocekit.report.text import summary

    analysis = analyze(capture, journals=[result.journal])
    click.echo(summary(analysis, style=coloured), err=True)
    if analysis.transfers:
        worst = max(analysis.transfers, key=lambda t: (len(t.events), t.duration_ns)).id
        click.echo(f"\n{story(analysis.explain(worst), style=coloured)}", err=True)
    if kept is not None:
        click.secho(
            f"\nmore: rocekit explain {kept} --journal {result.journal} --transfer N", err=True, dim=True
        )


def end_as(result: Recording) -> None:
    """End as the program ended: with its status, or by its signal."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed when we were started
            stream.flush()
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
