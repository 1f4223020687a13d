"""Queue pairs of the backend ``soft``: connecting, posting, disconnecting."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rocekit.endpoint import (
    LOCAL_WRITE,
    Connection,
    Deadline,
    Endpoint,
    QpOptions,
    RecvWr,
    Region,
    Request,
    SendWr,
    SharedReceives,
)
from rocekit.endpoint.connection import ANSWERED, ARRIVED
from rocekit.endpoint.errors import cm_error as meaning_of
from rocekit.endpoint.options import DEFAULT_MTU
from rocekit.endpoint.qp_address import QpAddress
from rocekit.errors import VerbsError
from rocekit.journal.schema import SCHEMA
from rocekit.soft.backend.adapter import SoftAdapter
from rocekit.soft.backend.memory import SoftRegion
from rocekit.soft.backend.wr import refused, send_wr, sges_of
from rocekit.soft.cm.ids import CmEvent, CmId, ConnParam
from rocekit.soft.engine.windows import Binding, next_key
from rocekit.soft.engine.work import RecvWR, SendWR

IDLE_S: Final = 0.001
"""How long to wait when there is nothing to do, in seconds."""
_GOODBYE_S: Final = 3.0
_JOURNALED: Final = frozenset(SCHEMA["qp_modified"].optional) - {"access"}


class SoftReceives(SharedReceives):
    """A shared receive queue of a soft device."""

    def __init__(self, endpoint: Endpoint, adapter: SoftAdapter, depth: int, sges: int) -> None:
        self._device = adapter.device
        self.queue = self._device.create_srq(adapter.pd, depth, sges)
        super().__init__(endpoint, self.queue.handle)

    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [RecvWR(wr.wr_id, sges_of(wr)) for wr in wrs]
        return refused(lambda: self._device.post_srq_recv(self.queue, made))


class SoftConnection(Connection):
    """A QP of a soft device; ``cm_id`` is None if it is connected without a connection manager."""

    endpoint: Endpoint

    def __init__(
        self, endpoint: Endpoint, adapter: SoftAdapter, cm_id: CmId | None, options: QpOptions
    ) -> None:
        self._adapter = adapter
        self._id = cm_id
        self._options = options
        shared = options.shared
        assert shared is None or isinstance(shared, SoftReceives)
        self._qp = adapter.device.create_qp(
            adapter.pd,
            options.transport,
            adapter.send_cq,
            adapter.cq,
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
            adapter.by_id[cm_id.number] = self
        endpoint.resources.callback(self._close)
        self.usual_mtu = options.path_mtu or min(DEFAULT_MTU, adapter.active_mtu)
        self.log_created(options)
        own = {"qkey": self.qkey} if self.transport == "UD" else {"access": options.access}
        self._modify(state="INIT", **own)
        self.response: CmEvent | None = None

    def _modify(self, **attributes: Any) -> None:
        self._adapter.device.modify_qp(self._qp, self._adapter.now(), **attributes)
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
        """Move to RTR and RTS, with the attributes that the peers agreed on and those of the options."""
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
        cm = self._adapter.device.cm
        assert self._id is not None
        receiving = cm.qp_attributes(self._id, "RTR")
        wanted = self._options.path_mtu or receiving["path_mtu"]
        self.path_mtu = receiving["path_mtu"] = min(receiving["path_mtu"], wanted)
        self._ready(receiving, cm.qp_attributes(self._id, "RTS"))

    def start(self, peer: QpAddress, psn: int, path_mtu: int) -> None:
        endpoint = self.endpoint
        if self.transport == "UD":
            self.path_mtu = self._adapter.active_mtu
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

    # Connecting to the peer.

    def _connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        adapter, cm_id = self._adapter, self._id
        assert cm_id is not None
        cm_id.path_mtu = self.usual_mtu
        cm_id.timeout = self._options.timeout
        param = self._param(private_data)
        adapter.device.cm.connect(cm_id, param, adapter.now())
        response = self._await(deadline, ANSWERED)
        self._to_ready()
        adapter.device.cm.accept(cm_id, param, adapter.now())
        adapter.shell.pump()
        return response.private_data

    def _accept(self, private_data: bytes, deadline: Deadline) -> None:
        adapter, cm_id = self._adapter, self._id
        assert cm_id is not None
        cm_id.param = self._param(private_data)
        self._to_ready()
        adapter.device.cm.accept(cm_id, cm_id.param, adapter.now())
        self._await(deadline, ARRIVED)

    def _await(self, deadline: Deadline, good: frozenset[str]) -> CmEvent:
        while self.response is None:
            self.endpoint.hear(IDLE_S)
            if self.response is None and deadline.passed():
                absent = self._adapter.nobody_at(self._id.peer_ip if self._id is not None else None)
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout){absent}", errno=errno.ETIMEDOUT
                )
        response, self.response = self.response, None
        if response.type in good:
            return response
        raise cm_error(response)

    def heard(self, event: CmEvent) -> None:
        """A CM event for this connection."""
        if event.type in ("DISCONNECTED", "DEVICE_REMOVAL"):
            self.disconnected = True
        # Keep the first one: a peer may connect and leave before this side looks.
        if not self.connected and self.response is None and event.type != "TIMEWAIT_EXIT":
            self.response = event

    # Work.

    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        made = [send_wr(wr) for wr in wrs]
        adapter = self._adapter
        return refused(lambda: adapter.device.post_send(self._qp, made, adapter.now()))

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [RecvWR(wr.wr_id, sges_of(wr)) for wr in wrs]
        adapter = self._adapter
        return refused(lambda: adapter.device.post_recv(self._qp, made, adapter.now()))

    def grant(self, region: Region, offset: int, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> int:
        """Bind a memory window of type 2 on this QP."""
        assert isinstance(region, SoftRegion)
        endpoint, adapter = self.endpoint, self._adapter
        names = [name for name in access if name != LOCAL_WRITE]
        window = adapter.device.alloc_mw(adapter.pd, 2)
        endpoint.resources.callback(adapter.device.dealloc_mw, window)
        endpoint.log("mw_allocated", device=endpoint.device, rkey=window.rkey, type=2)
        old, rkey, address = window.rkey, next_key(window.rkey), region.addr + offset
        binding = Binding.to(window, region.mr, address, length, names)
        wr = SendWR(0, "BIND_MW", signaled=False, rkey=rkey, binding=binding)
        adapter.device.post_send(self._qp, [wr], adapter.now())
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

    # Disconnecting.

    def _goodbye(self, deadline: Deadline) -> None:
        endpoint = self.endpoint
        assert self._id is not None
        try:
            self._adapter.device.cm.disconnect(self._id, self._adapter.now())
        except VerbsError:
            self.disconnected = True
        while not self.disconnected and not deadline.passed():
            endpoint.hear(IDLE_S)

    def to_error(self) -> None:
        self._modify(state="ERR")
        self._adapter.shell.pump()

    def _close(self) -> None:
        try:
            self.disconnect(Deadline(_GOODBYE_S))
        finally:
            self._adapter.shell.pump()
            if self._id is not None:
                self._adapter.device.cm.destroy_id(self._id, self._adapter.now())
                self._adapter.by_id.pop(self._id.number, None)
            self.endpoint.connections.pop(self.qpn, None)
            self._adapter.device.destroy_qp(self._qp)


class SoftRequest(Request):
    """A peer that asks to connect."""

    def __init__(self, endpoint: Endpoint, adapter: SoftAdapter, event: CmEvent) -> None:
        self._endpoint = endpoint
        self._adapter = adapter
        self._id = event.id
        self.private_data = event.private_data

    def connection(self, options: QpOptions) -> SoftConnection:
        made = SoftConnection(self._endpoint, self._adapter, self._id, options)
        made.peer_data = self.private_data
        return made

    def reject(self, private_data: bytes) -> None:
        adapter = self._adapter
        adapter.device.cm.reject(self._id, private_data[:148], adapter.now())
        adapter.shell.pump()


def cm_error(event: CmEvent) -> VerbsError:
    """The error for a CM event that ends the attempt to connect."""
    there = f"{event.id.peer_ip} port {event.id.port}"
    return meaning_of(event.type, event.status, event.private_data, there)
