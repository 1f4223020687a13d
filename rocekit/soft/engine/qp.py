"""A queue pair: its attributes, its state, and its two halves (10.2.4, 10.3)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from rocekit.soft.engine import qp_state
from rocekit.soft.engine.congestion import Dcqcn, Notifier
from rocekit.soft.engine.errors import PostError, verbs_error
from rocekit.soft.engine.memory import PD
from rocekit.soft.engine.packet import ECN_CE, Packet, Route
from rocekit.soft.engine.parts import QpDevice, QueuePair, ReceivingHalf, SendingHalf
from rocekit.soft.engine.queues import CQ, ReceiveQueue
from rocekit.soft.engine.record import FlowEnd, ReplyFlow, RequestFlow, TransferRecord
from rocekit.soft.engine.requester import Requester
from rocekit.soft.engine.responder import Responder
from rocekit.soft.engine.segment import SendWqe
from rocekit.soft.engine.uc import UcReceiver, UcSender
from rocekit.soft.engine.ud import UdReceiver, UdSender
from rocekit.soft.engine.work import WC, RecvWR, SendWR
from rocekit.wire import CNP_OPCODE, PATH_MTU_CODES
from rocekit.wire.build import build_transport
from rocekit.wire.psn import MASK

#: The lowest and highest value of attributes (11.2.5.2; from the fields in 9.7 and 12.6.5).
_RANGES: Final = {
    "timeout": (0, 31),
    "retry_cnt": (0, 7),
    "rnr_retry": (0, 7),
    "min_rnr_timer": (0, 31),
    "sq_psn": (0, MASK),
    "rq_psn": (0, MASK),
    "dest_qpn": (0, MASK),
    "max_rd_atomic": (0, 255),
    "max_dest_rd_atomic": (0, 255),
    "tclass": (0, 255),
}


#: The sending and the receiving half of each transport.
HALVES: Final[
    MappingProxyType[str, tuple[Callable[[QueuePair], SendingHalf], Callable[[QueuePair], ReceivingHalf]]]
] = MappingProxyType(
    {
        "RC": (Requester, Responder),
        "UC": (UcSender, UcReceiver),
        "UD": (UdSender, UdReceiver),
    }
)


class Qp:
    """A queue pair; created by ``SoftDevice.create_qp`` and changed by ``SoftDevice.modify_qp``.

    Attributes have their names in ``struct ibv_qp_attr``; ``dest_ip``, ``local_ip`` and ``tclass`` are of the
    address handle, ``path_mtu`` is in bytes, and ``access`` contains the names of rights.
    """

    def __init__(
        self,
        device: QpDevice,
        qpn: int,
        pd: PD,
        transport: str,
        send_cq: CQ,
        recv_cq: CQ,
        rq: ReceiveQueue,
        *,
        max_send_wr: int,
        max_send_sge: int,
        max_inline: int,
        sq_sig_all: bool,
    ) -> None:
        self.device = device
        self.qpn = qpn
        self.pd = pd
        self.transport = transport
        self.send_cq, self.recv_cq, self.rq = send_cq, recv_cq, rq
        self.max_send_wr, self.max_send_sge, self.max_inline = max_send_wr, max_send_sge, max_inline
        self.sq_sig_all = sq_sig_all
        self.request_flow: RequestFlow | None = None
        self.reply_flow: ReplyFlow | None = None
        self._defaults()
        make_sender, make_receiver = HALVES[transport]
        self.requester = make_sender(self)
        self.responder = make_receiver(self)

    def _defaults(self) -> None:
        self.state = qp_state.RESET
        self.dest_ip: str | None = None
        self.local_ip = self.device.addresses[0]
        self.dest_qpn = 0
        self.tclass = 0
        self.path_mtu = max(PATH_MTU_CODES) if self.transport == "UD" else 1024
        self.sq_psn = self.rq_psn = 0
        self.timeout = 14
        self.retry_cnt = self.rnr_retry = 7
        self.min_rnr_timer = 12
        self.max_rd_atomic = self.max_dest_rd_atomic = 1
        self.access: frozenset[str] = frozenset()
        self.qkey = 0
        self.pkey_index = 0
        self.flow_control = False
        self.route: Route | None = None
        self.saw_packet = False
        self._held_until: int | None = None
        self.notifier = Notifier(self.device.cnp_interval_ns)
        self.pacer = Dcqcn(self.device.dcqcn) if self.device.dcqcn is not None else None

    @property
    def local(self) -> FlowEnd:
        return FlowEnd(self.local_ip, self.qpn)

    @property
    def remote(self) -> FlowEnd:
        return FlowEnd(self.dest_ip or "", self.dest_qpn)

    # -- state

    def modify(self, now: int, attributes: dict[str, Any]) -> None:
        """``ibv_modify_qp``; see ``SoftDevice.modify_qp``."""
        state = attributes.pop("state", self.state)
        flow_control = attributes.pop("flow_control", None)
        qp_state.check(self.transport, self.state, state, frozenset(attributes))
        self._check_values(attributes)
        if state == qp_state.RESET:
            self._reset()
            return
        for name, value in attributes.items():
            setattr(self, name, frozenset(value) if name == "access" else value)
        if flow_control is not None:
            self.flow_control = flow_control
        before, self.state = self.state, state
        if "dest_ip" in attributes or "local_ip" in attributes:
            self._find_route()
        if before != state:
            self._entered(state, before, now)

    def _check_values(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            low, high = _RANGES.get(name, (None, None))
            if low is not None and high is not None and not low <= value <= high:
                raise verbs_error(errno.EINVAL, f"{name} is {low} to {high}, not {value}")
        mtu = attributes.get("path_mtu")
        if mtu is not None and mtu not in PATH_MTU_CODES:
            raise verbs_error(
                errno.EINVAL, f"a path MTU is {', '.join(map(str, PATH_MTU_CODES))} bytes, not {mtu}"
            )
        local = attributes.get("local_ip")
        if local is not None and local not in self.device.addresses:
            raise verbs_error(errno.EINVAL, f"{self.device.name} has no address {local}")

    def _find_route(self) -> None:
        if self.dest_ip is None:
            return
        try:
            self.route = self.device.route(self.local_ip, self.dest_ip, self.qpn, self.dest_qpn, self.tclass)
        except ValueError as error:
            raise verbs_error(errno.EINVAL, str(error)) from None

    def _entered(self, state: str, before: str, now: int) -> None:
        recorder = self.device.recorder
        if state == qp_state.RTR:
            self.responder.begin(self.rq_psn)
            if recorder is not None and self.transport == "RC":
                self.reply_flow = recorder.reply_flow(self.local, self.remote)
        elif state == qp_state.RTS and before == qp_state.RTR:
            self.requester.begin(self.sq_psn)
            if recorder is not None and self.transport != "UD":
                self.request_flow = recorder.request_flow(self.local, self.remote, self.sq_psn, self.path_mtu)
        elif state == qp_state.SQD and self.requester.idle():
            self.drained()
        elif state == qp_state.ERR:
            self.fail(now)
            self.responder.begin(0)

    def _reset(self) -> None:
        self._defaults()
        self.requester.begin(0)
        self.responder.begin(0)
        if not self.rq.shared:
            self.rq.queue.clear()
        self.send_cq.forget(self.qpn)
        self.recv_cq.forget(self.qpn)

    def fail(self, now: int) -> None:
        """Move to ERR: all that is posted is flushed (10.3.1.7). Waiting responses are still sent."""
        self.state = qp_state.ERR
        self.requester.flush(now)
        self.flush_receives()
        if self.rq.shared:
            self.device.report("QP_LAST_WQE_REACHED", self)

    def flush_receives(self) -> None:
        begun = self.responder.abort()
        if begun is not None:
            self.complete_receive(WC(begun.wr_id, self.qpn, "WR_FLUSH_ERR", "RECV"))
        if not self.rq.shared:
            while self.rq.queue:
                self.complete_receive(WC(self.rq.queue.popleft().wr_id, self.qpn, "WR_FLUSH_ERR", "RECV"))

    def drained(self) -> None:
        """The last request that was started before SQD is over (10.3.1.5)."""
        self.device.report("SQ_DRAINED", self)

    # -- work

    def post_send(self, wr: SendWR, now: int) -> None:
        self.requester.post(wr)
        if self.state in (qp_state.SQE, qp_state.ERR):
            self.requester.flush(now)

    def post_recv(self, wr: RecvWR) -> None:
        if self.rq.shared:
            raise PostError(errno.EINVAL, "the QP takes its receives from a shared queue: post them there")
        if self.state in qp_state.NO_POST_RECV:
            raise PostError(errno.EINVAL, f"nothing can be received on a QP in {self.state}")
        self.rq.post(wr)
        if self.state == qp_state.ERR:
            self.flush_receives()
        else:
            self.responder.receive_posted()

    def complete_send(self, wc: WC) -> None:
        if not self.send_cq.push(wc):
            self._lost_completion()

    def complete_receive(self, wc: WC) -> None:
        if not self.recv_cq.push(wc):
            self._lost_completion()

    def _lost_completion(self) -> None:
        """A completion queue overflowed: the QP cannot go on (11.6.3.1)."""
        if self.state != qp_state.ERR:
            self.state = qp_state.ERR
            self.device.report("QP_FATAL", self)

    def record_transfer(
        self, wqe: SendWqe, flow: RequestFlow | None = None, remote: FlowEnd | None = None
    ) -> TransferRecord:
        """The record's entry for a request that starts."""
        verb, wr = wqe.verb, wqe.wr
        addressed = verb.operation != "SEND"
        record = TransferRecord(
            self.local,
            remote or self.remote,
            self.transport,
            wr.wr_id,
            verb.operation,
            0 if verb.operation == "FLUSH" else wqe.length,
            wqe.psns,
            wqe.first_psn,
            wqe.last_psn,
            wr.imm if verb.immediate else None,
            wr.invalidate_rkey if verb.invalidate else None,
            wr.remote_va if addressed else None,
            wr.rkey if addressed else None,
        )
        flow = flow or self.request_flow
        if flow is not None:
            flow.transfers.append(record)
        return record

    # -- packets

    def next_packet(self, now: int) -> bytes | None:
        """The next packet of either half, responses first: the peer waits for them."""
        if self.notifier.due:
            return self._notification(now)
        self._held_until = None
        if self.pacer is not None and self.pacer.ready_ns > now and not self.responder.urgent():
            self._held_until = self.pacer.ready_ns
            return None
        data = self.responder.next_packet(now)
        if data is None and self.state in (qp_state.RTS, qp_state.SQD):
            data = self.requester.next_packet(now)
        if data is not None and self.pacer is not None:
            self.pacer.on_send(len(data), now)
        return data

    def _congested(self, packet: Packet, now: int) -> None:
        """A packet with CE came: its sender gets a CNP, if the packet is one that this QP takes (A17.9.3)."""
        self.device.counters.count("rcvd_ecn_marked")
        if packet.op.operation == "CNP":
            return
        if self.transport != "UD":
            self.notifier.marked(packet.source, self.dest_qpn, now)
        elif packet.op.operation == "SEND" and packet.qkey == self.qkey:
            self.notifier.marked(packet.source, packet.src_qpn, now)

    def _notification(self, now: int) -> bytes:
        """A CNP to a QP whose packets came with CE (A17.9.3)."""
        address, qpn = self.notifier.due.pop(0)
        if self.route is None or self.transport == "UD":
            self.route = self.device.route(self.local_ip, address, self.qpn, qpn, self.tclass)
        self.device.counters.count("cnp_sent")
        if self.device.recorder is not None:
            self.device.recorder.cnp(now, self.local, FlowEnd(address, qpn))
        return build_transport(CNP_OPCODE, dest_qpn=qpn, becn=1)

    def deadline(self) -> int | None:
        """When its next timer expires, or None."""
        due = self.requester.deadline()
        held = self._held_until
        return due if held is None else held if due is None else min(due, held)

    def handle_timer(self, now: int) -> None:
        if self._held_until is not None and now >= self._held_until:
            self._held_until = None
        self.requester.handle_timer(now)

    def receive(self, packet: Packet, now: int) -> None:
        """Handle a packet for this QP."""
        if self.state not in qp_state.RECEIVES:
            self.device.counters.count("drop_qp_state")
            return
        if not self.saw_packet:
            self.saw_packet = True
            self.device.first_packet(self)
        if packet.ecn == ECN_CE:
            self._congested(packet, now)
        if packet.op.operation == "CNP":
            self.device.counters.count("cnp_handled")
            if self.pacer is not None:
                self.pacer.on_cnp(now)
        elif not packet.op.response:
            self.responder.receive(packet, now)
        elif self.state != qp_state.RTR:
            self.requester.receive(packet, now)
        else:
            self.device.counters.count("drop_qp_state")
