"""Snapshots of what devices and interfaces have counted, from sysfs, tc and ethtool.

An RDMA device counts on each port (``hw_counters``, ``port_counters``), some also as a whole
(``device_counters``). Its network interface counts frames (``link``), and so do its queues and filters
(``tc``), its driver (``ethtool``) and flow control (``pause``).
"""

from __future__ import annotations

import ipaddress
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from rocekit.errors import RocekitError, VerbsError
from rocekit.machine import counter_files
from rocekit.machine.counter_files import FolderRead
from rocekit.machine.devices import DevicePort, RdmaDevice, devices

SYSFS_RDMA: Final = Path(counter_files.SYSFS_RDMA)
SYSFS_NET: Final = Path(counter_files.SYSFS_NET)

#: The groups of counters, in the order in which they are read and shown.
GROUPS: Final = ("hw_counters", "device_counters", "port_counters", "link", "tc", "ethtool", "pause")
#: How old the kernel's copy of hw_counters may be (RDMA_HW_STATS_DEFAULT_LIFESPAN).
LIFESPAN_NS: Final = 10_000_000

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CounterPlace:
    """What has counters: a port of an RDMA device with its network interface, or an interface alone.

    Attributes:
        device, port, driver: of the RDMA device; None for an interface without one.
        interface: the network interface; None for a device without one.
        addresses: the IP addresses of the device's GIDs, or of the interface.
    """

    device: str | None
    port: int | None
    driver: str | None
    interface: str | None
    addresses: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.device is None:
            return str(self.interface)
        port = "" if self.port in (None, 1) else f" port {self.port}"
        return f"{self.device}{port}" + (f" ({self.interface})" if self.interface else "")


class RunningCapture(NamedTuple):
    """A capture that runs while a snapshot is taken: its interface, and the name of its file."""

    interface: str
    file: str


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """The counters of a place at one time.

    Attributes:
        time_ns: when reading ``hw_counters`` started; took_ns: how long reading them took.
        counts: by group of ``GROUPS`` and name.
        left_out: groups that could not be read, and why.
        captured_on, captured_to: the interface on which a capture was running, as the program that took the
            snapshot knows, and its file's name (without a file, the interface's).
    """

    host: str
    place: CounterPlace
    time_ns: int
    took_ns: int
    counts: Mapping[str, Counts]
    left_out: tuple[str, ...] = ()
    captured_on: str | None = None
    captured_to: str | None = None

    def since(self, before: CounterSnapshot) -> dict[str, dict[str, int]]:
        """How much each counter went up by; counters that ``before`` lacks are left out."""
        return {
            group: {
                name: value - before.counts[group][name]
                for name, value in counts.items()
                if name in before.counts[group]
            }
            for group, counts in self.counts.items()
            if group in before.counts
        }


@dataclass(frozen=True, slots=True)
class CounterReader:
    """Where the kernel shows devices and interfaces."""

    rdma: Path = SYSFS_RDMA
    net: Path = SYSFS_NET
    #: Whether tc and ethtool are asked; they are programs, and only know this machine.
    programs: bool = field(default=True)

    def devices(self) -> list[RdmaDevice]:
        try:
            return devices(self.rdma)
        except (VerbsError, OSError, ValueError):  # none, or one that is just going away
            return []

    def interfaces(self) -> list[str]:
        import socket

        # sysfs may be that of another network namespace.
        names = {name for _, name in socket.if_nameindex()} if self.programs else set()
        if self.net.is_dir():
            # Beside interfaces there may be files, as bonding_masters.
            names |= {path.name for path in self.net.iterdir() if path.is_dir()}
        return sorted(names)

    def places(self, names: Sequence[str] = ()) -> list[CounterPlace]:
        """The places with these names of devices or interfaces; without names, those of all RDMA devices.

        An interface under an RDMA device brings the device.

        Raises:
            RocekitError: there is no such device or interface, or no RDMA device.
        """
        every = self.rdma_places()
        if not names:
            if not every:
                raise RocekitError(f"no RDMA device has counters; name an interface: {self._listed()}")
            return every
        found: list[CounterPlace] = []
        interfaces = self.interfaces()
        for name in names:
            own = [place for place in every if name in (place.device, place.interface)]
            if not own and name in interfaces:
                own = [CounterPlace(None, None, None, name, self._addresses(name))]
            if not own:
                raise RocekitError(f"no device or interface {name!r}; {self._listed()}")
            found += own
        return list(dict.fromkeys(found))

    def rdma_places(self, found: Sequence[RdmaDevice] | None = None) -> list[CounterPlace]:
        """The ports of all RDMA devices, which are ``found`` already; none where there is no device."""
        known = self.devices() if found is None else found
        return [place for device in known for place in self._ports(device)]

    def _listed(self) -> str:
        names = [device.name for device in self.devices()]
        rdma = f"RDMA devices: {', '.join(names)}" if names else "there is no RDMA device"
        return f"{rdma}; interfaces: {', '.join(self.interfaces()) or 'none'}"

    def _ports(self, device: RdmaDevice) -> list[CounterPlace]:
        return [
            CounterPlace(
                device.name,
                port.number,
                device.driver,
                self._interface(device, port),
                tuple(dict.fromkeys(gid.ip for gid in port.gids if gid.type == "RoCE v2")),
            )
            for port in device.ports
        ]

    def _interface(self, device: RdmaDevice, port: DevicePort) -> str | None:
        named = next((gid.netdev for gid in port.gids if gid.netdev), None)
        if named is None and port.number == 1:
            # rxe's; a device whose interface is down has no GID.
            named = _text(self.rdma / device.name / "parent") or None
        return named

    def _addresses(self, interface: str) -> tuple[str, ...]:
        if not self.programs:
            return ()
        from rocekit.machine.iproute import addresses

        return tuple(str(ipaddress.ip_address(a)) for a in addresses(interface))

    def snapshot(
        self,
        place: CounterPlace,
        capture: RunningCapture | None = None,
        read: Callable[[str], FolderRead] = FolderRead,
    ) -> CounterSnapshot:
        """Read all counters of a place. What cannot be read is left out; nothing is raised.

        Args:
            capture: one that is running.
            read: gives what a folder has; what was read before, for example.
        """
        counts: dict[str, Counts] = {}
        left_out: list[str] = []
        folder = self.rdma / str(place.device)
        port = folder / "ports" / str(place.port)
        time_ns, took_ns = time.time_ns(), 0
        if place.device is not None:
            first = read(str(port / "hw_counters"))
            counts["hw_counters"], time_ns, took_ns = first.counts, first.time_ns, first.took_ns
            counts["device_counters"] = read(str(folder / "hw_counters")).counts
            counts["port_counters"] = read(str(port / "counters")).counts
        if place.interface is not None:
            if self.programs:
                self._ask(place.interface, counts, left_out)
            else:
                counts["link"] = read(str(self.net / place.interface / "statistics")).counts
        return CounterSnapshot(
            os.uname().nodename,
            place,
            time_ns,
            took_ns,
            {group: counts[group] for group in GROUPS if counts.get(group)},
            tuple(left_out),
            None if capture is None else capture.interface,
            None if capture is None else capture.file,
        )

    def snapshots_of(
        self, places: Sequence[CounterPlace], read: Callable[[str], FolderRead | None]
    ) -> list[CounterSnapshot]:
        """Snapshots from what was read of folders before; a place of which nothing was read has none."""
        nothing = FolderRead("")
        known = [
            p for p in places if read(str(self.rdma / str(p.device) / "ports" / str(p.port) / "hw_counters"))
        ]
        return [self.snapshot(place, read=lambda folder: read(folder) or nothing) for place in known]

    @staticmethod
    def _ask(interface: str, counts: dict[str, Counts], left_out: list[str]) -> None:
        from rocekit.machine.ethtool_counters import ethtool_counts, pause_counts
        from rocekit.machine.iproute import link_counts
        from rocekit.machine.tc_counters import tc_counts

        counts["link"] = link_counts(interface)
        for group, read in (("tc", tc_counts), ("ethtool", ethtool_counts), ("pause", pause_counts)):
            found, why = read(interface)
            counts[group] = found
            if why:
                left_out.append(f"{group}: {why}")
        # The driver's own counters of pause frames stand with the others.
        pausing = {name: n for name, n in counts["ethtool"].items() if _is_pause(name)}
        counts["pause"] = {**counts["pause"], **pausing}
        counts["ethtool"] = {name: n for name, n in counts["ethtool"].items() if name not in pausing}


def _is_pause(name: str) -> bool:
    return "pause" in name or "pfc" in name


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
