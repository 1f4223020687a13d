"""``rocekit decode``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option
from rocekit.commands.decode_fields import FieldLines, VerboseLines, complete_fields, field_names, list_fields
from rocekit.commands.numbers import COUNT
from rocekit.commands.options import capture, filter_option, only_one_of

if TYPE_CHECKING:
    from rocekit.commands.screen import Screen
    from rocekit.files.reader import CaptureReader
    from rocekit.packets import Packets
    from rocekit.packets.decoder import Counts, Decoder
    from rocekit.packets.filters import Filter


def _refuse_output(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and not ctx.resilient_parsing:
        raise click.UsageError(
            f"decode prints; rocekit replay FILE --filter EXPR -w {value} or rocekit slice writes packets"
        )


@click.command()
@capture
@click.option(
    "--fields",
    metavar="A,B,…",
    is_eager=True,
    callback=list_fields,
    shell_complete=complete_fields,
    help='Print these columns only, separated by tabs; "help" lists all.',
)
@filter_option
@click.option("-V", "--verbose", is_flag=True, help="Every field of every header, a line each.")
@click.option("--count", "-c", type=COUNT, help="Stop after N packets.")
@click.option(
    *("-o", "-w", "--output", "--write", "written"),
    hidden=True,
    expose_value=False,
    callback=_refuse_output,
)
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    fields: str | None,
    chosen: Filter | None,
    verbose: bool,
    count: int | None,
    output: str,
) -> None:
    """Print a line for each RoCE packet of FILE ("-": standard input).

    A filter is an expression with the names of fields, rocekit's or tshark's: comparisons, and, or, not,
    in (…), arithmetic. Opcodes are names in any case, one (RC_SEND_ONLY) or a class of them (WRITE, READ,
    ATOMIC, UD); addresses are as usual or a network after "in"; and the name of a header is true if a packet
    has it. JSON is one object on each line.

    \b
    Example:
      rocekit decode x.pcapng
      rocekit decode x.pcapng --filter 'src == 10.9.0.1 and opcode == RC_RDMA_READ_REQUEST'
      rocekit decode x.pcapng --filter 'AETH and syndrome >= 0x20' --format json
      rocekit decode -r x.pcapng -Y 'ip.src == 10.9.0.1 && infiniband.bth.opcode == WRITE' -c 10
      rocekit decode x.pcapng --fields frame,psn,dest_qpn,ecn --count 10
      rocekit decode x.pcapng --fields help
      rocekit decode x.pcapng --filter 'frame == 193' -V
    """
    from rocekit.commands.screen import screen
    from rocekit.files.reader import open_capture
    from rocekit.packets.decoder import COUNTED, Decoder

    decoder = Decoder(foreign=COUNTED)
    names = field_names(fields)
    only_one_of(ctx, "fields", "verbose")
    if verbose and output == "json":
        raise click.UsageError("-V is text: JSON has every field without it")
    with open_capture("-" if str(file) == "-" else file) as capture, screen() as out:
        show = _printer(out, names, verbose, output == "json")
        printed = 0
        with closing(_packets(capture, decoder, chosen)) as batches:
            for packets, first_ns in batches:
                if count is not None and printed + len(packets) >= count:
                    packets = packets.where(slice(count - printed))
                printed += len(packets)
                show(packets, first_ns)
                if printed == count:
                    return
        decoder.rest()
        out.close()
        _end(capture, decoder.counts, printed, chosen is not None)


def _packets(
    capture: CaptureReader, decoder: Decoder, chosen: Filter | None
) -> Generator[tuple[Packets, int]]:
    """Batches of the packets to print, and the time of the capture's first frame."""
    from rocekit.packets.decode_ahead import decoded

    first_ns = None
    for batch, packets, _ in decoded(capture, decoder):
        if not len(batch):
            continue
        if first_ns is None:
            first_ns = int(batch.time_ns[0])
        if chosen is not None and len(packets):
            packets = packets.where(chosen(packets))
        if len(packets):
            yield packets, first_ns


def _end(capture: CaptureReader, counts: Counts, printed: int, filtered: bool) -> None:
    """Report what was not printed or is no RoCE, and that the capture could not be read to its end."""
    from rocekit.explanation.contents import Contents
    from rocekit.packets.other_frames import NOT_ROCE
    from rocekit.wire.words import plural

    contents = Contents(counts, capture.skipped)
    refusal = contents.refusal("judge")
    foreign = counts.others.get(NOT_ROCE, 0)
    if refusal is not None:
        click.echo(refusal, err=True)
    elif not printed and filtered:
        click.echo(f"no packet matches the filter in {capture.frames:,} frames", err=True)
    if contents.notice is not None:
        click.echo(f"{contents.notice} {contents.next_step}", err=True)
    if foreign and refusal is None:
        click.echo(f"{plural(foreign, 'frame')} of these: {NOT_ROCE}, probably another program's", err=True)
    capture.damage.end(capture.name)


def _printer(out: Screen, names: list[str], verbose: bool, as_json: bool) -> Callable[[Packets, int], None]:
    """What prints the packets of a batch; it is also given the time of the capture's first frame."""
    from rocekit.commands.screen import colours, print_pieces

    if names or as_json:  # for programs, and for copying
        fields = FieldLines(names, as_json)
        return lambda packets, _: print_pieces(fields.pieces(packets))
    if verbose:
        headers = VerboseLines()
        return lambda packets, _: out.print(headers.lines(packets))
    from rocekit.commands.decode_lines import PacketLines

    if sys.stdout.isatty():
        fit = PacketLines()
        return lambda packets, first_ns: out.print(fit.lines(packets, first_ns))
    lines = PacketLines(coloured=colours(sys.stdout))
    return lambda packets, first_ns: print_pieces(lines.pieces(packets, first_ns))
