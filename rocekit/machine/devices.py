"""RDMA devices, their ports and GIDs, from the kernel's sysfs.

Their limits come from :func:`rocekit.verbs.devices`, which needs pyverbs; here they are empty.
"""

from __future__ import annotations

import ipaddress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rocekit.errors import VerbsError
from rocekit.machine.gid_text import ipv6_text
from rocekit.machine.port_files import driver_of, gids_of, ports_of, text_of

SYSFS = Path("/sys/class/infiniband")

NO_RDMA = (
    "no RDMA in this kernel: modprobe -a rdma_rxe rdma_ucm (Debian's linux-image-amd64 has them, "
    "its cloud kernel not), or run this in `rocekit lab -- ...`; `rocekit inject --backend soft` needs none"
)
NO_DEVICE = (
    "no RDMA device: rdma link add rxe0 type rxe netdev eth0 makes a software one, "
    "or run this in `rocekit lab -- ...`; `rocekit inject --backend soft` needs none"
)


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's GID table: an address that QPs of the port can send from.

    Attributes:
        index: its index, perftest's ``-x``.
        gid: 128 bits, as an IPv6 address.
        type: "RoCE v2", "RoCE v1" or "IB".
        netdev: the network interface that has the address, or None.
    """

    index: int
    gid: str
    type: str
    netdev: str | None

    @property
    def ip(self) -> str:
        """The GID as an IP address: IPv4 if it is IPv4-mapped."""
        address = ipaddress.IPv6Address(self.gid)
        return str(address.ipv4_mapped or address)


@dataclass(frozen=True, slots=True)
class DevicePort:
    """A port of a device.

    Attributes:
        state: "ACTIVE", "DOWN" and so on.
        active_mtu, max_mtu: bytes; None without pyverbs.
    """

    number: int
    state: str
    link_layer: str
    rate: str
    gids: tuple[Gid, ...]
    active_mtu: int | None = None
    max_mtu: int | None = None


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device.

    Attributes:
        node_guid: in sysfs' notation, 0011:2233:4455:6677.
        limits: the device's (``struct ibv_device_attr``); empty without pyverbs.
    """

    name: str
    node_guid: str
    firmware: str
    driver: str | None
    ports: tuple[DevicePort, ...]
    limits: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        device = asdict(self)
        for port, source in zip(device["ports"], self.ports, strict=True):
            for gid, entry in zip(port["gids"], source.gids, strict=True):
                gid["ip"] = entry.ip
        return device


@dataclass(frozen=True, slots=True)
class Local:
    """The device, port and GID that an endpoint uses."""

    device: RdmaDevice
    port: DevicePort
    gid: Gid


def devices(sysfs: Path = SYSFS) -> list[RdmaDevice]:
    """The devices of this machine, without their limits.

    Raises:
        VerbsError: the kernel has no RDMA, or no device.
    """
    if not sysfs.is_dir():
        raise VerbsError(NO_RDMA)
    found = [_device(path) for path in sorted(sysfs.iterdir())]
    if not found:
        raise VerbsError(NO_DEVICE)
    return found


def _device(path: Path) -> RdmaDevice:
    return RdmaDevice(
        name=path.name,
        node_guid=text_of(f"{path}/node_guid"),
        firmware=text_of(f"{path}/fw_ver"),
        driver=driver_of(str(path)),
        ports=tuple(_port(path / "ports" / str(number)) for number in ports_of(str(path))),
    )


def _port(path: Path) -> DevicePort:
    gids = [Gid(gid.index, ipv6_text(gid.gid), gid.type, gid.netdev) for gid in gids_of(str(path))]
    return DevicePort(
        number=int(path.name),
        state=text_of(f"{path}/state").partition(": ")[2],
        link_layer=text_of(f"{path}/link_layer"),
        rate=text_of(f"{path}/rate"),
        gids=tuple(gids),
    )


def choose(
    found: list[RdmaDevice], *, device: str | None, port: int, gid_index: int | None, ip: str | None
) -> Local:
    """The device, port and GID that the options name; of several GIDs the first of RoCE v2 with an IPv4
    address, else with any.

    Raises:
        VerbsError: there is none.
    """
    names = ", ".join(one.name for one in found)
    if device is not None and device not in {one.name for one in found}:
        raise VerbsError(f"no RDMA device {device!r} (-d); there is {names}")
    candidates = [
        Local(one, at, gid)
        for one in found
        if device in (None, one.name)
        for at in one.ports
        if at.number == port
        for gid in at.gids
    ]
    if not any(one for one in candidates):
        raise VerbsError(
            f"{device or names} has no port {port} (-i), or the port has no GID (is its netdev up?)"
        )
    if ip is not None:
        wanted = ipaddress.ip_address(ip.partition("%")[0])
        candidates = [at for at in candidates if ipaddress.ip_address(at.gid.ip) == wanted]
        if not candidates:
            raise VerbsError(f"no RDMA device has the address {ip}; `rocekit devices` lists those there are")
    if gid_index is not None:
        had = ", ".join(f"{at.gid.index} ({at.gid.ip})" for at in candidates)
        candidates = [at for at in candidates if at.gid.index == gid_index]
        if not candidates:
            raise VerbsError(f"no GID index {gid_index} (-x); there is {had}")
    v2 = [at for at in candidates if at.gid.type == "RoCE v2"]
    if not v2:
        at = candidates[0]
        raise VerbsError(f"GID {at.gid.index} of {at.device.name} is {at.gid.type}; RoCE v2 is needed (-x)")
    active = [at for at in v2 if at.port.state == "ACTIVE"]
    if not active:
        at = v2[0]
        raise VerbsError(
            f"{at.device.name} port {at.port.number} is {at.port.state}; ip link set {at.gid.netdev} up"
        )
    return min(active, key=lambda at: (":" in at.gid.ip, ipaddress.ip_address(at.gid.ip).is_link_local))


def source_address(host: str, port: int) -> tuple[str, str]:
    """(this machine's address on the route to a host, the host's address). Sends nothing.

    Raises:
        VerbsError: the name has no address, or no route leads there.
    """
    import socket

    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]), str(target[0])
    except OSError as error:
        raise VerbsError(f"no route to {host}: {error.strerror or error}", errno=error.errno) from None
