"""Queue pairs of the backend ``soft``: connecting them, posting to them, and their end."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocekit.endpoint import (
    LOCAL_WRITE,
    Connection,
    Deadline,
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
from rocekit.soft.backend.memory import SoftRegion
from rocekit.soft.backend.wr import refused, send_wr, sges_of
from rocekit.soft.cm.ids import CmEvent, CmId, ConnParam
from rocekit.soft.engine.windows import Binding, next_key
from rocekit.soft.engine.work import RecvWR, SendWR

if TYPE_CHECKING:
    from rocekit.soft.backend import SoftEndpoint

IDLE_S: Final = 0.001
"""How long to wait when there is nothing to do, in seconds."""
_GOODBYE_S: Final = 3.0


class SoftShared(SharedReceives):
    """A shared receive queue of a soft device."""

    def __init__(self, endpoint: SoftEndpoint, depth: int, sges: int) -> None:
        self.queue = endpoint.soft.create_srq(endpoint.pd, depth, sges)
        self._device = endpoint.soft
        super().__init__(endpoint, self.queue.handle)

    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [RecvWR(wr.wr_id, sges_of(wr)) for wr in wrs]
        return refused(lambda: self._device.post_srq_recv(self.queue, made))


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
        mine = {"qkey": self.qkey} if self.transport == "UD" else {"access": options.access}
        self._modify(state="INIT", **mine)
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

    def start(self, peer: QpAddress, psn: int, path_mtu: int) -> None:
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
        response = self._await(deadline, ANSWERED)
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
        self._await(deadline, ARRIVED)

    def _await(self, deadline: Deadline, good: frozenset[str]) -> CmEvent:
        while self.answer is None:
            self.endpoint.hear(IDLE_S)
            if self.answer is None and deadline.passed():
                absent = self.endpoint.nobody_at(self._id.peer_ip if self._id is not None else None)
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout){absent}", errno=errno.ETIMEDOUT
                )
        answer, self.answer = self.answer, None
        if answer.type in good:
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
        made = [send_wr(wr) for wr in wrs]
        endpoint = self.endpoint
        return refused(lambda: endpoint.soft.post_send(self._qp, made, endpoint.shell.now()))

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [RecvWR(wr.wr_id, sges_of(wr)) for wr in wrs]
        endpoint = self.endpoint
        return refused(lambda: endpoint.soft.post_recv(self._qp, made, endpoint.shell.now()))

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
            endpoint.hear(IDLE_S)

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


def cm_error(event: CmEvent) -> VerbsError:
    """What a CM event that ends a handshake means."""
    there = f"{event.id.peer_ip} port {event.id.port}"
    return meaning_of(event.type, event.status, event.private_data, there)
