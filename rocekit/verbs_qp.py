"""A QP of a device and its memory, as the verbs backend drives them through pyverbs.

pyverbs itself is handed in by the endpoint; :mod:`rocekit.verbs` alone imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import itertools
import mmap
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rocekit.endpoint import (
    ATOMICS,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Connection,
    Deadline,
    QpOptions,
    RecvWr,
    Region,
    SendWr,
)
from rocekit.errors import VerbsError
from rocekit.rdmacm import CmEvent, CmId, cm_error
from rocekit.wire import PATH_MTU_BYTES, PATH_MTU_CODES

if TYPE_CHECKING:
    from rocekit.verbs import VerbsEndpoint

_RTR, _RTS = 2, 3  # enum ibv_qp_state
_FLUSH_S = 0.5
_GOODBYE_S = 3.0
_NO_WR = (1 << 64) - 1
# Where the answer to a goodbye is lost, TIMEWAIT_EXIT is all that is heard of it.
_OVER = frozenset({"DISCONNECTED", "TIMEWAIT_EXIT", "DEVICE_REMOVAL"})


def network_order(immediate: int) -> int:
    """A 32-bit number as the machine's own whose bytes in memory are in network order, or back."""
    return int.from_bytes(immediate.to_bytes(4, "big"), sys.byteorder)


class VerbsMemory(Region):
    """A region over memory of this process that is zero at first."""

    def __init__(self, endpoint: VerbsEndpoint, length: int, access: int) -> None:
        if length < 1:
            raise ValueError("a region has at least one byte")
        self._bytes = mmap.mmap(-1, length)
        self.length = length
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        make = endpoint.pyverbs.mr.MR
        self._mr = endpoint.ask("register memory", lambda: make(endpoint.pd, length, access, self.addr))
        self.lkey = self._mr.lkey
        self.rkey = self._mr.rkey
        endpoint.release(self._mr.close)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data


class VerbsConnection(Connection):
    """An RC QP of a device, introduced to its peer by rdma_cm."""

    endpoint: VerbsEndpoint

    def __init__(self, endpoint: VerbsEndpoint, cm: CmId, options: QpOptions) -> None:
        self._cm = cm
        self._options = options
        self._pyverbs = endpoint.pyverbs
        self._responses: deque[CmEvent] = deque()
        qp = self._pyverbs.qp
        capacity = qp.QPCap(
            max_send_wr=options.send_depth,
            max_recv_wr=options.recv_depth,
            max_send_sge=options.sges,
            max_recv_sge=options.sges,
            max_inline_data=options.inline_size,
        )
        wanted = qp.QPInitAttr(
            qp_type=self._pyverbs.enums.IBV_QPT_RC,
            scq=endpoint.cq,
            rcq=endpoint.cq,
            cap=capacity,
            sq_sig_all=0,
        )
        hint = f"a QP with {options.send_depth} sends and {options.recv_depth} receives (-t, -r, -I)"
        self._qp = endpoint.ask(f"create {hint}", lambda: qp.QP(endpoint.pd, wanted))
        super().__init__(endpoint, self._qp.qp_num)
        endpoint.connections[self.qpn] = self
        endpoint.by_id[cm.handle] = self
        endpoint.release(self._close)
        if endpoint.journal is not None:
            endpoint.journal.write(
                "qp_created",
                qp=self.qp,
                transport="RC",
                max_send_wr=options.send_depth,
                max_recv_wr=options.recv_depth,
                sq_sig_all=False,
                local_ip=endpoint.ip,
            )
        self._to_init()

    # States: RESET to INIT when made, to RTR and RTS when the peer is known, to ERR when it is over.

    def _to_init(self) -> None:
        enums = self._pyverbs.enums
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_INIT)
        attributes.pkey_index = 0
        attributes.port_num = self.endpoint.port
        attributes.qp_access_flags = self.endpoint.access((REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC))
        mask = enums.IBV_QP_STATE | enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT | enums.IBV_QP_ACCESS_FLAGS
        self._modify("INIT", attributes, mask)

    def _to_ready(self) -> None:
        """To RTR and RTS, with what the handshake said and the options want."""
        options, enums = self._options, self._pyverbs.enums
        told, _ = self._cm.qp_attributes(_RTR)
        mtu = min(PATH_MTU_BYTES[told.path_mtu], options.path_mtu or max(PATH_MTU_BYTES.values()))
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTR)
        attributes.path_mtu = PATH_MTU_CODES[mtu]
        attributes.dest_qp_num = told.dest_qp_num
        attributes.rq_psn = told.rq_psn
        attributes.max_dest_rd_atomic = told.max_dest_rd_atomic
        attributes.min_rnr_timer = options.min_rnr_timer
        attributes.ah_attr, dest_gid = self._address(told.ah_attr)
        mask = enums.IBV_QP_STATE | enums.IBV_QP_AV | enums.IBV_QP_PATH_MTU | enums.IBV_QP_DEST_QPN
        mask |= enums.IBV_QP_RQ_PSN | enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER
        self._modify(
            "RTR",
            attributes,
            mask,
            dest_qpn=told.dest_qp_num,
            rq_psn=told.rq_psn,
            path_mtu=mtu,
            min_rnr_timer=options.min_rnr_timer,
            dest_gid=str(dest_gid),
            dest_ip=str(dest_gid.ipv4_mapped or dest_gid),
            local_ip=self.endpoint.ip,
        )
        told, _ = self._cm.qp_attributes(_RTS)
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTS)
        attributes.sq_psn = told.sq_psn
        attributes.timeout = options.timeout
        attributes.retry_cnt = options.retry_cnt
        attributes.rnr_retry = options.rnr_retry
        attributes.max_rd_atomic = told.max_rd_atomic
        mask = enums.IBV_QP_STATE | enums.IBV_QP_SQ_PSN | enums.IBV_QP_TIMEOUT | enums.IBV_QP_RETRY_CNT
        mask |= enums.IBV_QP_RNR_RETRY | enums.IBV_QP_MAX_QP_RD_ATOMIC
        self._modify(
            "RTS",
            attributes,
            mask,
            sq_psn=told.sq_psn,
            timeout=options.timeout,
            retry_cnt=options.retry_cnt,
            rnr_retry=options.rnr_retry,
        )
        self.path_mtu = mtu

    def _address(self, told: Any) -> tuple[Any, ipaddress.IPv6Address]:
        addr = self._pyverbs.addr
        gid = ipaddress.IPv6Address(bytes(told.grh.dgid))
        route = addr.GlobalRoute(
            dgid=addr.GID(gid.exploded),
            sgid_index=told.grh.sgid_index,
            hop_limit=told.grh.hop_limit,
            flow_label=told.grh.flow_label,
            traffic_class=told.grh.traffic_class,
        )
        return addr.AHAttr(gr=route, is_global=1, port_num=told.port_num, sl=told.sl), gid

    def _modify(self, state: str, attributes: Any, mask: int, **told: Any) -> None:
        self.endpoint.ask(f"move QP {self.qpn:#x} to {state}", lambda: self._qp.modify(attributes, mask))
        if self.endpoint.journal is not None:
            self.endpoint.journal.write("qp_modified", qp=self.qp, state=state, **told)

    # Meeting the peer.

    def connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        options = self._options
        self._cm.connect(
            self.qpn,
            private_data,
            reads=min(options.reads, self.endpoint.max_reads),
            retry=options.retry_cnt,
            rnr_retry=options.rnr_retry,
        )
        response = self._response(deadline)
        self.peer_data = response.private_data
        self._to_ready()
        self._cm.establish()
        self.connected = True
        return self.peer_data

    def accept(self, private_data: bytes, deadline: Deadline) -> None:
        self._to_ready()
        reads = min(self._options.reads, self.endpoint.max_reads)
        self._cm.accept(self.qpn, private_data, reads=reads, rnr_retry=self._options.rnr_retry)
        self._response(deadline)
        self.connected = True

    def _response(self, deadline: Deadline) -> CmEvent:
        while not self._responses:
            self.endpoint.events(min(0.1, deadline.left()))
            if not self._responses and deadline.passed():
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        response = self._responses.popleft()
        if response.type in ("CONNECT_RESPONSE", "ESTABLISHED"):
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
        return self._post(self._qp.post_send, [self._send_wr(wr) for wr in wrs])

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        return self._post(self._qp.post_recv, [self._recv_wr(wr) for wr in wrs])

    def _post(self, post: Callable[[Any, Any], None], made: list[Any]) -> tuple[int, int]:
        """Post a list; on refusal, libibverbs says at which WR."""
        for wr, following in itertools.pairwise(made):
            wr.next_wr = following
        kind = self._pyverbs.wr
        empty = kind.SGE(0, 0, 0)
        bad = type(made[0])(wr_id=_NO_WR, num_sge=1, sg=[empty])
        empty.close()
        try:
            post(made[0], bad)
        except self._pyverbs.pyverbs_error.PyverbsRDMAError as error:
            ids = [wr.wr_id for wr in made]
            return ids.index(bad.wr_id) if bad.wr_id in ids else 0, abs(error.error_code) or errno.EINVAL
        finally:
            # pyverbs frees nothing by itself here, and a second close would free twice. After a refusal,
            # `bad` shares its list with the WR that was refused.
            if bad.wr_id == _NO_WR:
                bad.close()
            for wr in made:
                wr.close()
        return 0, 0

    def _recv_wr(self, wr: RecvWr) -> Any:
        sges = self._sges(wr)
        made = self._pyverbs.wr.RecvWR(wr_id=wr.wr_id, num_sge=len(sges), sg=sges)
        made.num_sge = len(wr.sges)
        for sge in sges:
            sge.close()
        return made

    def _sges(self, wr: SendWr | RecvWr) -> list[Any]:
        sge = self._pyverbs.wr.SGE
        # pyverbs wants one at least; a WR without data has its number of elements set to 0 afterwards.
        return [sge(part.addr, part.length, part.region.lkey) for part in wr.sges] or [sge(0, 0, 0)]

    def _send_wr(self, wr: SendWr) -> Any:
        enums = self._pyverbs.enums
        flags = enums.IBV_SEND_SIGNALED if wr.signaled else 0
        flags |= enums.IBV_SEND_INLINE if wr.inline else 0
        flags |= enums.IBV_SEND_FENCE if wr.fenced else 0
        flags |= enums.IBV_SEND_SOLICITED if wr.solicited else 0
        sges = self._sges(wr)
        made = self._pyverbs.wr.SendWR(
            wr_id=wr.wr_id,
            opcode=getattr(enums, f"IBV_WR_{wr.opcode}"),
            num_sge=len(sges),
            sg=sges,
            send_flags=flags,
            imm_data=0 if wr.imm is None else network_order(wr.imm),
        )
        made.num_sge = len(wr.sges)
        for sge in sges:
            sge.close()
        if wr.opcode in ATOMICS:
            add = wr.opcode == "ATOMIC_FETCH_AND_ADD"
            # ibv_send_wr's compare_add is what is added, or what is compared with.
            first, second = (wr.swap_add, 0) if add else (wr.compare, wr.swap_add)
            made.set_wr_atomic(wr.rkey, wr.remote_va, first, second)
        elif wr.rkey is not None:
            made.set_wr_rdma(wr.rkey, wr.remote_va)
        return made

    # The end.

    def disconnect(self, deadline: Deadline) -> None:
        if not self.connected:
            return
        self.connected = False
        with contextlib.suppress(VerbsError):
            self._cm.disconnect()  # a DREQ, or the DREP to the peer's
        while not self.disconnected and not deadline.passed():
            self.endpoint.events(min(0.1, deadline.left()))
        enums = self._pyverbs.enums
        self._modify("ERR", self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        flush = Deadline(_FLUSH_S)
        while self.outstanding and not flush.passed():
            if not self.endpoint.poll():
                time.sleep(0.001)

    def _close(self) -> None:
        try:
            self.disconnect(Deadline(_GOODBYE_S))
        finally:
            self.endpoint.by_id.pop(self._cm.handle, None)
            self.endpoint.connections.pop(self.qpn, None)
            try:
                self._qp.close()
            finally:
                self._cm.close()
