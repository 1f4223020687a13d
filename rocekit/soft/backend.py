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
from pathlib import Path
from typing import Any, Final

from rocekit.endpoint import (
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Completion,
    Connection,
    Deadline,
    Disconnected,
    Endpoint,
    EndpointOptions,
    QpOptions,
    RecvWr,
    Region,
    Request,
    SendWr,
)
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter
from rocekit.pcapng_write import PcapngWriter
from rocekit.soft.cm_id import CmEvent, CmId, ConnParam
from rocekit.soft.device import Device
from rocekit.soft.faults import Fault
from rocekit.soft.realtime import Link, Shell
from rocekit.soft.wire_interface import InterfaceLink
from rocekit.soft.wire_local import LocalLink
from rocekit.soft.work import PostError, RecvWR, SendWR, Sge
from rocekit.wire_cm import REJ_REASONS

_IDLE_S: Final = 0.001
_GOODBYE_S: Final = 3.0
_DEFAULT_MTU: Final = 1024
_REMOTE: Final = (REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC)
_NO_LISTENER: Final = 8


class SoftRegion(Region):
    """A region in the soft device's address space."""

    def __init__(self, device: Device, pd: Any, length: int, access: Sequence[str]) -> None:
        if length < 1:
            raise ValueError("a region has at least one byte")
        address = device.memory.alloc(length)
        self._mr = device.reg_mr(pd, address, length, access)
        self.addr, self.length = address, length
        self.lkey, self.rkey = self._mr.lkey, self._mr.rkey

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._mr.view[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        self._mr.view[offset : offset + len(data)] = data


class SoftConnection(Connection):
    """An RC QP of a soft device."""

    endpoint: SoftEndpoint

    def __init__(self, endpoint: SoftEndpoint, cm_id: CmId, options: QpOptions) -> None:
        self._id = cm_id
        self._options = options
        device = endpoint.soft
        self._qp = device.create_qp(
            endpoint.pd,
            "RC",
            endpoint.cq,
            max_send_wr=options.send_depth,
            max_recv_wr=options.recv_depth,
            max_send_sge=options.sges,
            max_recv_sge=options.sges,
            max_inline=options.inline_size,
        )
        super().__init__(endpoint, self._qp.qpn)
        endpoint.connections[self.qpn] = self
        endpoint.by_id[cm_id.number] = self
        endpoint.resources.callback(self._close)
        endpoint.log(
            "qp_created",
            self.qp,
            transport="RC",
            max_send_wr=options.send_depth,
            max_recv_wr=options.recv_depth,
            sq_sig_all=False,
            local_ip=endpoint.ip,
        )
        self._modify(state="INIT", access=_REMOTE)
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

    def _to_ready(self) -> None:
        """To RTR and RTS, with what the handshake said and the options want."""
        cm, options = self.endpoint.soft.cm, self._options
        attributes = cm.qp_attributes(self._id, "RTR")
        wanted = options.path_mtu or attributes["path_mtu"]
        self.path_mtu = attributes["path_mtu"] = min(attributes["path_mtu"], wanted)
        self._modify(**attributes | {"min_rnr_timer": options.min_rnr_timer})
        attributes = cm.qp_attributes(self._id, "RTS")
        self._modify(
            **attributes
            | {
                "timeout": options.timeout,
                "retry_cnt": options.retry_cnt,
                "rnr_retry": options.rnr_retry,
            }
        )

    # Meeting the peer.

    def connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        endpoint = self.endpoint
        self._id.path_mtu = self._options.path_mtu or min(_DEFAULT_MTU, endpoint.active_mtu)
        self._id.timeout = self._options.timeout
        param = self._param(private_data)
        endpoint.soft.cm.connect(self._id, param, endpoint.shell.now())
        response = self._await(deadline)
        self.peer_data = response.private_data
        self._to_ready()
        endpoint.soft.cm.accept(self._id, param, endpoint.shell.now())
        self.connected = True
        endpoint.shell.pump()
        return self.peer_data

    def accept(self, private_data: bytes, deadline: Deadline) -> None:
        endpoint = self.endpoint
        self._id.param = self._param(private_data)
        self._to_ready()
        endpoint.soft.cm.accept(self._id, self._id.param, endpoint.shell.now())
        self._await(deadline)
        self.connected = True

    def _await(self, deadline: Deadline) -> CmEvent:
        while self.answer is None:
            self.endpoint.turn()
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
        if not self.connected and event.type != "TIMEWAIT_EXIT":
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

    # The end.

    def disconnect(self, deadline: Deadline) -> None:
        if not self.connected:
            return
        self.connected = False
        endpoint = self.endpoint
        try:
            endpoint.soft.cm.disconnect(self._id, endpoint.shell.now())
        except VerbsError:
            self.disconnected = True
        while not self.disconnected and not deadline.passed():
            endpoint.turn()
        self._modify(state="ERR")
        while self.outstanding and endpoint.poll():
            pass
        endpoint.shell.pump()

    def _close(self) -> None:
        try:
            self.disconnect(Deadline(_GOODBYE_S))
        finally:
            self.endpoint.by_id.pop(self._id.number, None)
            self.endpoint.connections.pop(self.qpn, None)
            self.endpoint.soft.destroy_qp(self._qp)


_JOURNALED: Final = frozenset(
    {
        *("state", "dest_qpn", "sq_psn", "rq_psn", "path_mtu", "timeout", "retry_cnt", "rnr_retry"),
        *("min_rnr_timer", "dest_ip", "local_ip"),
    }
)


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
    ) -> None:
        link: Link
        if options.device is None:
            # A client of this machine is given its server's address as its own: any other will do.
            link = LocalLink(options.ip, shift=True)
        else:
            link = InterfaceLink(options.device, options.ip)
        super().__init__(f"soft@{link.address}", link.address, journal)
        self.resources.callback(link.close)
        try:
            sink = PcapngWriter(capture, interface_name=self.device) if capture is not None else None
            if sink is not None:
                self.resources.callback(sink.close)
            # Fresh PSNs and keys at every start, as a peer that remembers the last connection expects.
            drawn = int.from_bytes(os.urandom(8), "big") if seed is None else seed
            self.soft = Device(self.device, [link.address], seed=drawn)
            self.shell = Shell(self.soft, link, capture=sink, faults=faults, seed=drawn)
            self.max_reads = self.soft.limits.max_qp_rd_atom
            self.active_mtu = link.path_mtu
            self.pd = self.soft.alloc_pd()
            self.cq = self.soft.create_cq(options.completions)
        except BaseException:
            self.close()
            raise
        self.by_id: dict[int, SoftConnection] = {}
        self._requests: deque[CmEvent] = deque()
        self._dialing: deque[CmEvent] = deque()

    def log(self, event: str, qp: tuple[str, int] | None = None, **fields: Any) -> None:
        """Write to the journal, if there is one."""
        if self.journal is not None:
            self.journal.write(event, time_ns=self.shell.now(), qp=qp, **fields)

    def turn(self) -> None:
        """Let the device work, wait a moment if it has nothing to do, and take its events."""
        if not self.shell.pump():
            self.shell.wait(_IDLE_S)
            self.shell.pump()
        self._take_events()

    def _take_events(self) -> None:
        for told in self.soft.events():
            if told.type != "COMPLETION":
                qpn = getattr(told.source, "qpn", None)
                self.log("async_event", None if qpn is None else (self.device, qpn), type=told.type)
        for event in self.soft.cm.events():
            cm_id = event.id
            connection = self.by_id.get(cm_id.number)
            self.log(
                "cm_event",
                None if connection is None else connection.qp,
                type=event.type,
                status=event.status,
                private_data=event.private_data.hex() or None,
                local_ip=cm_id.local_ip or None,
                local_port=cm_id.source_port if cm_id.active else cm_id.port,
                remote_ip=cm_id.peer_ip or None,
                remote_port=cm_id.port if cm_id.active else cm_id.source_port,
            )
            if event.type == "CONNECT_REQUEST":
                self._requests.append(event)
            elif connection is not None:
                connection.heard(event)
            else:
                self._dialing.append(event)

    def _register(self, length: int, access: list[str]) -> Region:
        return SoftRegion(self.soft, self.pd, length, access)

    def _poll(self, most: int) -> list[Completion]:
        self.shell.pump()
        if not len(self.cq):
            self.shell.wait(_IDLE_S)
            self.shell.pump()
        return [
            Completion(
                wc.qpn,
                wc.wr_id,
                wc.status,
                wc.opcode if wc.status == "SUCCESS" else None,
                wc.byte_len if wc.status == "SUCCESS" else None,
                wc.vendor_err,
                wc.imm,
                wc.src_qpn,
            )
            for wc in self.soft.poll_cq(self.cq, most)
        ]

    def gone(self) -> Connection | None:
        self._take_events()
        return next((c for c in self.connections.values() if c.disconnected), None)

    def check_mtu(self, options: QpOptions) -> None:
        if options.path_mtu is not None and options.path_mtu > self.active_mtu:
            raise VerbsError(f"MTU {options.path_mtu} (-m) is above the {self.active_mtu} of {self.device}")

    def dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> Connection:
        self.check_mtu(options)
        self._dialing.clear()
        cm_id = self.soft.cm.create_id()
        for step in ("ADDR_RESOLVED", "ROUTE_RESOLVED"):
            if step == "ADDR_RESOLVED":
                self.soft.cm.resolve_addr(cm_id, host, port)
            else:
                self.soft.cm.resolve_route(cm_id)
            self._take_events()
            event = self._dialing.popleft()
            if event.type != step:
                raise cm_error(event)
        return SoftConnection(self, cm_id, options)

    def listen(self, port: int, backlog: int) -> None:
        self.soft.cm.listen(self.soft.cm.create_id(), port)

    def request(self, deadline: Deadline) -> Request:
        while not self._requests:
            self.turn()
            gone = self.gone()
            if gone is not None:
                raise Disconnected(f"the peer of QP {gone.qpn:#x} disconnected")
            if not self._requests and deadline.passed():
                raise VerbsError(
                    f"nobody asked to connect within {deadline.seconds:g} s (--timeout)",
                    errno=errno.ETIMEDOUT,
                )
        return SoftRequest(self, self._requests.popleft())


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
    if event.type == "REJECTED":
        said = event.private_data.rstrip(b"\0").decode("utf-8", "replace")
        if said and said.isprintable():
            return VerbsError(f"{there} rejected the connection: {said}", errno=errno.ECONNREFUSED)
        reason = REJ_REASONS.get(event.status, f"reason {event.status}")
        hint = "; is its server running?" if event.status == _NO_LISTENER else ""
        return VerbsError(f"{there} rejected the connection: {reason}{hint}", errno=errno.ECONNREFUSED)
    code = -event.status if event.status < 0 else None
    name = "" if code is None else f": {errno.errorcode.get(code, code)}"
    return VerbsError(f"{event.type} on the way to {there}{name}", errno=code)
