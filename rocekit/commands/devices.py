"""``rocekit devices``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, print_json

if TYPE_CHECKING:
    from rocekit.machine.devices import RdmaDevice


@click.command()
@format_option
def command(output: str) -> None:
    """List RDMA devices with their ports, GIDs and limits.

    A GID's index is what `rocekit inject -x` and perftest's `-x` take. Limits need pyverbs. What of GIDs and
    MTUs does not fit together is said; PFC, ECN and switches are not looked at.

    \b
    Example:
      rocekit devices
      rocekit devices --format json
    """
    from rocekit.commands.screen import show
    from rocekit.verbs import devices

    found = devices()
    if output == "json":
        from rocekit.machine.roce_setup import inconsistent

        documents = [device.to_dict() | {"inconsistent": inconsistent(device)} for device in found]
        print_json({"schema": "rocekit/1", "devices": documents})
    else:
        show("\n".join(text(device) for device in found))


def text(device: RdmaDevice) -> str:
    """A device as indented lines; limits have their names in verbs."""
    from rocekit.machine.roce_setup import inconsistent, mtu_chain

    about = [f"node GUID {device.node_guid}"]
    if device.driver:
        about.append(f"driver {device.driver}")
    if device.firmware:
        about.append(f"firmware {device.firmware}")
    lines = [f"{click.style(device.name, bold=True)}  {', '.join(about)}"]
    for port in device.ports:
        state = click.style(port.state, fg="green" if port.state == "ACTIVE" else "red")
        mtu = "" if port.active_mtu is None else f"MTU {port.active_mtu} of {port.max_mtu}"
        about = [state, port.link_layer, mtu, port.rate]
        lines.append("  ".join([f"  port {port.number}", *filter(None, about)]))
        for gid in port.gids:
            lines.append("  ".join(filter(None, [f"    GID {gid.index}", gid.type, gid.ip, gid.netdev])))
        for interface in dict.fromkeys(gid.netdev for gid in port.gids if gid.netdev):
            chain = [f"{name} {mtu:,}" for name, mtu in mtu_chain(interface) if mtu is not None]
            if chain:
                lines.append(f"    MTU of interfaces: {', over '.join(chain)}")
    lines += [click.style(f"  does not fit: {words}", fg="yellow") for words in inconsistent(device)]
    lines += [f"  {name} {value:,}" for name, value in device.limits.items()]
    return "\n".join(lines)
