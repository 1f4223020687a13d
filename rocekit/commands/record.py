"""``rocekit record``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands.numbers import Number
from rocekit.commands.options import JOURNAL, PCAPNG
from rocekit.errors import RocekitError
from rocekit.files import JOURNAL_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocekit.journal.rotating import FileLimits
    from rocekit.record.lines.selection import RecordFilter
    from rocekit.record.rank import Rank
    from rocekit.record.recording import Recording


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--output",
    "-o",
    type=JOURNAL,
    metavar="FILE",
    help="The journal; x.rank-3.journal.jsonl of rank 3.  [default: PROGRAM.journal.jsonl]",
)
@click.option(
    "--attach",
    type=Number("count", 1, (1 << 31) - 1),
    metavar="PID",
    help="Record a program that runs already, until Ctrl-C or its end, instead of starting one.",
)
@click.option("--interface", "-i", metavar="IFACE", help="Also capture packets, and explain them.")
@click.option("--write", "-w", type=PCAPNG, metavar="FILE", help="Keep the packets in a pcapng file.")
@click.option(
    "--ring-size",
    type=Number("count", 64, 1 << 24),
    default=32768,
    show_default=True,
    metavar="SLOTS",
    help="Slots in each thread's ring for records not written yet; a work request takes two.",
)
@click.option(
    "--rotate",
    multiple=True,
    metavar="SIZE|TIME",
    help="Begin a new journal after so many bytes (100M) or so long (1h); both may be given.",
)
@click.option(
    "--keep",
    metavar="N|SIZE",
    help="With --rotate, keep only the N newest files, or so many bytes of all files (1G).",
)
@click.option(
    "--qp",
    "qps",
    type=Number("count", 1, (1 << 24) - 1),
    multiple=True,
    metavar="QPN",
    help="Record only work requests of this QP; may be repeated.",
)
@click.option(
    "--opcode",
    "opcodes",
    multiple=True,
    metavar="NAME",
    help="Record only this opcode, such as RDMA_READ, or RECV; may be repeated.",
)
@click.option(
    "--every",
    type=Number("count", 1),
    metavar="N",
    help="Record one work request in N of each queue, and those that fail.",
)
@click.option(
    "--errors",
    type=Number("count", 0, 1 << 20),
    metavar="N",
    help="Record work requests that fail, and the N before each on its queue.",
)
@click.option("--summary", is_flag=True, help="Record totals of each QP, and a line only for what fails.")
@click.option(
    "--follow-children/--no-follow-children",
    default=True,
    show_default=True,
    help="Also record the programs that the program starts.",
)
@click.option(
    "--redact", is_flag=True, help="Replace keys, memory addresses and CM private data, equal values equally."
)
@click.option(
    "--nccl",
    is_flag=True,
    help="Load NCCL's profiler plug-in too: journals of collectives beside FILE, one for each process.",
)
@click.option("--attach-cm", is_flag=True, help="Also record the kernel's connection manager. Needs root.")
@click.option(
    "--counters/--no-counters",
    default=True,
    show_default=True,
    help="Write the counters of the RDMA devices, before and after the program.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print only failures on standard error.")
@click.argument("command_line", metavar="-- PROGRAM…", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    output: Path | None,
    attach: int | None,
    interface: str | None,
    write: Path | None,
    ring_size: int,
    rotate: tuple[str, ...],
    keep: str | None,
    qps: tuple[int, ...],
    opcodes: tuple[str, ...],
    every: int | None,
    errors: int | None,
    summary: bool,
    follow_children: bool,
    redact: bool,
    nccl: bool,
    attach_cm: bool,
    counters: bool,
    quiet: bool,
    command_line: tuple[str, ...],
) -> None:
    """Run a program and write a journal of its verbs calls: strace for RDMA.

    The program is not changed and hardly slowed down: a library that is loaded into it writes work requests,
    completions, queue pairs, memory regions and CM events to shared memory. Records that do not fit are
    counted; the program never waits for them. Output, exit status and signals are those of the program.

    Behind srun, mpirun or torchrun (mpirun -n 4 rocekit record -- PROGRAM) each rank has a journal, and with
    --write a capture, named by it.

    For hours: --rotate 100M --keep 1G writes x_00001_20261120160858.journal.jsonl and so on, and removes the
    oldest. `rocekit analyze` finds them beside x.pcapng; --journal rotated:FIRST..LAST reads them as one.
    --every, --errors, --qp, --opcode and --summary record less: what was left out is counted in the journal.

    --attach PID records a program that runs, without a restart: its next post or poll lets the recorder
    in, and Ctrl-C takes it out again. What it did before is unknown, and the journal says so.

    \b
    Example:
      rocekit record -- ib_write_bw -d rxe0 10.9.0.2
      rocekit record --interface eth0 --write x.pcapng -- rping -c -a 10.9.0.2 -C 5
      rocekit record -o x.journal.jsonl --redact -- python train.py
      rocekit record --rotate 100M --rotate 1h --keep 1G -- python train.py
      rocekit record --nccl --interface eth0 --write x.pcapng -- python train.py
      rocekit record --attach 4711 -o x.journal.jsonl
    """
    if attach is not None and command_line:
        raise click.UsageError("--attach records a program that runs: name no other")
    if attach is not None and nccl:
        raise click.UsageError(
            "--nccl is for a program that is started: NCCL loads its profiler plug-in at its start"
        )
    if attach is None and not command_line:
        raise click.UsageError("name a program, behind --, or one that runs by --attach PID")
    if nccl and redact:
        raise click.UsageError("--redact does not change what NCCL tells: leave out --nccl")
    if write is not None and interface is None:
        raise click.UsageError("--write needs --interface")
    for option, path in (("--output", output), ("--write", write)):
        if str(path) == "-":
            raise click.UsageError(f"{option}: standard output belongs to the program: name a file")
    limits = _limits(rotate, keep)
    choice = _choice(qps, opcodes, every, errors, summary)
    from rocekit.record.rank import find_rank

    rank = find_rank(os.environ)
    if rank is not None:
        write = write and rank.name(write)
        output = output and rank.name(output)
    target = None
    if attach is not None:
        from rocekit.record.attach.target import RunningProgram

        target = RunningProgram(attach)
    name = command_line[0] if target is None else target.exe
    output = output or default_output(name, write, rank)
    _check_outputs(name, command_line[1:], write, output)
    from rocekit.record import JournalRecorder, ProgramError, ProgramRecorder, find_program, holding_signals
    from rocekit.record.counters_around import CountersAround
    from rocekit.record.outcome import end_as, failures, outcome
    from rocekit.record.start import NICER

    try:
        from rocekit.record.build import interposer

        if target is None:
            find_program(name)
        library = interposer()
        if nccl:
            _load_profiler(output)
        with ExitStack() as undo:
            # Before NumPy starts threads, which would take signals meant for the program.
            with holding_signals() as mask:
                capture = None
                if interface is not None:
                    from rocekit.record.capture import PacketCapture

                    packets = write
                    if packets is None:
                        from tempfile import TemporaryDirectory

                        folder = undo.enter_context(TemporaryDirectory(prefix="rocekit-record-"))
                        packets = Path(folder) / "packets.pcapng"
                    capture = PacketCapture(interface, packets)
                kernel_cm = None
                if attach_cm:
                    from rocekit.record.kernel_cm import KernelCm

                    kernel_cm = KernelCm()
                options: dict[str, Any] = {
                    "slots": 1 << (ring_size - 1).bit_length(),
                    "redact": redact,
                    "nicer": NICER,
                    "capture": capture,
                    "kernel_cm": kernel_cm,
                    "counters": CountersAround(interface, capture) if counters else None,
                    "rank": None if rank is None else rank.number,
                    "limits": limits,
                    "choice": choice,
                }
                recorder: JournalRecorder
                if target is None:
                    options |= {"mask": mask, "children": follow_children}
                    recorder = ProgramRecorder(command_line, output, library, **options)
                else:
                    from rocekit.record.attach.attached_recorder import AttachedRecorder

                    recorder = AttachedRecorder(target, output, library, told=_say, **options)
                result = recorder.run()
            _tell(failures(result))
            if not quiet:
                _tell(outcome(result))
                if nccl:
                    _tell_collectives(output)
                if redact and write is not None:
                    what = "--redact changes only the journal, not the packets"
                    click.secho(f"record: {what}: rocekit slice --redact changes both", err=True, fg="yellow")
                if capture is not None and not result.unwritten:
                    # What was made for a while is taken away at the end, also by another user.
                    if write is None:
                        _give_to_caller(capture.path.parent, capture.path)
                    from tempfile import gettempdir

                    from rocekit.commands.sandbox import give_up_root

                    made = [] if write is not None else [str(capture.path.parent), gettempdir()]
                    give_up_root([capture.path, result.journal], made)
                    try:
                        explain(capture.path, result, write)
                    except RocekitError as error:
                        click.secho(f"record: cannot be explained: {error}", err=True, fg="red")
    except ProgramError as error:
        click.echo(f"rocekit: error: {error}", err=True)
        ctx.exit(error.status)
    if target is None:
        end_as(result)
    elif result.failed:
        ctx.exit(1)


def _tell(lines: Iterator[tuple[str, str]]) -> None:
    for words, style in lines:
        click.secho(words, err=True, **({"dim": True} if style == "dim" else {"fg": style}))


def _say(words: str) -> None:
    click.secho(f"record: {words}", err=True, dim=True)


def _give_to_caller(*paths: Path) -> None:
    """Let the user who called sudo have files that root made."""
    from contextlib import suppress

    from rocekit.machine.rights import calling_user

    user = calling_user()
    if user is None or os.geteuid() != 0:
        return
    for path in paths:
        with suppress(OSError):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)


def _choice(
    qps: tuple[int, ...], opcodes: tuple[str, ...], every: int | None, errors: int | None, summary: bool
) -> RecordFilter:
    """Which work requests to record."""
    from rocekit.record.lines.selection import RecordFilter
    from rocekit.record.verbs_names import WR_OPCODES

    known = {*WR_OPCODES.values(), "RECV"}
    names = frozenset(name.upper() for name in opcodes)
    for name in names - known:
        raise click.BadParameter(
            f"no opcode {name!r}; there are {', '.join(sorted(known))}", param_hint="--opcode"
        )
    if summary and every is not None:
        raise click.UsageError("--summary records none but failures: leave out --every")
    return RecordFilter(frozenset(qps), names, every, errors, summary)


def _limits(rotate: tuple[str, ...], keep: str | None) -> FileLimits | None:
    """When the next journal begins; None for one file."""
    from rocekit.commands.rotation import keep_of, rotate_after

    if not rotate:
        if keep is not None:
            raise click.UsageError("--keep is for --rotate: name a size or a time after which a file is full")
        return None
    from rocekit.journal.rotating import FileLimits

    after = [rotate_after(text) for text in rotate]
    size = min((size for size, _ in after if size is not None), default=None)
    period_ns = min((period for _, period in after if period is not None), default=None)
    files, most = (None, None) if keep is None else keep_of(keep)
    return FileLimits(size, period_ns, files, most)


def _collectives_beside(output: Path, process: str) -> Path:
    """NCCL's journal of a process, beside the recorder's: found beside the same capture, too."""
    base = output.name.removesuffix(JOURNAL_SUFFIX).removesuffix(".jsonl")
    return output.with_name(f"{base}.nccl-{process}{JOURNAL_SUFFIX}")


def _load_profiler(output: Path) -> None:
    """Have the program's NCCL load the plug-in, and tell it where to write."""
    from rocekit.record.build import nccl_profiler

    if (other := os.environ.get("NCCL_PROFILER_PLUGIN")) is not None:
        raise RocekitError(f"NCCL_PROFILER_PLUGIN is {other} already: NCCL takes one; unset it")
    os.environ["NCCL_PROFILER_PLUGIN"] = str(nccl_profiler())
    os.environ["ROCEKIT_NCCL_JOURNAL"] = str(_collectives_beside(output.absolute(), "%p"))


def _tell_collectives(output: Path) -> None:
    found = sorted(output.parent.glob(_collectives_beside(output, "*").name))
    if found:
        names = ", ".join(map(str, found))
        click.secho(f"record: NCCL's journals: {names}", err=True, dim=True)
    else:
        words = "NCCL loaded no profiler plug-in: the program does not use it, or it is older than 2.27"
        click.secho(f"record: {words}", err=True, fg="yellow")


def default_output(program: str, write: Path | None, rank: Rank | None) -> Path:
    """Beside the capture, where analyze finds it; else a new file in the current folder, of this rank."""
    if write is not None:
        return write.with_suffix("").with_name(write.with_suffix("").name + JOURNAL_SUFFIX)
    from rocekit.record.rank import default_journal

    return Path(default_journal(program, rank))


def _check_outputs(name: str, inputs: tuple[str, ...], write: Path | None, output: Path) -> None:
    """Check that what is written is neither the program nor a file that it may read."""
    from rocekit.files.outputs import check_apart, check_output
    from rocekit.record.program import which

    check_apart(write, output)
    program = which(name)
    for path in filter(None, (write, output)):
        if program is not None and path.exists() and path.samefile(program):
            raise RocekitError(f"{path}: this is the program: name another file")
        check_output(path, inputs)  # a script, a file to read


def explain(capture: Path, result: Recording, kept: Path | None) -> None:
    """Print the analysis on standard error: standard output belongs to the program."""
    from rocekit.analysis import analyze
    from rocekit.commands.shared import coloured
    from rocekit.explanation.transfer import story
    from rocekit.report.text import summary

    analysis = analyze(capture, journals=[result.name])
    click.echo(summary(analysis, style=coloured), err=True)
    if analysis.transfers:
        worst = max(analysis.transfers, key=lambda t: (len(t.events), t.duration_ns)).id
        click.echo(f"\n{story(analysis.explain(worst), style=coloured)}", err=True)
    if kept is not None:
        click.secho(
            f"\nmore: rocekit explain {kept} --journal {result.name} --transfer N", err=True, dim=True
        )
