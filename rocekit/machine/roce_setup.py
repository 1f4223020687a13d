"""Whether what RoCE v2 needs of a port and its network interfaces fits together: GIDs, MTUs, classes.

Only what is certain is said: what follows from numbers that the kernel shows. Whether switches on the way
fit, it cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rocekit.machine.roce_qos import Ask, InterfaceQos, ask, inconsistent_qos, interface_qos, port_class

if TYPE_CHECKING:
    from rocekit.machine.devices import DevicePort, RdmaDevice

NET: Final = Path("/sys/class/net")
_V2: Final = "RoCE v2"
#: IPv4, UDP, BTH and ICRC: what a packet in the middle of a WRITE has beside its payload (A17.3).
_LEAST_OVERHEAD: Final = 20 + 8 + 12 + 4
#: What Linux leaves room for beside the payload (iboe_get_mtu): GRH, UDP, BTH, XRCETH, AtomicETH, ICRC.
_MOST_OVERHEAD: Final = 40 + 8 + 12 + 4 + 28 + 4
NONE_ASKED: Final[Mapping[str, InterfaceQos]] = MappingProxyType({})


def interface_mtu(interface: str, net: Path = NET) -> int | None:
    """The MTU of a network interface; None if it is unknown."""
    try:
        return int((net / interface / "mtu").read_text())
    except (OSError, ValueError):
        return None


def mtu_chain(interface: str, net: Path = NET) -> list[tuple[str, int | None]]:
    """An interface and those below it (of a VLAN, a bond), each with its MTU, the upper ones first."""
    chain: list[tuple[str, int | None]] = []
    waiting = [interface]
    while waiting:
        name = waiting.pop(0)
        if name in dict(chain):
            continue
        chain.append((name, interface_mtu(name, net)))
        waiting += sorted(p.name.removeprefix("lower_") for p in (net / name).glob("lower_*"))
    return chain


def inconsistent(
    device: RdmaDevice,
    net: Path = NET,
    settings: Mapping[str, InterfaceQos] = NONE_ASKED,
    root: Path = Path("/"),
) -> list[str]:
    """What does not fit together, a sentence each.

    Args:
        settings: of interfaces, by name (see ``settings_of``).
    """
    found = [words for port in device.ports for words in _of_port(device, port, net)]
    for port in device.ports:
        classes = port_class(device, port, root)
        where = f"{device.name} port {port.number}"
        v2 = port.link_layer == "Ethernet" and any(gid.type == _V2 for gid in port.gids)
        if v2 and classes.cm_mode is not None and _V2 not in classes.cm_mode:
            by_default = f"rdma_cm connects by {classes.cm_mode} by default"
            found.append(f"{where}: {by_default}, though there are RoCE v2 GIDs")
        for interface in interfaces_of(port):
            # A VLAN's or a bond's settings are those of the interfaces below it.
            for name, _ in mtu_chain(interface, net):
                if name in settings:
                    found += inconsistent_qos(where, settings[name], classes)
    return list(dict.fromkeys(found))


def interfaces_of(port: DevicePort) -> list[str]:
    """The network interfaces of a port's GIDs."""
    return list(dict.fromkeys(gid.netdev for gid in port.gids if gid.netdev is not None))


def settings_of(devices: Iterable[RdmaDevice], net: Path = NET, asked: Ask = ask) -> dict[str, InterfaceQos]:
    """How each interface of the devices, and those below it, treats priorities."""
    names = dict.fromkeys(
        name
        for device in devices
        for port in device.ports
        for interface in interfaces_of(port)
        for name, _ in mtu_chain(interface, net)
    )
    return {name: interface_qos(name, asked=asked, net=net) for name in names}


def path_mtu_hint(port: DevicePort, net: Path = NET) -> str | None:
    """That a larger MTU of the interface would allow a larger path MTU; None if nothing is to be gained."""
    if port.active_mtu is None or port.max_mtu is None or port.active_mtu >= port.max_mtu:
        return None
    for interface in interfaces_of(port):
        mtu = interface_mtu(interface, net)
        if mtu is not None and mtu < port.max_mtu + _MOST_OVERHEAD:
            needed = f"{port.max_mtu:,} needs MTU {port.max_mtu + _MOST_OVERHEAD:,} there and on the way"
            return f"MTU {mtu:,} of {interface} allows path MTU {port.active_mtu:,}; {needed}"
    return None


def _of_port(device: RdmaDevice, port: DevicePort, net: Path) -> Iterator[str]:
    where = f"{device.name} port {port.number}"
    if port.link_layer != "Ethernet":
        return
    if not any(gid.type == _V2 for gid in port.gids):
        yield f"{where}: no RoCE v2 GID: it cannot send RoCE v2; give its interface an IP address"
    interfaces = dict.fromkeys(gid.netdev for gid in port.gids if gid.type == _V2 and gid.netdev is not None)
    for interface in interfaces:
        state = _read(net / interface / "operstate")
        if state in ("down", "lowerlayerdown"):
            yield f"{where}: its interface {interface} is down"
        upper: tuple[str, int] | None = None
        for name, mtu in mtu_chain(interface, net):
            if mtu is None:
                continue
            if upper is not None and mtu < upper[1]:
                above = f"MTU {upper[1]:,} of {upper[0]} above it"
                yield f"{where}: MTU {mtu:,} of {name} is smaller than {above}"
            upper = upper or (name, mtu)
        if upper is None or port.active_mtu is None:
            continue
        needed = port.active_mtu + _LEAST_OVERHEAD
        if upper[1] < needed:
            yield (
                f"{where}: path MTU {port.active_mtu:,} needs MTU {needed:,} or more of {interface}, "
                f"which has {upper[1]:,}: full packets do not fit"
            )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
