"""Snapshots of what devices and interfaces have counted, from sysfs, tc and ethtool.

An RDMA device counts on each port (``hw_counters``, ``port_counters``), some also as a whole
(``device_counters``). Its network interface counts frames (``link``), and so do its queues and filters
(``tc``), its driver (``ethtool``) and flow control (``pause``).
"""

from __future__ import annotations

import os
import time

from rocekit.errors import RocekitError
from rocekit.machine.counter_files import SYSFS_NET, SYSFS_RDMA, FolderRead
from rocekit.machine.port_files import driver_of, gids_of, ports_of, text_of

# A recording loads this: to import pathlib or dataclasses takes longer than to read all counters.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Final, TypeAlias

    from rocekit.machine.port_files import PortGid

    Counts: TypeAlias = Mapping[str, int]

#: The groups of counters, in the order in which they are read and shown.
GROUPS: Final = ("hw_counters", "device_counters", "port_counters", "link", "tc", "ethtool", "pause")
#: How old the kernel's copy of hw_counters may be (RDMA_HW_STATS_DEFAULT_LIFESPAN).
LIFESPAN_NS: Final = 10_000_000


class CounterPlace:
    """What has counters: a port of an RDMA device with its network interface, or an interface alone.

    Attributes:
        device, port, driver: of the RDMA device; None for an interface without one.
        interface: the network interface; None for a device without one.
        addresses: the IP addresses of the device's GIDs, or of the interface.
    """

    __slots__ = ("addresses", "device", "driver", "interface", "port")

    def __init__(
        self,
        device: str | None,
        port: int | None,
        driver: str | None,
        interface: str | None,
        addresses: tuple[str, ...] = (),
    ) -> None:
        self.device, self.port, self.driver = device, port, driver
        self.interface, self.addresses = interface, addresses

    def _parts(self) -> tuple[object, ...]:
        return self.device, self.port, self.driver, self.interface, self.addresses

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CounterPlace) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def __repr__(self) -> str:
        return f"CounterPlace{self._parts()}"

    def __str__(self) -> str:
        if self.device is None:
            return str(self.interface)
        port = "" if self.port in (None, 1) else f" port {self.port}"
        return f"{self.device}{port}" + (f" ({self.interface})" if self.interface else "")


class RunningCapture:
    """A capture that runs while a snapshot is taken: its interface, and the name of its file."""

    __slots__ = ("file", "interface")

    def __init__(self, interface: str, file: str) -> None:
        self.interface, self.file = interface, file


class CounterSnapshot:
    """The counters of a place at one time.

    Attributes:
        time_ns: when reading ``hw_counters`` started; took_ns: how long reading them took.
        counts: by group of ``GROUPS`` and name.
        left_out: groups that could not be read, and why.
        captured_on, captured_to: the interface on which a capture was running, as the program that took the
            snapshot knows, and its file's name (without a file, the interface's).
    """

    __slots__ = (
        "captured_on",
        "captured_to",
        "counts",
        "host",
        "left_out",
        "place",
        "time_ns",
        "took_ns",
    )

    def __init__(
        self,
        host: str,
        place: CounterPlace,
        time_ns: int,
        took_ns: int,
        counts: Mapping[str, Counts],
        left_out: tuple[str, ...] = (),
        captured_on: str | None = None,
        captured_to: str | None = None,
    ) -> None:
        self.host, self.place, self.time_ns, self.took_ns = host, place, time_ns, took_ns
        self.counts, self.left_out = counts, left_out
        self.captured_on, self.captured_to = captured_on, captured_to

    def _parts(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in CounterSnapshot.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CounterSnapshot) and self._parts() == other._parts()

    __hash__ = None  # type: ignore[assignment]

    def captured(self, file: str) -> CounterSnapshot:
        """The same snapshot, with another name of the file that packets were captured to."""
        return CounterSnapshot(
            self.host,
            self.place,
            self.time_ns,
            self.took_ns,
            self.counts,
            self.left_out,
            self.captured_on,
            file,
        )

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


class PortTable:
    """A port of an RDMA device with its GID table.

    Attributes:
        device: its name. driver: the device's. number: the port's.
    """

    __slots__ = ("device", "driver", "gids", "number")

    def __init__(self, device: str, driver: str | None, number: int, gids: list[PortGid]) -> None:
        self.device, self.driver, self.number, self.gids = device, driver, number, gids


class CounterReader:
    """Where the kernel shows devices and interfaces.

    Args:
        programs: whether tc and ethtool are asked; they are programs, and only know this machine.
    """

    def __init__(
        self, rdma: Path | str | None = None, net: Path | str | None = None, programs: bool = True
    ) -> None:
        self.rdma, self.net, self.programs = (
            os.fspath(rdma or SYSFS_RDMA),
            os.fspath(net or SYSFS_NET),
            programs,
        )

    def tables(self, device: str | None = None) -> list[PortTable]:
        """The ports of an RDMA device, or of all, with their GID tables, of which each takes long to read."""
        try:
            return [
                PortTable(name, driver_of(folder), number, gids_of(f"{folder}/ports/{number}"))
                for name in sorted(os.listdir(self.rdma))  # noqa: PTH208
                if device in (None, name)
                for folder in (f"{self.rdma}/{name}",)
                for number in ports_of(folder)
            ]
        except (OSError, ValueError):  # none, or one that is just going away
            return []

    def interfaces(self) -> list[str]:
        import socket

        # sysfs may be that of another network namespace.
        names = {name for _, name in socket.if_nameindex()} if self.programs else set()
        if os.path.isdir(self.net):  # noqa: PTH112
            # Beside interfaces there may be files, as bonding_masters.
            names |= {name for name in os.listdir(self.net) if os.path.isdir(f"{self.net}/{name}")}  # noqa: PTH112, PTH208
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

    def rdma_places(self, found: Sequence[PortTable] | None = None) -> list[CounterPlace]:
        """The ports of all RDMA devices, which are ``found`` already; none where there is no device."""
        return [self._place(port) for port in (self.tables() if found is None else found)]

    def _listed(self) -> str:
        names = list(dict.fromkeys(port.device for port in self.tables()))
        rdma = f"RDMA devices: {', '.join(names)}" if names else "there is no RDMA device"
        return f"{rdma}; interfaces: {', '.join(self.interfaces()) or 'none'}"

    def _place(self, port: PortTable) -> CounterPlace:
        return CounterPlace(
            port.device,
            port.number,
            port.driver,
            self._interface(port),
            tuple(dict.fromkeys(gid.ip for gid in port.gids if gid.type == "RoCE v2")),
        )

    def _interface(self, port: PortTable) -> str | None:
        named = next((gid.netdev for gid in port.gids if gid.netdev), None)
        if named is None and port.number == 1:
            # rxe's; a device whose interface is down has no GID.
            named = text_of(f"{self.rdma}/{port.device}/parent") or None
        return named

    def _addresses(self, interface: str) -> tuple[str, ...]:
        if not self.programs:
            return ()
        import ipaddress

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
        folder = f"{self.rdma}/{place.device}"
        port = f"{folder}/ports/{place.port}"
        time_ns, took_ns = time.time_ns(), 0
        if place.device is not None:
            first = read(f"{port}/hw_counters")
            counts["hw_counters"], time_ns, took_ns = first.counts, first.time_ns, first.took_ns
            counts["device_counters"] = read(f"{folder}/hw_counters").counts
            counts["port_counters"] = read(f"{port}/counters").counts
        if place.interface is not None:
            if self.programs:
                self._ask(place.interface, counts, left_out)
            else:
                counts["link"] = read(f"{self.net}/{place.interface}/statistics").counts
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
        known = [p for p in places if read(f"{self.rdma}/{p.device}/ports/{p.port}/hw_counters")]
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
