"""``rocekit generate``."""

from __future__ import annotations

import io
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from rocekit.commands.generate_network import check_options, journal_of, network_options, play
from rocekit.commands.numbers import BYTES, COUNT, COUNT_OF_BYTES, INDEX, SHARE, SNAPLEN, Number
from rocekit.commands.options import FRAMES, output_option
from rocekit.commands.screen import say

_SPEED = Number("number", above=0)
_OPERATIONS = ("write", "send", "read", "fetch_add")


def _sizes(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    return tuple(int(COUNT_OF_BYTES.convert(part, _parameter, _ctx)) for part in value.split(","))


@click.command()
@click.argument("file", type=FRAMES, required=False)
@output_option("out", FRAMES, help="As FILE.")
@click.option("--packets", "-c", type=COUNT, default=1_000_000, show_default=True, metavar="N")
@click.option(
    "--operation",
    "operations",
    type=click.Choice(_OPERATIONS),
    multiple=True,
    default=("write",),
    show_default=True,
    help="Operation of messages; several are mixed at random.",
)
@click.option(
    "--size",
    "sizes",
    callback=_sizes,
    default="16384",
    show_default=True,
    metavar="BYTES,…",
    help="Payload of a message; several are mixed at random.",
)
@click.option("--mtu", type=BYTES, default=1024, show_default=True, help="Path MTU.")
@click.option("--pairs", type=COUNT, default=64, show_default=True, help="QP pairs.")
@click.option("--one-way", is_flag=True, help="Only one side of each pair sends requests.")
@click.option(
    "--hosts",
    type=COUNT,
    help="Hosts, an even number; of a pattern any number.  [default: 2; of a pattern 5]",
)
@click.option("--ipv6", is_flag=True, help="IPv6 instead of IPv4.")
@click.option("--vlan", type=INDEX, metavar="ID", help="VLAN tag of frames.")
@click.option("--loss", type=SHARE, default=0.0, help="Lose this share of the packets.")
@click.option("--ecn", type=SHARE, default=0.0, help="Mark this share of the packets.")
@click.option(
    "--gbps",
    type=_SPEED,
    help="Speed of the link; of a pattern, of every link.  [default: 100; of a pattern 40]",
)
@click.option("--snaplen", type=SNAPLEN, help="Bytes to keep of each frame.")
@click.option("--seed", type=INDEX, default=0, show_default=True)
@network_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    file: Path | None,
    out: Path | None,
    packets: int,
    operations: tuple[str, ...],
    sizes: tuple[int, ...],
    mtu: int,
    pairs: int,
    one_way: bool,
    hosts: int | None,
    ipv6: bool,
    vlan: int | None,
    loss: float,
    ecn: float,
    gbps: float | None,
    snaplen: int | None,
    seed: int,
    pattern: str | None,
    otg: Path | None,
    **network: Any,
) -> None:
    """Write synthetic traffic to FILE ("-": standard output).

    Without --pattern and --otg: RC traffic, a million packets in seconds. Whole messages between QP pairs
    with valid ICRCs; lost packets are sent again after a NAK or a timeout. FILE is pcapng if its name ends
    so, else pcap.

    With --pattern or --otg, soft hosts send over a switch with queues, in simulated time: it marks packets
    (ECN), pauses links (PFC) and drops what does not fit; receivers send CNPs, and senders slow down (DCQCN).
    FILE is pcapng.

    A journal beside FILE says what happened to every packet that was lost, marked, held or sent again. It is
    the truth to hold an analyzer to, and `analyze` does not look for it. With --pattern or --otg it has the
    queues and rates over time as well, and the work requests, which `analyze` finds. The same seed
    gives the same files.

    \b
    Example:
      rocekit generate x.pcap
      rocekit generate x.pcapng --operation read --operation send --size 64,65536 --loss 0.01
      rocekit generate - --packets 10000000 --snaplen 128 | rocekit analyze -
      rocekit generate x.pcapng --pattern incast --hosts 9 --duration-ms 1
      rocekit generate x.pcapng --otg config.yaml --results csv
    """
    check_options(ctx, pattern, otg)
    if (file is None) == (out is None):
        raise click.UsageError("name one FILE to write, as FILE or with -w")
    file = file or out
    assert file is not None
    to_stdout = str(file) == "-"
    if to_stdout and sys.stdout.isatty():
        raise click.UsageError("a capture is not text: redirect standard output to a file or a pipe")
    from rocekit.files.outputs import Together, check_output, writing

    check_output(file, [] if otg is None else [otg])
    if pattern or otg:
        given = network | {"pattern": pattern, "otg": otg, "operations": operations, "sizes": sizes}
        given |= {"mtu": mtu, "ipv6": ipv6}
        play(file, given, hosts=hosts, gbps=gbps, seed=seed, snaplen=snaplen)
        return
    if "fetch_add" in operations:
        raise click.UsageError("--operation fetch_add goes with --pattern")
    from rocekit.craft.generate import Traffic, generate

    try:
        traffic = Traffic(
            packets=packets,
            operations=tuple(name.upper() for name in operations),
            sizes=sizes,
            mtu=mtu,
            pairs=pairs,
            both_directions=not one_way,
            hosts=2 if hosts is None else hosts,
            ip_version=6 if ipv6 else 4,
            vlan=vlan,
            loss=loss,
            ecn=ecn,
            gbps=100.0 if gbps is None else gbps,
            seed=seed,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    journal = journal_of(file, network | {"otg": otg}, ".truth.jsonl")
    with ExitStack() as stack:
        stack.enter_context(writing(file))
        together = stack.enter_context(Together())
        told = None
        if journal is not None:
            from rocekit.journal import JournalWriter

            lines = io.TextIOWrapper(together.open(journal), encoding="utf-8")
            stack.callback(lines.detach)
            told = JournalWriter(lines)
        done = generate(together.open(file), traffic, snaplen=snaplen, journal=told)
    beside = f"; journal {journal}" if journal else ""
    say(
        f"{file}: {done.packets:,} packets, {done.bytes:,} bytes: {done.messages:,} messages, "
        f"{done.lost:,} losses, {done.marked:,} marked, {done.cnps:,} CNPs{beside}",
        error=to_stdout,
    )
