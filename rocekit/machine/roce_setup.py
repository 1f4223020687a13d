"""Whether what RoCE v2 needs of a port and its network interfaces fits together: GIDs and MTUs.

Only what is certain is said: what follows from numbers that the kernel shows. Whether switches on the way
fit, it cannot know.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rocekit.machine.devices import DevicePort, RdmaDevice

NET: Final = Path("/sys/class/net")
_V2: Final = "RoCE v2"
#: IPv4, UDP, BTH and ICRC: what a packet in the middle of a WRITE has beside its payload (A17.3).
_LEAST_OVERHEAD: Final = 20 + 8 + 12 + 4


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


def inconsistent(device: RdmaDevice, net: Path = NET) -> list[str]:
    """What does not fit together, a sentence each."""
    return [words for port in device.ports for words in _of_port(device, port, net)]


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
