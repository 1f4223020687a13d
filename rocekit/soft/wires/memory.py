"""A wire in memory with its own clock: no privileges, no waiting, and the same run for the same seed.

All devices are on one switch. Each sends one datagram at a time at the wire's rate; it arrives after the
wire's delay, counted from its last bit. Faults occur in between. A capture shows all packets as they were
*sent* (before faults), all as they were *delivered*, or those that one device sent and received; ``tap`` says
which.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from rocekit.journal import JournalWriter
from rocekit.soft.device import DeviceEvent, SoftDevice
from rocekit.soft.engine.packet import Datagram, address_text
from rocekit.soft.wires.faults import Fault, FaultInjector, fault_fields
from rocekit.wire.build import ethernet
from rocekit.wire.network import ETHERTYPE_IPV4, ETHERTYPE_IPV6

FRAME_OVERHEAD: Final = 14 + 4 + 8 + 12  # Ethernet header, FCS, preamble, gap between frames
#: 2026-01-01 00:00 UTC: where virtual time starts.
EPOCH_NS: Final = 1_767_225_600_000_000_000
_DELIVER, _FREE, _TIMER, _CALL = range(4)


class FrameSink(Protocol):
    """Where captured frames are written, as ``PcapngWriter``."""

    def write(self, frame: bytes, time_ns: int, *, comment: str | None = None) -> None: ...


def mac_address(group: int, number: int) -> str:
    """A local MAC address: of hosts (group 0) or of the switch's ports (1), by number."""
    return f"02:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{group:02x}:{number & 255:02x}"


class WirePort:
    """The port of the switch that a device is connected to.

    Attributes:
        free_at: when its last datagram is sent completely.
        wake: when its next timer event is planned.
        on_activity: called after something happened to the device, with its new events.
    """

    __slots__ = ("device", "free_at", "mac", "on_activity", "wake")

    def __init__(self, device: SoftDevice, mac: str) -> None:
        self.device = device
        self.mac = mac
        self.free_at = 0
        self.wake: int | None = None
        self.on_activity: Callable[[list[DeviceEvent]], None] | None = None


class MemoryWire:
    """The wire and its clock.

    Args:
        capture: gets the frames that ``tap`` selects.
        tap: ``sent``, ``delivered`` or a device's name.
        rate_bps: of each device's link.
        delay_ns: from the last bit sent to the delivery.
        journal: gets a line for each fault that hits; the capture of what is sent has them as comments.

    Attributes:
        now: the time.
        packets: how many packets were sent.
        acted: the port of the device that the last event reached.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        faults: Iterable[Fault] = (),
        capture: FrameSink | None = None,
        tap: str = "sent",
        rate_bps: int = 10_000_000_000,
        delay_ns: int = 1_000,
        start_ns: int = EPOCH_NS,
        journal: JournalWriter | None = None,
    ) -> None:
        self.now = start_ns
        self._journal = journal
        self.faults = FaultInjector(faults, seed, told=None if journal is None else self._tell_fault)
        self.ports: list[WirePort] = []
        self.packets = 0
        self.acted: WirePort | None = None
        self._capture = capture
        self._tap = tap
        self._rate = rate_bps
        self._delay = delay_ns
        self._heap: list[tuple[int, int, int, object, bytes]] = []
        self._order = 0
        self._by_address: dict[str, WirePort] = {}
        self._names: set[str] = set()
        self._headers: dict[tuple[str, str], bytes] = {}

    def attach(self, device: SoftDevice) -> WirePort:
        """Connect a device.

        Raises:
            ValueError: another device has its name or one of its addresses.
        """
        if device.name in self._names:
            raise ValueError(f"there is already a {device.name} on the wire")
        port = WirePort(device, mac_address(0, len(self.ports) + 1))
        for address in device.addresses:
            if address in self._by_address:
                raise ValueError(f"{address} is taken by {self._by_address[address].device.name}")
            self._by_address[address] = port
        self._names.add(device.name)
        self.ports.append(port)
        return port

    def at(self, time_ns: int, call: Callable[[], None]) -> None:
        """Call at that time, or at once if it has passed."""
        self._push(max(time_ns, self.now), _CALL, call, b"")

    def kick(self, port: WirePort) -> None:
        """A program used the device's verbs: send what it has to send now."""
        self._serve(port)

    def run(self, until_ns: int | None = None, stop: Callable[[], bool] | None = None) -> bool:
        """Let time pass until nothing is left to do, until ``until_ns``, or until ``stop()`` is true.

        Returns:
            whether nothing is left to do.
        """
        heap = self._heap
        while heap:
            if until_ns is not None and heap[0][0] > until_ns:
                self.now = max(self.now, until_ns)
                return False
            self.now, _, kind, subject, data = heapq.heappop(heap)
            if kind == _CALL:
                subject()  # type: ignore[operator]
            else:
                assert isinstance(subject, WirePort)
                self._handle(kind, subject, data)
            if stop is not None and stop():
                return False
        return True

    def _handle(self, kind: int, port: WirePort, data: bytes) -> None:
        self.acted = port
        if kind == _DELIVER:
            if self._capture is not None and self._tap in ("delivered", port.device.name):
                self._write(data, port)
            port.device.receive(data, self.now)
        elif kind == _TIMER:
            if port.wake == self.now:
                port.wake = None
            port.device.handle_timer(self.now)
        self._serve(port)

    def _serve(self, port: WirePort) -> None:
        """Send what can be sent, and plan the device's next timer."""
        device = port.device
        if port.free_at <= self.now:
            datagram = self._next_of(port)
            if datagram is not None:
                self._send(port, datagram)
        due = device.next_timer()
        if due is not None and (port.wake is None or due < port.wake):
            port.wake = max(due, self.now)
            self._push(port.wake, _TIMER, port, b"")
        if port.on_activity is not None:
            port.on_activity(device.events())

    def _next_of(self, port: WirePort) -> Datagram | None:
        """What the device sends next."""
        return next(iter(port.device.datagrams_to_send(self.now, 1)), None)

    def _send(self, port: WirePort, datagram: Datagram) -> None:
        self.packets += 1
        took = (len(datagram.data) + FRAME_OVERHEAD) * 8 * 1_000_000_000 // self._rate
        port.free_at = self.now + took
        self._push(port.free_at, _FREE, port, b"")
        target = self._by_address.get(datagram.destination)
        deliveries, comment = None, None
        if self.faults and target is not None:
            deliveries = self.faults.apply(datagram, port.device, [p.device for p in self.ports])
            comment = self.faults.comment
        if self._capture is not None and self._tap in ("sent", port.device.name):
            self._write(datagram.data, target, port, comment)
        if target is None:
            port.device.counters.count("drop_loopback")
            return
        arrives = port.free_at + self._delay
        if deliveries is None:
            self._push(arrives, _DELIVER, target, datagram.data)
            return
        for delivery in deliveries:
            self._push(arrives + delivery.delay_ns, _DELIVER, target, delivery.data)

    def _tell_fault(self, fault: Fault, sender: SoftDevice, datagram: Datagram) -> None:
        assert self._journal is not None
        fields = fault_fields(fault, datagram)
        self._journal.write("fault_injected", time_ns=self.now, device=sender.name, **fields)

    def _write(
        self,
        data: bytes,
        target: WirePort | None,
        source: WirePort | None = None,
        comment: str | None = None,
    ) -> None:
        ends = (source.mac if source else "", target.mac if target else "")
        if not source:  # a delivered datagram: its sender is in its IP header
            ends = (self._sender_mac(data), ends[1])
        key = (ends[0], ends[1] + str(data[0] >> 4))
        header = self._headers.get(key)
        if header is None:
            kind = ETHERTYPE_IPV4 if data[0] >> 4 == 4 else ETHERTYPE_IPV6
            header = self._headers[key] = ethernet(
                kind, src_mac=ends[0] or "02:00:00:00:00:00", dst_mac=ends[1] or "ff:ff:ff:ff:ff:ff"
            )
        assert self._capture is not None
        self._capture.write(header + data, self.now, comment=comment)

    def _sender_mac(self, data: bytes) -> str:
        source = address_text(data[12:16] if data[0] >> 4 == 4 else data[8:24])
        port = self._by_address.get(source)
        return port.mac if port else ""

    def _push(self, time_ns: int, kind: int, subject: object, data: bytes) -> None:
        self._order += 1
        heapq.heappush(self._heap, (time_ns, self._order, kind, subject, data))
