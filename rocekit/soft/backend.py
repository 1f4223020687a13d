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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rocekit.connecting import DEFAULT_MTU
from rocekit.connecting import cm_error as meaning_of
from rocekit.endpoint import (
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Completion,
    Connection,
    Deadline,
    DeviceMemory,
    Endpoint,
    EndpointOptions,
    QpOptions,
    RecvWr,
    Region,
    Request,
    SendWr,
    SharedReceives,
    Ways,
)
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter
from rocekit.journal_schema import SCHEMA
from rocekit.pcapng_write import PcapngWriter
from rocekit.places import Place
from rocekit.soft.cm_id import CmEvent, CmId, ConnParam
from rocekit.soft.device import Device
from rocekit.soft.event_thread import EventThread
from rocekit.soft.faults import Fault
from rocekit.soft.memory import PD
from rocekit.soft.realtime import Link, Shell
from rocekit.soft.shell_memory import MemoryShell
from rocekit.soft.windows import Binding, next_key
from rocekit.soft.wire_interface import InterfaceLink
from rocekit.soft.wire_local import MTU_BYTES, LocalLink
from rocekit.soft.wire_memory import MemoryWire
from rocekit.soft.work import WC, PostError, RecvWR, SendWR, Sge
from rocekit.tcpmeeting import port_taken

_IDLE_S: Final = 0.001
_GOODBYE_S: Final = 3.0
_REMOTE: Final = (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)


class SoftRegion(Region):
    """A region in the soft device's address space."""

    def __init__(self, device: Device, pd: PD, address: int, length: int, access: Sequence[str]) -> None:
        self.mr = device.reg_mr(pd, address, length, access)
        self.addr, self.length = address, length
        self.lkey, self.rkey = self.mr.lkey, self.mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.mr.view[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        self.mr.view[offset : offset + len(data)] = data


class SoftDeviceMemory(DeviceMemory):
    """A region over the soft device's own memory."""

    def __init__(self, device: Device, pd: PD, length: int, access: Sequence[str]) -> None:
        self._dm = device.alloc_dm(length)
        mr = device.reg_dm_mr(pd, self._dm, 0, length, access)
        self.addr, self.length, self.lkey, self.rkey = 0, length, mr.lkey, mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return self._dm.copy_from(offset, length)

    def write(self, offset: int, data: bytes) -> None:
        self._dm.copy_to(offset, data)


class SoftShared(SharedReceives):
    """A shared receive queue of a soft device."""

    def __init__(self, endpoint: SoftEndpoint, depth: int, sges: int) -> None:
        self.queue = endpoint.soft.create_srq(endpoint.pd, depth, sges)
        self._device = endpoint.soft
        super().__init__(endpoint, self.queue.handle)

    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [RecvWR(wr.wr_id, _sges(wr)) for wr in wrs]
        return _refused(lambda: self._device.post_srq_recv(self.queue, made))


class SoftConnection(Connection):
    """A QP of a soft device; ``cm_id`` is None where no connection manager knows it."""

    endpoint: SoftEndpoint

    def __init__(self, endpoint: SoftEndpoint, cm_id: CmId | None, options: QpOptions) -> None:
        self._id = cm_id
        self._options = options
        device = endpoint.soft
        shared = options.shared
        assert shared is None or isinstance(shared, SoftShared)
        self._qp = device.create_qp(
            endpoint.pd,
            options.transport,
            endpoint.send_cq,
            endpoint.cq,
            max_send_wr=options.send_depth,
            max_recv_wr=options.recv_depth,
            max_send_sge=options.sges,
            max_recv_sge=options.sges,
            max_inline=options.inline_size,
            srq=None if shared is None else shared.queue,
        )
        super().__init__(endpoint, self._qp.qpn, options.transport)
        endpoint.connections[self.qpn] = self
        if cm_id is not None:
            endpoint.by_id[cm_id.number] = self
        endpoint.resources.callback(self._close)
        self.usual_mtu = options.path_mtu or min(DEFAULT_MTU, endpoint.active_mtu)
        self.log_created(options)
        self._modify(state="INIT", **({"qkey": self.qkey} if self.transport == "UD" else {"access": _REMOTE}))
        self.answer: CmEvent | None = None

    def _modify(self, **attributes: Any) -> None:
        self.endpoint.soft.modify_qp(self._qp, self.endpoint.shell.now(), **attributes)
        self.endpoint.log("qp_modified", self.qp, **{k: v for k, v in attributes.items() if k in _JOURNALED})

    def _param(self, private_data: bytes) -> ConnParam:
        options = self._options
        reads = min(options.reads, self.endpoint.max_reads)
        return ConnParam(
            private_data,
            responder_resources=reads,
            initiator_depth=reads,
            retry_count=options.retry_cnt,
            rnr_retry_count=options.rnr_retry,
            qp_num=self.qpn,
        )

    def _ready(self, receiving: dict[str, Any], sending: dict[str, Any]) -> None:
        """To RTR and RTS, with what the peers agreed on and the options want."""
        options = self._options
        if self.transport == "RC":
            receiving = receiving | {"min_rnr_timer": options.min_rnr_timer}
            sending = sending | {
                "timeout": options.timeout,
                "retry_cnt": options.retry_cnt,
                "rnr_retry": options.rnr_retry,
            }
        self._modify(**receiving | {"state": "RTR"})
        self._modify(**sending | {"state": "RTS"})

    def _to_ready(self) -> None:
        cm = self.endpoint.soft.cm
        assert self._id is not None
        receiving = cm.qp_attributes(self._id, "RTR")
        wanted = self._options.path_mtu or receiving["path_mtu"]
        self.path_mtu = receiving["path_mtu"] = min(receiving["path_mtu"], wanted)
        self._ready(receiving, cm.qp_attributes(self._id, "RTS"))

    def start(self, peer: Place, psn: int, path_mtu: int) -> None:
        endpoint = self.endpoint
        if self.transport == "UD":
            self.path_mtu = endpoint.active_mtu
            self._ready({}, {"sq_psn": psn})
            return
        self.path_mtu = path_mtu
        receiving: dict[str, Any] = {
            "local_ip": endpoint.ip,
            "dest_ip": peer.ip,
            "dest_qpn": peer.qpn,
            "rq_psn": peer.psn,
            "path_mtu": self.path_mtu,
        }
        sending: dict[str, Any] = {"sq_psn": psn}
        if self.transport == "RC":
            reads = min(self._options.reads, endpoint.max_reads)
            receiving["max_dest_rd_atomic"] = sending["max_rd_atomic"] = reads
        self._ready(receiving, sending)

    # Meeting the peer.

    def _connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        endpoint, cm_id = self.endpoint, self._id
        assert cm_id is not None
        cm_id.path_mtu = self.usual_mtu
        cm_id.timeout = self._options.timeout
        param = self._param(private_data)
        endpoint.soft.cm.connect(cm_id, param, endpoint.shell.now())
        response = self._await(deadline)
        self._to_ready()
        endpoint.soft.cm.accept(cm_id, param, endpoint.shell.now())
        endpoint.shell.pump()
        return response.private_data

    def _accept(self, private_data: bytes, deadline: Deadline) -> None:
        endpoint, cm_id = self.endpoint, self._id
        assert cm_id is not None
        cm_id.param = self._param(private_data)
        self._to_ready()
        endpoint.soft.cm.accept(cm_id, cm_id.param, endpoint.shell.now())
        self._await(deadline)

    def _await(self, deadline: Deadline) -> CmEvent:
        while self.answer is None:
            self.endpoint.hear(_IDLE_S)
            if self.answer is None and deadline.passed():
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        answer, self.answer = self.answer, None
        if answer.type in ("CONNECT_RESPONSE", "ESTABLISHED"):
            return answer
        raise cm_error(answer)

    def heard(self, event: CmEvent) -> None:
        """A CM event for this connection."""
        if event.type in ("DISCONNECTED", "DEVICE_REMOVAL"):
            self.disconnected = True
        # The first one: a peer may be connected and gone again before this side looks.
        if not self.connected and self.answer is None and event.type != "TIMEWAIT_EXIT":
            self.answer = event

    # Work.

    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        made = [_send_wr(wr) for wr in wrs]
        endpoint = self.endpoint
        return _refused(lambda: endpoint.soft.post_send(self._qp, made, endpoint.shell.now()))

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [RecvWR(wr.wr_id, _sges(wr)) for wr in wrs]
        endpoint = self.endpoint
        return _refused(lambda: endpoint.soft.post_recv(self._qp, made, endpoint.shell.now()))

    def grant(self, region: Region, offset: int, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> int:
        """By a memory window of type 2, which this QP binds."""
        assert isinstance(region, SoftRegion)
        endpoint, names = self.endpoint, [name for name in access if name != LOCAL_WRITE]
        window = endpoint.soft.alloc_mw(endpoint.pd, 2)
        endpoint.resources.callback(endpoint.soft.dealloc_mw, window)
        endpoint.log("mw_allocated", device=endpoint.device, rkey=window.rkey, type=2)
        old, rkey, address = window.rkey, next_key(window.rkey), region.addr + offset
        binding = Binding.to(window, region.mr, address, length, names)
        wr = SendWR(0, "BIND_MW", signaled=False, rkey=rkey, binding=binding)
        endpoint.soft.post_send(self._qp, [wr], endpoint.shell.now())
        endpoint.log(
            "mw_bound",
            self.qp,
            rkey=rkey,
            addr=address,
            length=length,
            old_rkey=old,
            mr_rkey=region.rkey,
            mr_lkey=region.lkey,
            access=names,
        )
        return rkey

    # The end.

    def _goodbye(self, deadline: Deadline) -> None:
        endpoint = self.endpoint
        assert self._id is not None
        try:
            endpoint.soft.cm.disconnect(self._id, endpoint.shell.now())
        except VerbsError:
            self.disconnected = True
        while not self.disconnected and not deadline.passed():
            endpoint.hear(_IDLE_S)

    def to_error(self) -> None:
        self._modify(state="ERR")
        self.endpoint.shell.pump()

    def _close(self) -> None:
        try:
            self.disconnect(Deadline(_GOODBYE_S))
        finally:
            self.endpoint.shell.pump()
            if self._id is not None:
                self.endpoint.by_id.pop(self._id.number, None)
            self.endpoint.connections.pop(self.qpn, None)
            self.endpoint.soft.destroy_qp(self._qp)


_JOURNALED: Final = frozenset(SCHEMA["qp_modified"].optional) - {"access"}


class SoftRequest(Request):
    """A peer that asked to connect."""

    def __init__(self, endpoint: SoftEndpoint, event: CmEvent) -> None:
        self._endpoint = endpoint
        self._id = event.id
        self.private_data = event.private_data

    def connection(self, options: QpOptions) -> SoftConnection:
        made = SoftConnection(self._endpoint, self._id, options)
        made.peer_data = self.private_data
        return made

    def reject(self, private_data: bytes) -> None:
        self._endpoint.soft.cm.reject(self._id, private_data[:148], self._endpoint.shell.now())
        self._endpoint.shell.pump()


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
        options = replace(options, ways=options.ways.filled(Ways("poll", "nonblocking")))
        super().__init__(f"soft@{address}", address, journal, options)
        self.leaves_machine = options.device is not None
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
            self.max_reads = self.soft.limits.max_qp_rd_atom
            self.pd = self.soft.alloc_pd()
            self.cq = self.send_cq = self.soft.create_cq(options.completions)
            if options.timestamps:
                self.send_cq = self.soft.create_cq(options.completions, clock=self.shell.now)
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
        self.hear(_IDLE_S)

    def hear(self, wait_s: float = 0.0) -> None:
        if not self.shell.pump() and wait_s:
            self.shell.wait(min(wait_s, _IDLE_S))
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
        return [_completion(wc) for wc in found]

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
        from rocekit.soft.provoke import provoke

        return provoke(self, event, peer, private_data, deadline)

    def counts(self) -> dict[str, int]:
        counted = self.soft.counters.as_dict()
        return {"packets": counted["sent_pkts"] + counted["rcvd_pkts"]}

    def check_mtu(self, options: QpOptions) -> None:
        if options.path_mtu is not None and options.path_mtu > self.active_mtu:
            raise VerbsError(f"MTU {options.path_mtu} (-m) is above the {self.active_mtu} of {self.device}")

    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        self._dialing.clear()
        cm_id = self.soft.cm.create_id()
        for step in ("ADDR_RESOLVED", "ROUTE_RESOLVED"):
            if step == "ADDR_RESOLVED":
                self.soft.cm.resolve_addr(cm_id, host, port)
            else:
                self.soft.cm.resolve_route(cm_id)
            while not self._dialing and not deadline.passed():
                self.hear(_IDLE_S)
            event = self._dialing.popleft()
            if event.type != step:
                raise cm_error(event)
        return SoftConnection(self, cm_id, options)

    def queue_pair(self, options: QpOptions) -> Connection:
        self.soft.role = self.soft.role or ("client" if self._door is None else "server")
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


def _sges(wr: SendWr | RecvWr) -> tuple[Sge, ...]:
    return tuple(Sge(s.addr, s.length, s.region.lkey) for s in wr.sges)


def _send_wr(wr: SendWr) -> SendWR:
    inline = None
    if wr.inline:
        inline = b"".join(s.region.read(s.offset, s.length) for s in wr.sges)
    return SendWR(
        wr.wr_id,
        wr.opcode,
        _sges(wr),
        inline,
        wr.signaled,
        wr.solicited,
        wr.fenced,
        wr.remote_va or 0,
        wr.rkey or 0,
        wr.imm or 0,
        wr.invalidate_rkey or 0,
        wr.compare or 0,
        wr.swap_add or 0,
        dest_ip=None if wr.to is None else wr.to.ip,
        dest_qpn=0 if wr.to is None else wr.to.qpn,
        qkey=0 if wr.to is None else wr.to.qkey,
    )


def _completion(wc: WC) -> Completion:
    done = wc.status == "SUCCESS"
    return Completion(
        wc.qpn,
        wc.wr_id,
        wc.status,
        wc.opcode if done else None,
        wc.byte_len if done else None,
        wc.vendor_err,
        wc.imm,
        wc.src_qpn,
        wc.timestamp,
    )


def _refused(post: Callable[[], None]) -> tuple[int, int]:
    try:
        post()
    except PostError as error:
        return error.bad_wr, error.errno or errno.EINVAL
    return 0, 0


def cm_error(event: CmEvent) -> VerbsError:
    """What a CM event that ends a handshake means."""
    there = f"{event.id.peer_ip} port {event.id.port}"
    return meaning_of(event.type, event.status, event.private_data, there)
