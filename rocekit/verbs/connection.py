"""A QP of a device, through pyverbs."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rocekit.endpoint import (
    LOCAL_WRITE,
    REMOTE_WRITE,
    Connection,
    Deadline,
    QpOptions,
    RecvWr,
    Region,
    SendWr,
    SharedReceives,
    Target,
    errno_text,
)
from rocekit.endpoint.connection import ANSWERED, ARRIVED
from rocekit.endpoint.local_device import LocalDevice
from rocekit.endpoint.qp_address import QpAddress
from rocekit.errors import VerbsError
from rocekit.verbs.cq import Completions
from rocekit.verbs.memory import VerbsMemory
from rocekit.verbs.open_device import OpenDevice
from rocekit.verbs.post import post, recv_wr, send_wr
from rocekit.verbs.rdma_cm import RdmaCmEvent, RdmaCmId, cm_error
from rocekit.wire import PATH_MTU_BYTES, PATH_MTU_CODES
from rocekit.wire.build import gid as gid_of

_RTR, _RTS = 2, 3  # enum ibv_qp_state
_GOODBYE_S = 3.0
# If the DREP is lost, TIMEWAIT_EXIT is the only event that reports the end.
_OVER = frozenset({"DISCONNECTED", "TIMEWAIT_EXIT", "DEVICE_REMOVAL"})
_SRQ_NUMBERS: Final = itertools.count(1)


class QpHost(LocalDevice, Protocol):
    """What a QP needs of the endpoint that makes it."""

    @property
    def opened(self) -> OpenDevice: ...

    @property
    def completions(self) -> Completions: ...

    @property
    def connections(self) -> dict[int, Connection]: ...

    @property
    def by_id(self) -> dict[int, VerbsConnection]:
        """Connections by the handle of their ``rdma_cm_id``."""

    def hear(self, wait_s: float = 0.0) -> None: ...


class VerbsShared(SharedReceives):
    """A shared receive queue of a device."""

    def __init__(self, endpoint: QpHost, depth: int, sges: int) -> None:
        device = endpoint.opened
        self._pyverbs = device.pyverbs
        srq = device.pyverbs.srq
        wanted = srq.SrqInitAttr(srq.SrqAttr(max_wr=depth, max_sge=sges))
        self.queue = device.ask(
            f"create a shared receive queue of {depth}", lambda: srq.SRQ(device.pd, wanted)
        )
        device.release(self.queue.close)
        super().__init__(endpoint, next(_SRQ_NUMBERS))

    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        return post(self._pyverbs, self.queue.post_recv, [recv_wr(self._pyverbs, wr) for wr in wrs])


class VerbsConnection(Connection):
    """A QP of a device, introduced to its peer by rdma_cm; or by the program, then ``cm`` is None."""

    endpoint: QpHost

    def __init__(self, endpoint: QpHost, cm: RdmaCmId | None, options: QpOptions) -> None:
        self._cm = cm
        self._options = options
        self._device = device = endpoint.opened
        self._pyverbs = device.pyverbs
        self._responses: deque[RdmaCmEvent] = deque()
        qp = self._pyverbs.qp
        shared = options.shared
        assert shared is None or isinstance(shared, VerbsShared)
        capacity = qp.QPCap(
            max_send_wr=options.send_depth,
            max_recv_wr=0 if shared is not None else options.recv_depth,
            max_send_sge=options.sges,
            max_recv_sge=0 if shared is not None else options.sges,
            max_inline_data=options.inline_size,
        )
        wanted = qp.QPInitAttr(
            qp_type=getattr(self._pyverbs.enums, f"IBV_QPT_{options.transport}"),
            scq=endpoint.completions.for_sends,
            rcq=endpoint.completions.cq,
            srq=None if shared is None else shared.queue,
            cap=capacity,
            sq_sig_all=0,
        )
        hint = f"a QP with {options.send_depth} sends and {options.recv_depth} receives (-t, -r, -I)"
        self._qp = device.ask(f"create {hint}", lambda: qp.QP(device.pd, wanted))
        super().__init__(endpoint, self._qp.qp_num, options.transport)
        endpoint.connections[self.qpn] = self
        if cm is not None:
            endpoint.by_id[cm.handle] = self
        device.release(self._close)
        self.usual_mtu = options.path_mtu or device.active_mtu
        self.log_created(options)
        self._to_init()

    # States: RESET to INIT when made, to RTR and RTS when the peer is known, to ERR when it is over.

    def _to_init(self) -> None:
        enums = self._pyverbs.enums
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_INIT)
        attributes.pkey_index = 0
        attributes.port_num = self._device.port
        mask = enums.IBV_QP_STATE | enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT
        if self.transport == "UD":
            attributes.qkey = self.qkey
            mask |= enums.IBV_QP_QKEY
        else:
            allowed = self._options.access
            remote = [name for name in allowed if self.transport == "RC" or name == REMOTE_WRITE]
            attributes.qp_access_flags = self._device.access(remote)
            mask |= enums.IBV_QP_ACCESS_FLAGS
        logged = {"qkey": self.qkey} if self.transport == "UD" else {}
        self._modify("INIT", attributes, mask, **logged)

    def _to_ready(self) -> None:
        """To RTR and RTS, with what rdma_cm knows of the peer and the options demand."""
        assert self._cm is not None
        receiving, _ = self._cm.qp_attributes(_RTR)
        sending, _ = self._cm.qp_attributes(_RTS)
        received = receiving.ah_attr
        addr = self._pyverbs.addr
        gid = ipaddress.IPv6Address(bytes(received.grh.dgid))
        route = addr.GlobalRoute(
            dgid=addr.GID(gid.exploded),
            sgid_index=received.grh.sgid_index,
            hop_limit=received.grh.hop_limit,
            flow_label=received.grh.flow_label,
            traffic_class=received.grh.traffic_class,
        )
        self._ready(
            _Peer(
                receiving.dest_qp_num,
                receiving.rq_psn,
                sending.sq_psn,
                min(PATH_MTU_BYTES[receiving.path_mtu], self._options.path_mtu or max(PATH_MTU_CODES)),
                receiving.max_dest_rd_atomic,
                sending.max_rd_atomic,
                gid,
                addr.AHAttr(gr=route, is_global=1, port_num=received.port_num, sl=received.sl),
            )
        )

    def start(self, peer: QpAddress, psn: int, path_mtu: int) -> None:
        device = self._device
        reads = min(self._options.reads, device.max_reads)
        address = self._pyverbs.addr.AHAttr(gr=device.route(peer.ip), is_global=1, port_num=device.port)
        gid = ipaddress.IPv6Address(gid_of(peer.ip))
        self._ready(_Peer(peer.qpn, peer.psn, psn, path_mtu, reads, reads, gid, address))

    def _ready(self, peer: _Peer) -> None:
        options, enums = self._options, self._pyverbs.enums
        connected, reliable = self.transport != "UD", self.transport == "RC"
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTR)
        mask = enums.IBV_QP_STATE
        logged: dict[str, Any] = {}
        if connected:
            attributes.path_mtu = PATH_MTU_CODES[peer.path_mtu]
            attributes.dest_qp_num = peer.dest_qpn
            attributes.rq_psn = peer.rq_psn
            attributes.ah_attr = peer.address
            mask |= enums.IBV_QP_AV | enums.IBV_QP_PATH_MTU | enums.IBV_QP_DEST_QPN | enums.IBV_QP_RQ_PSN
            logged = {
                "dest_qpn": peer.dest_qpn,
                "rq_psn": peer.rq_psn,
                "path_mtu": peer.path_mtu,
                "dest_gid": str(peer.gid),
                "dest_ip": str(peer.gid.ipv4_mapped or peer.gid),
            }
        if reliable:
            attributes.max_dest_rd_atomic = peer.responder_resources
            attributes.min_rnr_timer = options.min_rnr_timer
            mask |= enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER
            logged["min_rnr_timer"] = options.min_rnr_timer
        self._modify("RTR", attributes, mask, **logged, local_ip=self.endpoint.ip)
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTS)
        attributes.sq_psn = peer.sq_psn
        mask = enums.IBV_QP_STATE | enums.IBV_QP_SQ_PSN
        logged = {}
        if reliable:
            attributes.timeout = options.timeout
            attributes.retry_cnt = options.retry_cnt
            attributes.rnr_retry = options.rnr_retry
            attributes.max_rd_atomic = peer.initiator_depth
            mask |= enums.IBV_QP_TIMEOUT | enums.IBV_QP_RETRY_CNT | enums.IBV_QP_RNR_RETRY
            mask |= enums.IBV_QP_MAX_QP_RD_ATOMIC
            logged = {
                "timeout": options.timeout,
                "retry_cnt": options.retry_cnt,
                "rnr_retry": options.rnr_retry,
            }
        self._modify("RTS", attributes, mask, sq_psn=peer.sq_psn, **logged)
        self.path_mtu = peer.path_mtu if connected else self._device.active_mtu

    def _modify(self, state: str, attributes: Any, mask: int, **logged: Any) -> None:
        self._device.ask(f"move QP {self.qpn:#x} to {state}", lambda: self._qp.modify(attributes, mask))
        self.endpoint.log("qp_modified", self.qp, state=state, **logged)

    # Connecting to the peer.

    def _connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        options = self._options
        assert self._cm is not None
        self._cm.connect(
            self.qpn,
            private_data,
            reads=min(options.reads, self._device.max_reads),
            retry=options.retry_cnt,
            rnr_retry=options.rnr_retry,
        )
        response = self._response(deadline, ANSWERED)
        self._to_ready()
        self._cm.establish()
        return response.private_data

    def _accept(self, private_data: bytes, deadline: Deadline) -> None:
        assert self._cm is not None
        self._to_ready()
        reads = min(self._options.reads, self._device.max_reads)
        self._cm.accept(self.qpn, private_data, reads=reads, rnr_retry=self._options.rnr_retry)
        self._response(deadline, ARRIVED)

    def _response(self, deadline: Deadline, good: frozenset[str]) -> RdmaCmEvent:
        assert self._cm is not None
        while not self._responses:
            self.endpoint.hear(min(0.1, deadline.left()))
            if not self._responses and deadline.passed():
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        response = self._responses.popleft()
        if response.type in good:
            return response
        raise cm_error(response, self._cm)

    def heard(self, event: RdmaCmEvent) -> None:
        """A CM event for this connection."""
        if event.type in _OVER:
            self.disconnected = True
        if not self.connected and event.type != "TIMEWAIT_EXIT":
            self._responses.append(event)

    # Work.

    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        made = [send_wr(self._pyverbs, wr, self._address_handle) for wr in wrs]
        return post(self._pyverbs, self._qp.post_send, made)

    def _address_handle(self, target: Target) -> Any:
        return self._device.address_handle(target, self._log_handle)

    def _log_handle(self, ip: str) -> None:
        self.endpoint.log("ah_created", device=self.endpoint.device, dest_ip=ip, local_ip=self.endpoint.ip)

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        return post(self._pyverbs, self._qp.post_recv, [recv_wr(self._pyverbs, wr) for wr in wrs])

    def grant(self, region: Region, offset: int, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> int:
        """By a memory window of type 2, which this QP binds."""
        assert isinstance(region, VerbsMemory)
        endpoint, device = self.endpoint, self._device
        enums, mr = self._pyverbs.enums, self._pyverbs.mr
        names = [name for name in access if name != LOCAL_WRITE]
        window = device.ask("allocate a memory window", lambda: mr.MW(device.pd, enums.IBV_MW_TYPE_2))
        device.release(window.close)
        endpoint.log("mw_allocated", device=endpoint.device, rkey=window.rkey, type=2)
        # Binding counts up the low byte of a type 2 window's key (ibv_inc_rkey).
        rkey = (window.rkey & ~0xFF) | (window.rkey + 1) & 0xFF
        address = region.addr + offset
        bind = self._pyverbs.wr.SendWR(
            opcode=enums.IBV_WR_BIND_MW, num_sge=1, sg=[self._pyverbs.wr.SGE(0, 0, 0)], send_flags=0
        )
        bind.num_sge = 0
        bind.set_bind_wr(window, mr.MWBindInfo(region.mr, address, length, device.access(names)))
        _, code = post(self._pyverbs, self._qp.post_send, [bind])
        if code:
            raise VerbsError(f"{endpoint.device} cannot bind a memory window: {errno_text(code)}", errno=code)
        endpoint.log(
            "mw_bound",
            self.qp,
            rkey=rkey,
            addr=address,
            length=length,
            old_rkey=window.rkey,
            mr_rkey=region.rkey,
            mr_lkey=region.lkey,
            access=names,
        )
        return rkey

    # The end.

    def _goodbye(self, deadline: Deadline) -> None:
        assert self._cm is not None
        with contextlib.suppress(VerbsError):
            self._cm.disconnect()  # a DREQ, or the DREP to the peer's
        while not self.disconnected and not deadline.passed():
            self.endpoint.hear(min(0.1, deadline.left()))

    def to_error(self) -> None:
        enums = self._pyverbs.enums
        self._modify("ERR", self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)

    def _close(self) -> None:
        try:
            self.disconnect(Deadline(_GOODBYE_S))
        finally:
            self.endpoint.connections.pop(self.qpn, None)
            try:
                self._qp.close()
            finally:
                if self._cm is not None:
                    self.endpoint.by_id.pop(self._cm.handle, None)
                    self._cm.close()


@dataclass(frozen=True, slots=True)
class _Peer:
    """What a QP needs to know of its peer to become ready."""

    dest_qpn: int
    rq_psn: int
    sq_psn: int
    path_mtu: int
    responder_resources: int
    initiator_depth: int
    gid: ipaddress.IPv6Address
    address: Any
