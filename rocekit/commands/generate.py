"""``rocekit generate``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rocekit.commands import FILE

_OPERATIONS = ("write", "send", "read")


def _sizes(_ctx: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 64,16384") from None


@click.command()
@click.argument("file", type=FILE)
@click.option("--packets", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N")
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
@click.option("--mtu", type=int, default=1024, show_default=True, help="Path MTU.")
@click.option("--pairs", type=int, default=64, show_default=True, help="QP pairs.")
@click.option("--one-way", is_flag=True, help="Only one side of each pair sends requests.")
@click.option("--hosts", type=int, default=2, show_default=True, help="Hosts, an even number.")
@click.option("--ipv6", is_flag=True, help="IPv6 instead of IPv4.")
@click.option("--vlan", type=int, metavar="ID", help="VLAN tag of frames.")
@click.option("--loss", type=float, default=0.0, metavar="SHARE", help="Lose this share of the packets.")
@click.option("--ecn", type=float, default=0.0, metavar="SHARE", help="Mark this share of the packets.")
@click.option("--gbps", type=float, default=100.0, show_default=True, help="Speed of the link.")
@click.option("--snaplen", type=click.IntRange(min=64), metavar="BYTES", help="Bytes to keep of each frame.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def command(
    file: Path,
    packets: int,
    operations: tuple[str, ...],
    sizes: tuple[int, ...],
    mtu: int,
    pairs: int,
    one_way: bool,
    hosts: int,
    ipv6: bool,
    vlan: int | None,
    loss: float,
    ecn: float,
    gbps: float,
    snaplen: int | None,
    seed: int,
) -> None:
    """Write synthetic RC traffic to FILE, a million packets in seconds ("-": standard output).

    Whole messages between QP pairs with valid ICRCs; lost packets are sent again after a NAK or a timeout.
    The same seed gives the same file. FILE is pcapng if its name ends so, else pcap.

    \b
    Example:
      rocekit generate x.pcap
      rocekit generate x.pcapng --operation read --operation send --size 64,65536 --loss 0.01
      rocekit generate - --packets 10000000 --snaplen 128 | rocekit analyze -
    """
    from rocekit.craft.generate import Traffic, generate

    try:
        traffic = Traffic(
            packets=packets,
            operations=tuple(name.upper() for name in operations),
            sizes=sizes,
            mtu=mtu,
            pairs=pairs,
            both_directions=not one_way,
            hosts=hosts,
            ip_version=6 if ipv6 else 4,
            vlan=vlan,
            loss=loss,
            ecn=ecn,
            gbps=gbps,
            seed=seed,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    to_stdout = str(file) == "-"
    if to_stdout and sys.stdout.isatty():
        raise click.UsageError("a capture is not text: redirect standard output to a file or a pipe")
    done = generate("-" if to_stdout else file, traffic, snaplen=snaplen)
    click.echo(
        f"{file}: {done.packets:,} packets, {done.bytes:,} bytes: {done.messages:,} messages, "
        f"{done.lost:,} losses, {done.marked:,} marked, {done.cnps:,} CNPs",
        err=to_stdout,
    )
