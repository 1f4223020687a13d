"""The endpoint of the backend ``soft``: a soft device that scenarios use."""

from __future__ import annotations

import errno
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from rocekit.endpoint import (
    Completion,
    Connection,
    Deadline,
    DeviceMemory,
    Endpoint,
    EndpointOptions,
    QpOptions,
    Region,
    Request,
    SharedReceives,
    WaitWays,
)
from rocekit.endpoint.errors import check_version, port_taken
from rocekit.errors import VerbsError
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.journal import JournalWriter
from rocekit.soft.backend.adapter import SoftAdapter
from rocekit.soft.backend.event_thread import EventThread
from rocekit.soft.backend.memory import SoftDeviceMemory, SoftRegion
from rocekit.soft.backend.memory_shell import MemoryShell
from rocekit.soft.backend.provoke import provoke
from rocekit.soft.backend.qp import IDLE_S, SoftConnection, SoftReceives, SoftRequest, cm_error
from rocekit.soft.backend.wr import completion
from rocekit.soft.cm.ids import CmEvent
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.packet import Datagram
from rocekit.soft.realtime import Shell
from rocekit.soft.repeat_log import RepeatLog
from rocekit.soft.wires.faults import Fault, fault_fields
from rocekit.soft.wires.interface import InterfaceLink
from rocekit.soft.wires.local import MTU_BYTES, LocalLink
from rocekit.soft.wires.memory import MemoryWire


def check_gid(port: int, gid_index: int | None) -> None:
    """Raises VerbsError for another port or GID index than the only ones of a soft device."""
    if port != 1:
        raise VerbsError(f"no port {port} (-i); a soft device has only port 1")
    if gid_index not in (None, 0):
        raise VerbsError(f"no GID index {gid_index} (-x); a soft device has only 0, its address (--bind)")


class SoftEndpoint(Endpoint):
    """A soft device.

    Args:
        options: ``device`` is an interface, or None for the wire within this machine; ``ip`` the address.
        capture: pcapng to write of what this side sends and receives.
        faults: applied to what this side sends.
        wire: a wire in memory, shared with other endpoints of this process; with its own capture and faults.

    Attributes:
        adapter: the device and what its QPs share.
        cq: the completion queue of receives.

    Raises:
        VerbsError: no such interface or address, or no right to use it.
    """

    def __init__(
        self,
        options: EndpointOptions,
        journal: JournalWriter | None = None,
        *,
        capture: str | Path | None = None,
        faults: Iterable[Fault] = (),
        seed: int | None = None,
        wire: MemoryWire | None = None,
    ) -> None:
        check_gid(options.port, options.gid_index)
        link: InterfaceLink | LocalLink | None = None
        if wire is not None:
            address, active_mtu = options.ip or "10.9.0.1", MTU_BYTES
        else:
            if options.device is None:
                link = LocalLink(options.ip, shift=options.any_ip)
            else:
                link = InterfaceLink(options.device, options.ip)
            address, active_mtu = link.address, link.path_mtu
        # A soft device works only while its program calls it: by default it sleeps on the wire.
        options = replace(options, ways=options.ways.filled(WaitWays("poll", "nonblocking")))
        super().__init__(f"soft@{address}", address, journal, options)
        self.leaves_machine = options.device is not None
        if link is not None:
            self.resources.callback(link.close)
        self._requests: deque[CmEvent] = deque()
        self._dialing: deque[CmEvent] = deque()
        self._notified = False
        self._event_thread: EventThread | None = None
        try:
            sink = PcapngWriter(capture, interface_name=self.device) if capture is not None else None
            if sink is not None:
                self.resources.callback(sink.close)
            # Other PSNs and keys at each start: a peer may remember those of the last connection.
            drawn = int.from_bytes(os.urandom(8), "big") if seed is None else seed
            recorder = None if journal is None else RepeatLog(journal, self.device)
            device = SoftDevice(self.device, [address], seed=drawn, recorder=recorder)
            shell: Shell | MemoryShell
            if link is not None:
                shell = Shell(device, link, capture=sink, faults=faults, seed=drawn, told=self._tell_fault)
            else:
                assert wire is not None
                shell = MemoryShell(device, wire)
            self.has_windows = True
            self._psns = device.stream("psn")
            self.max_reads = device.limits.max_qp_rd_atom
            pd = device.alloc_pd()
            self.cq = send_cq = device.create_cq(options.completions)
            if options.extended:
                clock = shell.now if options.timestamps else None
                send_cq = device.create_cq(options.completions, clock=clock)
            local = link if isinstance(link, LocalLink) else None
            self.adapter = SoftAdapter(device, shell, pd, self.cq, send_cq, active_mtu, local)
            self.resources.callback(self._tell_totals)
            if self.ways.cm == "thread":
                self._event_thread = EventThread(self._heard)
                self.resources.callback(self._event_thread.stop)
        except BaseException:
            self.close()
            raise

    def now(self) -> int:
        return self.adapter.now()

    def _tell_fault(self, fault: Fault, device: SoftDevice, datagram: Datagram) -> None:
        self.log("fault_injected", device=device.name, **fault_fields(fault, datagram))

    def _tell_totals(self) -> None:
        """What the device counted, 0 left out: packets sent and received, and dropped by reason."""
        totals = {name: count for name, count in self.adapter.device.counters.as_dict().items() if count}
        self.log("flow_totals", flow=self.device, totals=totals, local_ip=self.ip)

    def turn(self) -> None:
        """Run the device, wait briefly if it has nothing to do, and handle its events."""
        self.hear(IDLE_S)

    def hear(self, wait_s: float = 0.0) -> None:
        shell = self.adapter.shell
        # Events that are there already are heard at once.
        if not shell.pump() and wait_s and not self.adapter.device.cm.has_events():
            shell.wait(min(wait_s, IDLE_S))
            shell.pump()
        self._device_events()
        self._cm_events()

    def _device_events(self) -> None:
        for event in self.adapter.device.events():
            if event.type == "COMPLETION":
                self._notified = True
            else:
                qpn = getattr(event.source, "qpn", None)
                self.log("async_event", None if qpn is None else (self.device, qpn), type=event.type)

    def _cm_events(self) -> None:
        for event in self.adapter.device.cm.events():
            if self._event_thread is None:
                self._heard(event)
            else:
                self._event_thread.put(event)

    def _heard(self, event: CmEvent) -> None:
        cm_id = event.id
        connection = self.adapter.by_id.get(cm_id.number)
        ports = (cm_id.source_port, cm_id.port) if cm_id.active else (cm_id.port, cm_id.source_port)
        self.log_cm(
            event.type,
            event.status,
            event.private_data,
            (cm_id.local_ip, ports[0]) if cm_id.local_ip else None,
            (cm_id.peer_ip, ports[1]) if cm_id.peer_ip else None,
            connection,
        )
        if event.type == "CONNECT_REQUEST":
            self._requests.append(event)
        elif isinstance(connection, SoftConnection):
            connection.heard(event)
        else:
            self._dialing.append(event)

    def _register(self, length: int, access: list[str]) -> Region:
        if length < 1:
            raise ValueError("a region has at least one byte")
        device = self.adapter.device
        return SoftRegion(device, self.adapter.pd, device.memory.alloc(length), length, access)

    def _device_memory(self, length: int, access: list[str]) -> DeviceMemory:
        return SoftDeviceMemory(self.adapter.device, self.adapter.pd, length, access)

    def _share(self, depth: int, sges: int) -> SharedReceives:
        return SoftReceives(self, self.adapter, depth, sges)

    def _poll(self, most: int) -> list[Completion]:
        adapter = self.adapter
        adapter.shell.pump()
        if self._event_thread is not None:
            self._cm_events()
        found = adapter.device.poll_cq(adapter.cq, most)
        if adapter.send_cq is not adapter.cq:
            found += adapter.device.poll_cq(adapter.send_cq, most)
        return [completion(wc) for wc in found]

    def _breathe(self) -> None:
        """Polling reads from the wire, which lets other threads run."""

    def _arm(self) -> None:
        for cq in {self.adapter.cq, self.adapter.send_cq}:
            self.adapter.device.request_notify(cq)

    def _sleep(self, seconds: float) -> bool:
        if not self._notified:
            self.adapter.shell.wait(seconds)
            self.adapter.shell.pump()
            self._device_events()
        notified, self._notified = self._notified, False
        return notified

    def provoke(
        self, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
    ) -> str | None:
        return provoke(self, self.adapter, event, peer, private_data, deadline)

    def counts(self) -> dict[str, int]:
        counters = self.adapter.device.counters
        return {"packets": counters["sent_pkts"] + counters["rcvd_pkts"]}

    def check_mtu(self, options: QpOptions) -> None:
        active_mtu = self.adapter.active_mtu
        if options.path_mtu is not None and options.path_mtu > active_mtu:
            raise VerbsError(f"MTU {options.path_mtu} (-m) is above the {active_mtu} of {self.device}")

    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        check_version(self.device, self.ip, host)
        self._dialing.clear()
        cm = self.adapter.device.cm
        cm_id = cm.create_id()
        for step in ("ADDR_RESOLVED", "ROUTE_RESOLVED"):
            if step == "ADDR_RESOLVED":
                cm.resolve_addr(cm_id, host, port)
            else:
                cm.resolve_route(cm_id)
            while not self._dialing:
                self.hear(IDLE_S)
                if not self._dialing and deadline.passed():
                    raise VerbsError(
                        f"no {step} within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                    )
            event = self._dialing.popleft()
            if event.type != step:
                raise cm_error(event)
        return SoftConnection(self, self.adapter, cm_id, options)

    def draw_psn(self) -> int:
        return self._psns.bits(24)

    def queue_pair(self, options: QpOptions) -> Connection:
        device = self.adapter.device
        device.role = device.role or ("client" if self._listener is None else "server")
        return SoftConnection(self, self.adapter, None, options)

    def _listen(self, port: int, backlog: int) -> None:
        try:
            cm = self.adapter.device.cm
            cm.listen(cm.create_id(), port, backlog)
        except VerbsError as error:
            raise port_taken(self.ip, port) if error.errno == errno.EADDRINUSE else error from None

    def _asked(self) -> Request | None:
        return SoftRequest(self, self.adapter, self._requests.popleft()) if self._requests else None


def soft_backend(
    *, capture: str | Path | None = None, faults: Iterable[Fault] = (), seed: int | None = None
) -> Callable[[EndpointOptions, JournalWriter | None], Endpoint]:
    """The argument ``make`` of ``inject``'s ``serve``, ``call`` and ``both``.

    With ``both``, whose server is another process, the client writes the capture.
    """
    wanted = tuple(faults)

    def make(options: EndpointOptions, journal: JournalWriter | None) -> Endpoint:
        own_capture = capture if multiprocessing.parent_process() is None else None
        return SoftEndpoint(options, journal, capture=own_capture, faults=wanted, seed=seed)

    return make
