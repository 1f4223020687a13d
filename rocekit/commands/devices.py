"""``rocekit devices``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocekit.machine.devices import RdmaDevice
    from rocekit.machine.roce_qos import InterfaceQos


@click.command()
@format_option
def command(output: str) -> None:
    """List RDMA devices with their ports, GIDs and limits.

    A GID's index is what `rocekit inject -x` and perftest's `-x` take. Limits need pyverbs.

    Of each interface are shown: MTUs, PFC, global pause, DSCP to priority, traffic classes, DCQCN, as `dcb`,
    `tc`, `mlnx_qos`, `ethtool` and the driver's files tell them. What does not fit together is said.
    Switches, and whether the other end of the link has PFC on too, cannot be seen from here.

    \b
    Example:
      rocekit devices
      rocekit devices --format json
    """
    from rocekit.commands.screen import show
    from rocekit.machine.roce_setup import inconsistent, settings_of
    from rocekit.verbs import devices

    found = devices()
    settings = settings_of(found)
    if output == "json":
        documents = [d.to_dict() | {"inconsistent": inconsistent(d, settings=settings)} for d in found]
        interfaces = [qos.to_dict() for qos in settings.values()]
        print_json({"schema": "rocekit/1", "devices": documents, "interfaces": interfaces})
    else:
        show("\n".join(text(device, settings) for device in found))


def text(device: RdmaDevice, settings: Mapping[str, InterfaceQos]) -> str:
    """A device as indented lines; limits have their names in verbs."""
    from rocekit.machine.roce_qos import port_class, qos_lines
    from rocekit.machine.roce_setup import inconsistent, interfaces_of, mtu_chain, path_mtu_hint

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
        for interface in interfaces_of(port):
            below = mtu_chain(interface)
            chain = [f"{name} {mtu:,}" for name, mtu in below if mtu is not None]
            if chain:
                lines.append(f"    MTU of interfaces: {', over '.join(chain)}")
            for name, _ in below:
                if name in settings:
                    lines += [f"    {name}: {words}" for words in qos_lines(settings[name])]
        if (hint := path_mtu_hint(port)) is not None:
            lines.append(f"    {hint}")
        classes = port_class(device, port)
        if classes.forced is not None:
            lines.append(f"    traffic class of all packets: {_class(classes.forced)}")
        if classes.cm_tos is not None:
            lines.append(f"    traffic class of rdma_cm's connections: {_class(classes.cm_tos)}")
    wrong = inconsistent(device, settings=settings)
    lines += [click.style(f"  does not fit: {words}", fg="yellow") for words in wrong]
    lines += [f"  {name} {value:,}" for name, value in device.limits.items()]
    return "\n".join(lines)


def _class(value: int) -> str:
    """``106 (DSCP 26, ECN-capable)``."""
    return f"{value} (DSCP {value >> 2}{', ECN-capable' if value & 3 in (1, 2) else ''})"
