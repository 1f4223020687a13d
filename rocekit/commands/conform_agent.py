"""``rocekit conform-agent``."""

from __future__ import annotations

import click

from rocekit.commands.frames import remote_option
from rocekit.commands.numbers import INDEX, Number


@click.command()
@click.option("--device", "-d", metavar="NAME", help="The device, such as rxe0.  [default: the first]")
@click.option("--gid-index", "-x", type=INDEX, help="Its GID, of those that it has.")
@click.option("--bind", metavar="IP", default="127.0.0.1", show_default=True, help="Where peers connect.")
@click.option(
    "--port", type=Number("count", 0, 65535), default=18520, show_default=True, help="The TCP port."
)
@click.option("--once", is_flag=True, help="End when the first peer has gone.")
@remote_option
def command(
    device: str | None, gid_index: int | None, bind: str, port: int, once: bool, allow_remote: tuple[str, ...]
) -> None:
    """Drive a device for drills that are played elsewhere (`rocekit conform --agent`).

    The agent does what the device's program does in a drill: it makes QPs and memory, posts and polls. It
    listens on loopback unless --bind names another address: whoever connects may use the device. QPs are
    connected to addresses of this machine only, unless --allow-remote names others.

    \b
    Example:
      rocekit conform-agent --device rxe0
    """
    from rocekit.conform.agent import serve
    from rocekit.conform.verbs_device import VerbsConformDevice

    made = VerbsConformDevice(device, gid_index=gid_index, allowed=allow_remote)
    try:
        serve(
            made,
            bind,
            port,
            once=once,
            ready=lambda host, where: click.echo(f"{made.name} ({made.ip}): waiting at {host} port {where}"),
        )
    finally:
        made.shut()
