"""A QP of a device, as the verbs backend drives it through pyverbs.

pyverbs itself is handed in by the endpoint; :mod:`rocekit.verbs` alone imports it.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
    errno_text,
)
from rocekit.endpoint.connection import ANSWERED, ARRIVED
from rocekit.endpoint.tcp_words import Place
from rocekit.errors import VerbsError
from rocekit.verbs.memory import VerbsMemory
from rocekit.verbs.rdmacm import CmEvent, CmId, cm_error
from rocekit.verbs.wr import post, recv_wr, send_wr
from rocekit.wire import PATH_MTU_BYTES, PATH_MTU_CODES
from rocekit.wire.build import gid as gid_of

if TYPE_CHECKING:
    from rocekit.verbs import VerbsEndpoint

_RTR, _RTS = 2, 3  # enum ibv_qp_state
_GOODBYE_S = 3.0
# Where the answer to a goodbye is lost, TIMEWAIT_EXIT is all that is heard of it.
_OVER = frozenset({"DISCONNECTED", "TIMEWAIT_EXIT", "DEVICE_REMOVAL"})
_SRQ_NUMBERS: Final = itertools.count(1)


class VerbsShared(SharedReceives):
    """A shared receive queue of a device."""

    def __init__(self, endpoint: VerbsEndpoint, depth: int, sges: int) -> None:
        srq = endpoint.pyverbs.srq
        wanted = srq.SrqInitAttr(srq.SrqAttr(max_wr=depth, max_sge=sges))
        self.queue = endpoint.ask(
            f"create a shared receive queue of {depth}", lambda: srq.SRQ(endpoint.pd, wanted)
        )
        endpoint.release(self.queue.close)
        super().__init__(endpoint, next(_SRQ_NUMBERS))

    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        made = [recv_wr(self.endpoint.pyverbs, wr) for wr in wrs]  # type: ignore[attr-defined]
        return post(self.endpoint.pyverbs, self.queue.post_recv, made)  # type: ignore[attr-defined]


class VerbsConnection(Connection):
    """A QP of a device, introduced to its peer by rdma_cm; or by the program, then ``cm`` is None."""

    endpoint: VerbsEndpoint

    def __init__(self, endpoint: VerbsEndpoint, cm: CmId | None, options: QpOptions) -> None:
        self._cm = cm
        self._options = options
        self._pyverbs = endpoint.pyverbs
        self._responses: deque[CmEvent] = deque()
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
        self._qp = endpoint.ask(f"create {hint}", lambda: qp.QP(endpoint.pd, wanted))
        super().__init__(endpoint, self._qp.qp_num, options.transport)
        endpoint.connections[self.qpn] = self
        if cm is not None:
            endpoint.by_id[cm.handle] = self
        endpoint.release(self._close)
        self.usual_mtu = options.path_mtu or endpoint.active_mtu
        self.log_created(options)
        self._to_init()

    # States: RESET to INIT when made, to RTR and RTS when the peer is known, to ERR when it is over.

    def _to_init(self) -> None:
        enums = self._pyverbs.enums
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_INIT)
        attributes.pkey_index = 0
        attributes.port_num = self.endpoint.port
        mask = enums.IBV_QP_STATE | enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT
        if self.transport == "UD":
            attributes.qkey = self.qkey
            mask |= enums.IBV_QP_QKEY
        else:
            allowed = self._options.access
            remote = [name for name in allowed if self.transport == "RC" or name == REMOTE_WRITE]
            attributes.qp_access_flags = self.endpoint.access(remote)
            mask |= enums.IBV_QP_ACCESS_FLAGS
        told = {"qkey": self.qkey} if self.transport == "UD" else {}
        self._modify("INIT", attributes, mask, **told)

    def _to_ready(self) -> None:
        """To RTR and RTS, with what rdma_cm says of the peer and the options want."""
        assert self._cm is not None
        receiving, _ = self._cm.qp_attributes(_RTR)
        sending, _ = self._cm.qp_attributes(_RTS)
        told = receiving.ah_attr
        addr = self._pyverbs.addr
        gid = ipaddress.IPv6Address(bytes(told.grh.dgid))
        route = addr.GlobalRoute(
            dgid=addr.GID(gid.exploded),
            sgid_index=told.grh.sgid_index,
            hop_limit=told.grh.hop_limit,
            flow_label=told.grh.flow_label,
            traffic_class=told.grh.traffic_class,
        )
        self._ready(
            _Known(
                receiving.dest_qp_num,
                receiving.rq_psn,
                sending.sq_psn,
                min(PATH_MTU_BYTES[receiving.path_mtu], self._options.path_mtu or max(PATH_MTU_CODES)),
                receiving.max_dest_rd_atomic,
                sending.max_rd_atomic,
                gid,
                addr.AHAttr(gr=route, is_global=1, port_num=told.port_num, sl=told.sl),
            )
        )

    def start(self, peer: Place, psn: int, path_mtu: int) -> None:
        endpoint = self.endpoint
        reads = min(self._options.reads, endpoint.max_reads)
        address = self._pyverbs.addr.AHAttr(gr=endpoint.route(peer.ip), is_global=1, port_num=endpoint.port)
        gid = ipaddress.IPv6Address(gid_of(peer.ip))
        self._ready(_Known(peer.qpn, peer.psn, psn, path_mtu, reads, reads, gid, address))

    def _ready(self, known: _Known) -> None:
        options, enums = self._options, self._pyverbs.enums
        connected, reliable = self.transport != "UD", self.transport == "RC"
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTR)
        mask = enums.IBV_QP_STATE
        told: dict[str, Any] = {}
        if connected:
            attributes.path_mtu = PATH_MTU_CODES[known.path_mtu]
            attributes.dest_qp_num = known.dest_qpn
            attributes.rq_psn = known.rq_psn
            attributes.ah_attr = known.address
            mask |= enums.IBV_QP_AV | enums.IBV_QP_PATH_MTU | enums.IBV_QP_DEST_QPN | enums.IBV_QP_RQ_PSN
            told = {
                "dest_qpn": known.dest_qpn,
                "rq_psn": known.rq_psn,
                "path_mtu": known.path_mtu,
                "dest_gid": str(known.gid),
                "dest_ip": str(known.gid.ipv4_mapped or known.gid),
            }
        if reliable:
            attributes.max_dest_rd_atomic = known.responder_resources
            attributes.min_rnr_timer = options.min_rnr_timer
            mask |= enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER
            told["min_rnr_timer"] = options.min_rnr_timer
        self._modify("RTR", attributes, mask, **told, local_ip=self.endpoint.ip)
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTS)
        attributes.sq_psn = known.sq_psn
        mask = enums.IBV_QP_STATE | enums.IBV_QP_SQ_PSN
        told = {}
        if reliable:
            attributes.timeout = options.timeout
            attributes.retry_cnt = options.retry_cnt
            attributes.rnr_retry = options.rnr_retry
            attributes.max_rd_atomic = known.initiator_depth
            mask |= enums.IBV_QP_TIMEOUT | enums.IBV_QP_RETRY_CNT | enums.IBV_QP_RNR_RETRY
            mask |= enums.IBV_QP_MAX_QP_RD_ATOMIC
            told = {
                "timeout": options.timeout,
                "retry_cnt": options.retry_cnt,
                "rnr_retry": options.rnr_retry,
            }
        self._modify("RTS", attributes, mask, sq_psn=known.sq_psn, **told)
        self.path_mtu = known.path_mtu if connected else self.endpoint.active_mtu

    def _modify(self, state: str, attributes: Any, mask: int, **told: Any) -> None:
        self.endpoint.ask(f"move QP {self.qpn:#x} to {state}", lambda: self._qp.modify(attributes, mask))
        self.endpoint.log("qp_modified", self.qp, state=state, **told)

    # Meeting the peer.

    def _connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        options = self._options
        assert self._cm is not None
        self._cm.connect(
            self.qpn,
            private_data,
            reads=min(options.reads, self.endpoint.max_reads),
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
        reads = min(self._options.reads, self.endpoint.max_reads)
        self._cm.accept(self.qpn, private_data, reads=reads, rnr_retry=self._options.rnr_retry)
        self._response(deadline, ARRIVED)

    def _response(self, deadline: Deadline, good: frozenset[str]) -> CmEvent:
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

    def heard(self, event: CmEvent) -> None:
        """A CM event for this connection."""
        if event.type in _OVER:
            self.disconnected = True
        if not self.connected and event.type != "TIMEWAIT_EXIT":
            self._responses.append(event)

    # Work.

    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        made = [send_wr(self._pyverbs, wr, self.endpoint.address_handle) for wr in wrs]
        return post(self._pyverbs, self._qp.post_send, made)

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        return post(self._pyverbs, self._qp.post_recv, [recv_wr(self._pyverbs, wr) for wr in wrs])

    def grant(self, region: Region, offset: int, length: int, access: Iterable[str] = (LOCAL_WRITE,)) -> int:
        """By a memory window of type 2, which this QP binds."""
        assert isinstance(region, VerbsMemory)
        endpoint, enums, mr = self.endpoint, self._pyverbs.enums, self._pyverbs.mr
        names = [name for name in access if name != LOCAL_WRITE]
        window = endpoint.ask("allocate a memory window", lambda: mr.MW(endpoint.pd, enums.IBV_MW_TYPE_2))
        endpoint.release(window.close)
        endpoint.log("mw_allocated", device=endpoint.device, rkey=window.rkey, type=2)
        # Binding counts up the low byte of a type 2 window's key (ibv_inc_rkey).
        rkey = (window.rkey & ~0xFF) | (window.rkey + 1) & 0xFF
        address = region.addr + offset
        bind = self._pyverbs.wr.SendWR(
            opcode=enums.IBV_WR_BIND_MW, num_sge=1, sg=[self._pyverbs.wr.SGE(0, 0, 0)], send_flags=0
        )
        bind.num_sge = 0
        bind.set_bind_wr(window, mr.MWBindInfo(region.mr, address, length, endpoint.access(names)))
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
class _Known:
    """What a QP needs to know of its peer to become ready."""

    dest_qpn: int
    rq_psn: int
    sq_psn: int
    path_mtu: int
    responder_resources: int
    initiator_depth: int
    gid: ipaddress.IPv6Address
    address: Any
