"""``rocekit lab``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from rocekit.commands import FILE
from rocekit.commands.numbers import SECONDS, Number


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--netem",
    metavar="FAULT",
    help="Fault for packets that rxe0 sends, as for tc-netem: 'loss 2%'.",
)
@click.option("--netem-b", metavar="FAULT", help="The same for packets that rxe1 sends.")
@click.option(
    "--devices",
    type=Number("count", 2, 8),
    default=2,
    show_default=True,
    metavar="N",
    help="Number of rxe devices; more than two are on a bridge.",
)
@click.option(
    "--out",
    "-o",
    "--output",
    "-w",
    "--write",
    "out",
    type=FILE,
    metavar="FOLDER",
    help="Where to put $ROCEKIT_LAB_OUT, the command's output folder.  [default: lab-out, if not empty]",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="The command's time limit.",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "native", "vm"]),
    default="auto",
    show_default=True,
    help="native: in place, which needs root and a kernel with rxe; vm: in a VM; auto: in place if possible.",
)
@click.option(
    "--kernel",
    metavar="VERSION",
    help="The installed kernel that the VM boots, or how its version starts.  [default: the newest]",
)
@click.option("--quiet", "-q", is_flag=True, help="Only the command's own output.")
@click.argument("command_line", metavar="-- COMMAND…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    netem: str | None,
    netem_b: str | None,
    devices: int,
    out: Path | None,
    timeout_s: float,
    mode: Literal["auto", "native", "vm"],
    kernel: str | None,
    quiet: bool,
    command_line: tuple[str, ...],
) -> None:
    """Run a command between two real rxe devices.

    rxe0 has the addresses 10.9.0.1 and fd00:9::1 on interface va, rxe1 has 10.9.0.2 and fd00:9::2 on vb.
    Their packets cross a veth pair that tcpdump and rocekit trace can capture; with more devices (rxe2 on vc,
    10.9.0.3, …) they cross the bridge vlab. If this kernel has no rxe, or the user is not root, a small VM is
    started, which takes half a minute or more. There the command sees this machine's files read-only; files
    in $ROCEKIT_LAB_OUT are copied back. The exit status is that of the command, or 124 after the time limit.

    \b
    Example:
      rocekit lab -- rdma link
      rocekit lab --devices 3 -- rocekit inject mesh --hosts 3
      rocekit lab --netem 'loss 2%' -- sh -c 'rping -s -a 10.9.0.2 & sleep 1; rping -c -a 10.9.0.2 -C 5 -v'
    """
    from rocekit.lab import run

    try:
        result = run(
            command_line,
            netem=netem,
            netem_b=netem_b,
            devices=devices,
            timeout_s=timeout_s,
            out=out,
            mode=mode,
            kernel=kernel,
        )
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from None
    if not quiet:
        where = f"kernel {result.kernel}"
        if result.mode == "vm":
            where += f" in a VM ({result.accelerator})"
        summary = f"lab: {where}, set up in {result.setup_s:.1f} s, ran {result.command_s:.1f} s"
        if result.timed_out:
            summary += f", stopped at the time limit of {timeout_s:g} s"
        if result.out is not None:
            summary += f"; output in {result.out}"
        click.secho(summary, err=True, dim=True)
    ctx.exit(result.returncode)
