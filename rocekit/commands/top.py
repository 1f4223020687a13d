"""``rocekit top``."""

from __future__ import annotations

import shutil
import sys

import click

from rocekit.commands import load_numpy
from rocekit.commands.numbers import SNAPLEN, Number
from rocekit.commands.options import interface_argument, max_connections_option


@click.command()
@interface_argument
@click.option(
    "--interval",
    type=Number("seconds", 0.1),
    default=1.0,
    show_default=True,
    help="Time between updates.",
)
@click.option("--promiscuous", is_flag=True, help="Also frames for other stations.")
@click.option(
    "--tunnels", is_flag=True, help="Also packets in tunnels (VXLAN, GRE, ERSPAN, MPLS and others)."
)
@click.option(
    "--snaplen",
    type=SNAPLEN,
    help="Bytes to read of each frame.  [default: the headers]",
)
@max_connections_option
def command(
    interface: str,
    interval: float,
    promiscuous: bool,
    tunnels: bool,
    snaplen: int | None,
    max_connections: int,
) -> None:
    """Watch the connections of an interface: rate, outstanding packets, round trip, sent again, findings.

    Keys: arrows choose a row and the column to sort by, r reverses, / filters, Enter opens a connection, Esc
    goes back, Space freezes the screen, q quits. Needs the right to capture and the extra rocekit[top].

    Only the headers of frames are read: ICRCs of packets of more than 160 bytes are not checked. --snaplen
    65535 checks all.

    \b
    Example:
      rocekit top eth0
      rocekit top eth0 --interval 0.5
    """
    from rocekit.errors import RocekitError, needs_extra

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RocekitError("top needs a terminal; `rocekit trace` prints lines")
    load_numpy()
    try:
        from rocekit.live.top import MIN_COLUMNS, MIN_ROWS, Top
    except ModuleNotFoundError as error:
        raise needs_extra("top needs", error.name, "top") from None
    columns, rows = shutil.get_terminal_size()
    if columns < MIN_COLUMNS or rows < MIN_ROWS:
        least = f"{MIN_COLUMNS} columns and {MIN_ROWS} rows"
        raise RocekitError(f"this terminal has {columns} columns and {rows} rows; top needs {least}")
    from rocekit.commands.sandbox import give_up_root
    from rocekit.files.interface import LiveCapture
    from rocekit.live.watch import Watch

    with LiveCapture(interface, promiscuous=promiscuous, tunnels=tunnels, snaplen=snaplen) as capture:
        give_up_root()
        problem = Top(interface, capture, Watch(max_connections), interval_s=interval).run()
    if problem is not None:
        raise problem
