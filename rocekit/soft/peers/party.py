"""What the peers have in common: a soft device on a link, memory, and waiting with a limit."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from rocekit.endpoint import Deadline
from rocekit.endpoint.errors import port_taken
from rocekit.errors import ScenarioError, VerbsError
from rocekit.files.pcapng_write import PcapngWriter
from rocekit.machine import guard
from rocekit.soft.backend.qp import cm_error
from rocekit.soft.cm.ids import CmEvent, CmId
from rocekit.soft.device import SoftDevice
from rocekit.soft.engine.memory import MR, PD, Sge
from rocekit.soft.engine.qp import Qp
from rocekit.soft.engine.work import WC, RecvWR, SendWR
from rocekit.soft.realtime import DatagramLink, Shell
from rocekit.soft.wires.faults import Fault
from rocekit.soft.wires.interface import InterfaceLink
from rocekit.soft.wires.local import LocalLink, beside

RIGHTS = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")
_IDLE_S = 0.002
_PROBE_AFTER = 0.25
"""A silent peer gets a probe after this part of the limit."""
_PROBE_ID = 1 << 62
"""The wr_id of probes."""
_MISSED = {
    "CONNECT_REQUEST": "no client connected",
    "ESTABLISHED": "the connection was not established",
    "DISCONNECTED": "the other side did not disconnect",
}
_MOST_SILENT = 64
"""How many clients may be connected that have said nothing."""
_FAILURES = frozenset({"REJECTED", "UNREACHABLE", "ADDR_ERROR", "ROUTE_ERROR", "CONNECT_ERROR"})


class Party:
    """A soft device with what one side of a program needs.

    Args:
        interface: of its link; None for the wire within this machine.
        peer: address of the peer, if it is known: the device's has the same IP version.
        timeout_s: the limit for waiting.
        allow_remote: other machines' addresses that it may send to although its peer merely names them.
        listening: called when clients can connect.

    Attributes:
        ending: whether flushed requests are expected from now on.
        vanished: whether a peer that had sent all it had to send left without a message.
    """

    def __init__(
        self,
        interface: str | None,
        ip: str | None,
        *,
        capture: str | Path | None = None,
        faults: Iterable[Fault] = (),
        seed: int = 0,
        peer: str | None = None,
        timeout_s: float = 30.0,
        allow_remote: tuple[str, ...] = (),
        listening: Callable[[], None] | None = None,
    ) -> None:
        link: DatagramLink
        if interface is not None:
            link = InterfaceLink(interface, ip)
        else:
            near = beside(peer) if ip is None else None
            link = LocalLink(ip or near, shift=near is not None)
        self.resources = contextlib.ExitStack()
        self.resources.callback(link.close)
        sink = None
        if capture is not None:
            sink = PcapngWriter(capture, interface_name=interface)
            self.resources.callback(sink.close)
        self.ip = link.address
        self.device = SoftDevice(f"soft@{self.ip}", [self.ip], seed=seed)
        self.shell = Shell(self.device, link, capture=sink, faults=faults, seed=seed)
        self.mtu = link.path_mtu
        self.timeout_s = timeout_s
        self._leaves_machine = interface is not None
        self._proven = allow_remote
        self._listening = listening or (lambda: None)
        self.pd: PD = self.device.alloc_pd()
        self.cq = self.device.create_cq(4096)
        self.regions: list[MR] = []
        self.completions: list[WC] = []
        self.events: list[CmEvent] = []
        self.ending = False
        self.vanished = False
        self._probing = False

    def __enter__(self) -> Party:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resources.close()

    @property
    def now(self) -> int:
        return self.shell.now()

    def memory(self, size: int) -> MR:
        """Register ``size`` bytes with all rights for the peer."""
        self.regions.append(self.device.reg_mr(self.pd, self.device.memory.alloc(size), size, RIGHTS))
        return self.regions[-1]

    def check_datagram(self, size: int) -> None:
        """Raises ScenarioError if a message is too long for UD."""
        if size > self.mtu:
            raise ScenarioError(f"a datagram is one packet: {self.mtu} bytes, not {size} (-s)")

    def qp(self, transport: str, **options: Any) -> Qp:
        """A QP in INIT."""
        qp = self.device.create_qp(self.pd, transport, self.cq, **options)
        if transport == "UD":
            self.device.modify_qp(qp, self.now, state="INIT", qkey=options.get("qkey", 0x1111_1111))
        else:
            self.device.modify_qp(qp, self.now, state="INIT", access=RIGHTS)
        return qp

    def turn(self) -> None:
        """Run the device once, or wait briefly."""
        if not self.shell.pump():
            self.shell.wait(_IDLE_S)
            self.shell.pump()
        for wc in self.device.poll_cq(self.cq, 256):
            if wc.status == "WR_FLUSH_ERR" and (self.ending or self.vanished):
                continue
            if wc.wr_id == _PROBE_ID:
                self._probing, self.vanished = False, wc.status == "RETRY_EXC_ERR"
                continue
            if wc.status != "SUCCESS":
                raise ScenarioError(f"WR {wc.wr_id} on QP {wc.qpn:#x} ended with {wc.status}")
            self.completions.append(wc)
        self.events += self.device.cm.events()

    def until(self, condition: Callable[[], bool], missed: str) -> None:
        """Run the device until the condition holds.

        Args:
            missed: words for the error if it does not: ``no answer``.

        Raises:
            ScenarioError: a request failed, or the limit has passed.
        """
        deadline = Deadline(self.timeout_s)
        while not condition():
            self.turn()
            if deadline.passed() and not condition():
                raise ScenarioError(f"{missed} within {self.timeout_s:g} s (--timeout)")

    def until_gone(self, qp: Qp, condition: Callable[[], bool], missed: str) -> bool:
        """Run the device until the condition holds or the peer is gone; whether the condition holds.

        A peer disconnects with a DREQ, which may be lost; the kernel sends it again only while the peer's
        program runs. So a silent peer gets a probe: an empty RDMA WRITE, which needs no receive and whose key
        is not checked (9.7.4.1.5). A QP that still exists acknowledges it.
        """
        probe = Deadline(self.timeout_s * _PROBE_AFTER)

        def over() -> bool:
            nonlocal probe
            if not self._probing and probe.passed():
                self._probing, probe = True, Deadline(self.timeout_s * _PROBE_AFTER)
                self.post(qp, SendWR(_PROBE_ID, "RDMA_WRITE", ()))
            return condition() or self.vanished

        self.until(over, missed)
        return condition()

    def done(self, wr_id: int) -> WC:
        """Wait for the completion of a request."""
        self.until(lambda: self.has(wr_id), f"no completion of WR {wr_id}")
        wc = next(wc for wc in self.completions if wc.wr_id == wr_id)
        self.completions.remove(wc)
        return wc

    def has(self, wr_id: int) -> bool:
        """Whether a request is complete."""
        return any(wc.wr_id == wr_id for wc in self.completions)

    def event(self, *types: str) -> CmEvent:
        """Wait for the next CM event, which must be one of these; TIMEWAIT_EXIT is ignored."""

        def came() -> bool:
            self.events = [event for event in self.events if event.type != "TIMEWAIT_EXIT"]
            return bool(self.events)

        self.until(came, _MISSED.get(types[0], f"no CM event {' or '.join(types)}"))
        event = self.events.pop(0)
        if event.type in _FAILURES and event.type not in types:
            raise cm_error(event)
        if event.type not in types:
            raise ScenarioError(f"CM event {event.type} (status {event.status}), not {' or '.join(types)}")
        return event

    def post(self, qp: Qp, wr: SendWR) -> None:
        self.device.post_send(qp, wr, self.now)

    def receive(self, qp: Qp, wr_id: int, mr: MR, offset: int, length: int) -> None:
        self.device.post_recv(qp, RecvWR(wr_id, (Sge(mr.addr + offset, length, mr.lkey),)), self.now)

    def linger(self, seconds: float) -> None:
        """Keep the device running: the last ACK to the peer may be lost."""
        deadline = Deadline(seconds)
        while not deadline.passed():
            with contextlib.suppress(ScenarioError):
                self.turn()

    def listen(self, port: int) -> None:
        """Let clients connect through the connection manager."""
        self.device.cm.listen(self.device.cm.create_id(), port)
        self._listening()

    def dial(self, host: str, port: int, transport: str = "RC") -> CmId:
        """An identifier with address and route to a listener."""
        cm_id = self.device.cm.create_id(transport)
        self.device.cm.resolve_addr(cm_id, host, port)
        self.event("ADDR_RESOLVED")
        self.device.cm.resolve_route(cm_id)
        self.event("ROUTE_RESOLVED")
        return cm_id

    def tcp(self, host: str | None, port: int) -> socket.socket:
        """A TCP connection to exchange QPNs and addresses; ``host`` None: wait for a client."""
        # As the connection manager does; a fault without a sender hits the client.
        self.device.role = "server" if host is None else "client"
        if host is None:
            with _tcp_listener(port) as server:
                server.settimeout(self.timeout_s)
                self._listening()
                connection = first_to_speak(server, self.timeout_s)
        else:
            deadline = Deadline(self.timeout_s)
            while True:
                try:
                    connection = socket.create_connection((host, port), self.timeout_s)
                    break
                except OSError as error:
                    if deadline.passed():
                        raise VerbsError(
                            f"no server at {host} port {port}: {error.strerror or error}"
                        ) from None
                    self.shell.wait(0.2)
        connection.settimeout(self.timeout_s)
        self.resources.callback(connection.close)
        self._proven = (*self._proven, str(connection.getpeername()[0]))
        return connection

    def check_address(self, named: str) -> None:
        """Refuse an address that a peer merely names: nothing may be sent there.

        Raises:
            ScenarioError: it is not the one that its TCP connection has, and the guard does not allow it.
        """
        if self._leaves_machine:
            guard.check([named], self._proven)


def first_to_speak(server: socket.socket, timeout_s: float) -> socket.socket:
    """The first client that says something; clients that say nothing keep it from nobody.

    Raises:
        ScenarioError: there is none in time.
    """
    deadline = Deadline(timeout_s)
    clients: list[socket.socket] = []
    chosen: socket.socket | None = None
    try:
        while chosen is None:
            if deadline.passed():
                raise ScenarioError(f"no client within {timeout_s:g} s (--timeout)")
            ready, _, _ = select.select([server, *clients], [], [], deadline.left())
            for one in ready:
                if one is server:
                    clients.append(server.accept()[0])
                elif _says_something(one):
                    chosen = one
                    break
                else:
                    clients.remove(one)
                    one.close()
            for one in clients[:-_MOST_SILENT]:
                clients.remove(one)
                one.close()
    finally:
        for one in clients:
            if one is not chosen:
                one.close()
    return chosen


def _says_something(client: socket.socket) -> bool:
    """Whether a client that can be read from has sent something, and not hung up."""
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _tcp_listener(port: int) -> socket.socket:
    """A TCP socket that listens at all addresses, as these programs do."""
    try:
        return socket.create_server(("", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise port_taken("this machine", port) from None
        raise VerbsError(f"cannot listen on port {port}: {error.strerror}", errno=error.errno) from None
