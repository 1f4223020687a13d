"""``rocekit decode``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option
from rocekit.commands.decode_fields import FieldLines, VerboseLines, complete_fields, field_names, list_fields
from rocekit.commands.numbers import COUNT
from rocekit.commands.options import capture, filter_option, only_one_of
from rocekit.wire import OPCODE_NAMES, OPCODES
from rocekit.wire.network import ECN_CE

if TYPE_CHECKING:
    from rocekit.files.reader import CaptureReader
    from rocekit.packets import Packets, Row
    from rocekit.packets.decoder import Counts, Decoder
    from rocekit.packets.filters import Filter
    from rocekit.wire.mad import Mad


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
@click.option("-w", "--write", hidden=True, expose_value=False, callback=_refuse_output)
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
        printer = _printer(names, verbose, output == "json")
        printed = 0
        for packets, first_ns in _packets(capture, decoder, chosen):
            if count is not None and printed + len(packets) >= count:
                packets = packets.where(slice(count - printed))
            printed += len(packets)
            lines = list(printer.lines(packets, first_ns))
            if not lines:
                continue
            if names or output == "json":  # for programs, and for copying
                click.echo("\n".join(lines))
            else:
                out.print(lines)
            if printed == count:
                return
        decoder.rest()
        out.close()
        _end(capture, decoder.counts, printed, chosen is not None)


def _packets(
    capture: CaptureReader, decoder: Decoder, chosen: Filter | None
) -> Iterator[tuple[Packets, int]]:
    """Batches of the packets to print, and the time of the capture's first frame."""
    first_ns = None
    for batch in capture:
        if not len(batch):
            continue
        if first_ns is None:
            first_ns = int(batch.time_ns[0])
        packets = decoder.decode(batch)
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


def _printer(
    names: list[str], verbose: bool, as_json: bool
) -> FieldLines | VerboseLines | _Json | PacketLines:
    if names:
        return FieldLines(names, as_json)
    if verbose:
        return VerboseLines()
    return _Json() if as_json else PacketLines()


class _Json:
    """Each packet as an object with its fields."""

    def __init__(self) -> None:
        from rocekit.packets.mads import RequestPorts

        self._ports = RequestPorts()

    def lines(self, packets: Packets, first_ns: int) -> Iterator[str]:
        mads = _mads(packets)
        for i, row in enumerate(packets.rows()):
            document: dict[str, object] = dict(row)
            if i in mads:
                document["mad"] = mads[i].to_dict(self._ports.of(mads[i].cm, row["src"], row["dst"]))
            yield json.dumps(document, ensure_ascii=sys.stdout.isatty())


def _mads(packets: Packets) -> dict[int, Mad]:
    from rocekit.packets.mads import find_mads

    return dict(find_mads(packets))


class PacketLines:
    """Lines for people: common fields in columns, then the other fields of the headers."""

    def __init__(self) -> None:
        self._widths = {"frame": 5, "time": 12, "route": 0, "opcode": 0, "qpn": 6}
        self._head = True
        from rocekit.commands.screen import width
        from rocekit.packets.mads import RequestPorts

        self._width = width()

        self._ports = RequestPorts()

    def lines(self, packets: Packets, first_ns: int) -> Iterator[str]:
        from rocekit.wire.text_table import seen_width

        mads = _mads(packets)
        rows = list(packets.rows())
        cells = [self._cells(row, first_ns) for row in rows]
        for cell in cells:
            for name, text in cell.items():
                if len(text) > self._widths[name]:
                    self._widths[name] = len(text)
        if self._head:
            head = {
                "frame": "frame",
                "time": "seconds",
                "route": "from → to",
                "opcode": "opcode",
                "qpn": "to QP",
            }
            yield click.style(f"{self._aligned(head)}       PSN", bold=True)
            self._head = False
        for i, (row, cell) in enumerate(zip(rows, cells, strict=True)):
            psn = f"{row['psn']:>10}" if "psn" in row else " " * 10
            mad = mads.get(i)
            port = None if mad is None else self._ports.of(mad.cm, row["src"], row["dst"])
            details = _details(row, mad, port)
            line = f"{self._aligned(cell)}{psn}"
            if self._width is not None and seen_width(line) + 2 + seen_width(details) > self._width:
                yield line.rstrip()
                line = " " * 5
            yield f"{line}  {details}".rstrip()

    @staticmethod
    def _cells(row: Row, first_ns: int) -> dict[str, str]:
        opcode, time_ns = row["opcode"], row["time_ns"]
        assert isinstance(time_ns, int)
        since = time_ns - first_ns
        return {
            "frame": str(row["frame"]),
            "time": f"{'-' if since < 0 else ''}{abs(since) // 10**9}.{abs(since) % 10**9:09}",
            "route": f"{row['src']} → {row['dst']}",
            "opcode": f"opcode {opcode:#04x}" if isinstance(opcode, int) else opcode or "?",
            "qpn": f"{row['dest_qpn']:#x}" if "dest_qpn" in row else "",
        }

    def _aligned(self, cell: dict[str, str]) -> str:
        w = self._widths
        return (
            f"{cell['frame']:>{w['frame']}}  {cell['time']:>{w['time']}}  {cell['route']:<{w['route']}}  "
            f"{cell['opcode']:<{w['opcode']}}  {cell['qpn']:>{w['qpn']}}"
        )


def _cut_off(row: Row) -> str:
    """The first header that a truncated packet has not; empty if it has all."""
    if row["opcode"] is None:
        return "BTH"
    opcode = OPCODES.get(OPCODE_NAMES.get(row["opcode"], -1))
    for header in () if opcode is None else opcode.headers:
        names = [field.name for field in header.fields if not field.reserved and not field.is_bytes]
        if names and not any(name in row for name in names):
            return header.name
    return ""


def _details(row: Row, mad: Mad | None, port: int | None = None) -> str:
    """The fields of extended headers, the flags and the checks, in words.

    Args:
        port: of the REQ that a CM message is or answers.
    """
    from rocekit.packets.malformed import CUT, MALFORMED
    from rocekit.wire import syndrome_kind, syndrome_name

    parts: list[str] = []

    def add(name: str, form: str) -> None:
        if name in row:
            parts.append(form.format(row[name]))

    if mad is not None:
        parts.append(click.style(mad.summary(port), fg="cyan"))
    else:
        add("src_qpn", "from QP {:#x}")
        add("qkey", "qkey {:#x}")
    syndrome = row.get("syndrome")
    if row["opcode"] in _ACKS and syndrome is None and row["truncated"]:
        parts.append("ACK or NAK unknown")
    if isinstance(syndrome, int):
        words = syndrome_name(syndrome)
        parts.append(words if syndrome_kind(syndrome) == 0 else click.style(words, fg="red"))
    add("msn", "MSN {}")
    add("ee_context", "EE context {:#x}")
    add("xrc_srqn", "SRQ {:#x}")
    add("remote_va", "va {:#x}")
    add("rkey", "rkey {:#x}")
    add("dma_length", "length {}")
    if row["opcode"] in _SWAPS:
        add("swap_add", "swap {:#x}")
        add("compare", "compare {:#x}")
    else:
        add("swap_add", "add {:#x}")
    add("original", "original {:#x}")
    add("immediate", "immediate {:#x}")
    add("invalidate_rkey", "invalidate {:#x}")
    add("placement_type", "placement {}")
    add("selectivity", "selectivity {}")
    if row["payload_length"] and mad is None:
        parts.append(f"{row['payload_length']} bytes")
    flags = [word for name, word in _FLAGS.items() if row.get(name)]
    if row["ecn"] == ECN_CE:
        flags.append("CE")
    if row["roce_version"] == 1:
        flags.append("RoCE v1")
    flags += [layer for layer in row["encapsulation"] or () if not layer.startswith("IPv")]
    if row["fragment"]:
        flags.append("first fragment")
    if row["truncated"]:
        header = _cut_off(row)
        flags.append(f"truncated, no {header}" if header else "truncated")
    if flags:
        parts.append(click.style(f"[{', '.join(flags)}]", dim=True))
    if row["icrc_state"] == "invalid":
        parts.append(click.style("ICRC INVALID", fg="red", bold=True))
    if row["malformed"] and row["malformed"] != MALFORMED[CUT]:
        parts.append(click.style(f"MALFORMED: {row['malformed']}", fg="red", bold=True))
    return "  ".join(parts)


_FLAGS = {"ackreq": "ack requested", "solicited": "solicited", "fecn": "FECN", "becn": "BECN"}
_SWAPS = frozenset(f"{transport}_COMPARE_SWAP" for transport in ("RC", "RD", "XRC"))
_ACKS = frozenset(opcode.name for opcode in OPCODES.values() if opcode.operation == "ACK")
