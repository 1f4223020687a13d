"""The backend ``soft`` of ``rocekit inject``: scenarios over a soft device, on an interface or within this
machine.

Without an interface, the peers are processes of this machine (``wire_local``) and no privileges are needed.
With one (``-d eth0``), packets go over it (``wire_interface``) and the peer may be rxe or hardware.
"""

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
from rocekit.soft.backend.event_thread import EventThread
from rocekit.soft.backend.memory import SoftDeviceMemory, SoftRegion
from rocekit.soft.backend.qp import IDLE_S, SoftConnection, SoftRequest, SoftShared, cm_error
from rocekit.soft.backend.shell_memory import MemoryShell
from rocekit.soft.backend.wr import completion
from rocekit.soft.cm.ids import CmEvent
from rocekit.soft.device import Device
from rocekit.soft.realtime import Link, Shell
from rocekit.soft.wires.faults import Fault
from rocekit.soft.wires.interface import InterfaceLink
from rocekit.soft.wires.local import MTU_BYTES, LocalLink
from rocekit.soft.wires.memory import MemoryWire


def check_gid(port: int, gid_index: int | None) -> None:
    """Raises VerbsError where they are not the one port and the one GID that a soft device has."""
    if port != 1:
        raise VerbsError(f"no port {port} (-i); a soft device has one, 1")
    if gid_index not in (None, 0):
        raise VerbsError(f"no GID index {gid_index} (-x); a soft device has one, 0: its address (--bind)")


class SoftEndpoint(Endpoint):
    """A soft device.

    Args:
        options: ``device`` is an interface, or None for the wire within this machine; ``ip`` the address.
        capture: pcapng to write of what this side sends and receives.
        faults: what is done to what this side sends.
        wire: one in memory, to be on with others of this process; it has its own capture and faults.

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
        link: Link | None = None
        if wire is not None:
            address, self.active_mtu = options.ip or "10.9.0.1", MTU_BYTES
        else:
            # A client of this machine is given its server's address as its own: any other will do.
            if options.device is None:
                link = LocalLink(options.ip, shift=options.any_ip)
            else:
                link = InterfaceLink(options.device, options.ip)
            address, self.active_mtu = link.address, link.path_mtu
        # A soft device works only while its program lets it: sleeping on the wire is its usual way.
        options = replace(options, ways=options.ways.filled(WaitWays("poll", "nonblocking")))
        super().__init__(f"soft@{address}", address, journal, options)
        self.leaves_machine = options.device is not None
        self._local = link if isinstance(link, LocalLink) else None
        if link is not None:
            self.resources.callback(link.close)
        self.by_id: dict[int, SoftConnection] = {}
        self._requests: deque[CmEvent] = deque()
        self._dialing: deque[CmEvent] = deque()
        self._told = False
        self._channel: EventThread | None = None
        try:
            sink = PcapngWriter(capture, interface_name=self.device) if capture is not None else None
            if sink is not None:
                self.resources.callback(sink.close)
            # Fresh PSNs and keys at every start, as a peer that remembers the last connection expects.
            drawn = int.from_bytes(os.urandom(8), "big") if seed is None else seed
            self.soft = Device(self.device, [address], seed=drawn)
            self.shell: Shell | MemoryShell
            if link is not None:
                self.shell = Shell(self.soft, link, capture=sink, faults=faults, seed=drawn)
            elif wire is not None:
                self.shell = MemoryShell(self.soft, wire)
            self.has_windows = True
            self._psns = self.soft.stream("psn")
            self.max_reads = self.soft.limits.max_qp_rd_atom
            self.pd = self.soft.alloc_pd()
            self.cq = self.send_cq = self.soft.create_cq(options.completions)
            if options.extended:
                clock = self.shell.now if options.timestamps else None
                self.send_cq = self.soft.create_cq(options.completions, clock=clock)
            if self.ways.cm == "thread":
                self._channel = EventThread(self._heard)
                self.resources.callback(self._channel.stop)
        except BaseException:
            self.close()
            raise

    def now(self) -> int:
        return self.shell.now()

    def turn(self) -> None:
        """Let the device work, wait a moment if it has nothing to do, and take its events."""
        self.hear(IDLE_S)

    def hear(self, wait_s: float = 0.0) -> None:
        if not self.shell.pump() and wait_s:
            self.shell.wait(min(wait_s, IDLE_S))
            self.shell.pump()
        self._device_events()
        self._cm_events()

    def _device_events(self) -> None:
        for told in self.soft.events():
            if told.type == "COMPLETION":
                self._told = True
            else:
                qpn = getattr(told.source, "qpn", None)
                self.log("async_event", None if qpn is None else (self.device, qpn), type=told.type)

    def _cm_events(self) -> None:
        for event in self.soft.cm.events():
            if self._channel is None:
                self._heard(event)
            else:
                self._channel.put(event)

    def _heard(self, event: CmEvent) -> None:
        cm_id = event.id
        connection = self.by_id.get(cm_id.number)
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
        elif connection is not None:
            connection.heard(event)
        else:
            self._dialing.append(event)

    def _register(self, length: int, access: list[str]) -> Region:
        if length < 1:
            raise ValueError("a region has at least one byte")
        return SoftRegion(self.soft, self.pd, self.soft.memory.alloc(length), length, access)

    def _device_memory(self, length: int, access: list[str]) -> DeviceMemory:
        return SoftDeviceMemory(self.soft, self.pd, length, access)

    def _share(self, depth: int, sges: int) -> SharedReceives:
        return SoftShared(self, depth, sges)

    def _poll(self, most: int) -> list[Completion]:
        self.shell.pump()
        if self._channel is not None:
            self._cm_events()
        found = self.soft.poll_cq(self.cq, most)
        if self.send_cq is not self.cq:
            found += self.soft.poll_cq(self.send_cq, most)
        return [completion(wc) for wc in found]

    def _breathe(self) -> None:
        """Asking the wire, which polling does, gives other threads their turn."""

    def _arm(self) -> None:
        for cq in {self.cq, self.send_cq}:
            self.soft.request_notify(cq)

    def _sleep(self, seconds: float) -> bool:
        if not self._told:
            self.shell.wait(seconds)
            self.shell.pump()
            self._device_events()
        told, self._told = self._told, False
        return told

    def provoke(
        self, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
    ) -> str | None:
        from rocekit.soft.backend.provoke import provoke

        return provoke(self, event, peer, private_data, deadline)

    def counts(self) -> dict[str, int]:
        counted = self.soft.counters.as_dict()
        return {"packets": counted["sent_pkts"] + counted["rcvd_pkts"]}

    def check_mtu(self, options: QpOptions) -> None:
        if options.path_mtu is not None and options.path_mtu > self.active_mtu:
            raise VerbsError(f"MTU {options.path_mtu} (-m) is above the {self.active_mtu} of {self.device}")

    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        check_version(self.device, self.ip, host)
        self._dialing.clear()
        cm_id = self.soft.cm.create_id()
        for step in ("ADDR_RESOLVED", "ROUTE_RESOLVED"):
            if step == "ADDR_RESOLVED":
                self.soft.cm.resolve_addr(cm_id, host, port)
            else:
                self.soft.cm.resolve_route(cm_id)
            while not self._dialing:
                self.hear(IDLE_S)
                if not self._dialing and deadline.passed():
                    raise VerbsError(
                        f"no {step} within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                    )
            event = self._dialing.popleft()
            if event.type != step:
                raise cm_error(event)
        return SoftConnection(self, cm_id, options)

    def nobody_at(self, address: str | None) -> str:
        """What to say of a peer that does not answer: that it is not there, where that is known."""
        if self._local is None or address not in self._local.absent:
            return ""
        return f": this machine has no soft device at {address}; is its server running?"

    def draw_psn(self) -> int:
        return self._psns.bits(24)

    def queue_pair(self, options: QpOptions) -> Connection:
        self.soft.role = self.soft.role or ("client" if self._listener is None else "server")
        return SoftConnection(self, None, options)

    def _listen(self, port: int, backlog: int) -> None:
        try:
            self.soft.cm.listen(self.soft.cm.create_id(), port)
        except VerbsError as error:
            raise port_taken(self.ip, port) if error.errno == errno.EADDRINUSE else error from None

    def _asked(self) -> Request | None:
        return SoftRequest(self, self._requests.popleft()) if self._requests else None


def soft_backend(
    *, capture: str | Path | None = None, faults: Iterable[Fault] = (), seed: int | None = None
) -> Callable[[EndpointOptions, JournalWriter | None], Endpoint]:
    """What ``inject``'s ``serve``, ``call`` and ``both`` take as ``make``.

    Of ``both``, whose server is a process of its own, the client writes the capture.
    """
    wanted = tuple(faults)

    def make(options: EndpointOptions, journal: JournalWriter | None) -> Endpoint:
        mine = capture if multiprocessing.parent_process() is None else None
        return SoftEndpoint(options, journal, capture=mine, faults=wanted, seed=seed)

    return make
