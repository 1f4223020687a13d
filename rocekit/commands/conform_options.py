"""What drill and conform share: which device, and where the packet side is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import F, interfaces
from rocekit.commands.frames import remote_option

if TYPE_CHECKING:
    from rocekit.conform.bench import Bench

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--device",
        "-d",
        metavar="NAME",
        help="A verbs device, such as rxe0.  [default: soft]",
    ),
    click.option(
        "--agent", metavar="HOST[:PORT]", help="A device elsewhere, by `rocekit conform-agent` there."
    ),
    click.option("--gid-index", "-x", type=int, metavar="N", help="The device's GID, of those that it has."),
    click.option(
        "--interface",
        metavar="IFACE",
        shell_complete=interfaces,
        help="Where the packet side sends and receives, such as the other end of a veth pair.",
    ),
    click.option("--peer-ip", metavar="IP", help="The packet side's address.  [default: its first]"),
)


def bench_options(command: F) -> F:
    """``--device``, ``--agent``, ``--gid-index``, ``--interface``, ``--peer-ip`` and ``--allow-remote``."""
    command = remote_option(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@contextmanager
def bench_of(
    *,
    device: str | None,
    agent: str | None,
    gid_index: int | None,
    interface: str | None,
    peer_ip: str | None,
    allow_remote: tuple[str, ...],
) -> Iterator[Bench]:
    """The bench that the options name: a soft device without any."""
    from rocekit.conform.soft_bench import SoftBench
    from rocekit.conform.wire_bench import WireBench

    if device is None and agent is None:
        if interface is not None or peer_ip is not None or gid_index is not None:
            raise click.UsageError("--interface, --peer-ip and --gid-index belong to --device or --agent")
        yield SoftBench()
        return
    if device is not None and agent is not None:
        raise click.UsageError("either --device or --agent")
    if interface is None:
        raise click.UsageError("--interface says where the packet side is")
    if agent is not None:
        from rocekit.conform.agent import PORT, RemoteDevice

        host, _, port = agent.rpartition(":") if agent.count(":") == 1 else (agent, "", "")
        if port and not (port.isdigit() and 0 < int(port[:6]) < 1 << 16):
            raise click.BadParameter(f"{port!r} is no port", param_hint="--agent")
        made: Any = RemoteDevice(host, int(port) if port else PORT)
    else:
        from rocekit.conform.verbs_device import VerbsConformDevice

        made = VerbsConformDevice(device, gid_index=gid_index, allowed=allow_remote)
    try:
        bench = WireBench(made, interface, peer_ip, allow_remote)
        try:
            yield bench
        finally:
            bench.close()
    finally:
        made.shut()
