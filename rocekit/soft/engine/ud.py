"""Unreliable datagrams: a message is one packet, to any QP that has the same Q_Key (9.8.3, 10.2.5)."""

from __future__ import annotations

import errno
from typing import Final

from rocekit.soft.engine.errors import PostError
from rocekit.soft.engine.memory import LocalProtectionError
from rocekit.soft.engine.packet import GRH_AREA_BYTES, RESERVED, Packet, Route, grh_area
from rocekit.soft.engine.parts import QueuePair
from rocekit.soft.engine.record import FlowEnd, RequestFlow
from rocekit.soft.engine.uc import UnreliableSender
from rocekit.soft.engine.work import WC, RecvWR, SendWR
from rocekit.wire import IMMDT, ONLY
from rocekit.wire.build import build_transport
from rocekit.wire.psn import MASK

#: If a request's Q_Key has this bit, the QP's own one is sent (10.2.5).
CONTROLLED_QKEY: Final = 0x8000_0000


class UdSender(UnreliableSender):
    """The sending half of a UD queue pair; each request has a destination."""

    def __init__(self, qp: QueuePair) -> None:
        super().__init__(qp)
        self._routes: dict[tuple[str, int], Route] = {}
        self._flows: dict[tuple[str, int], RequestFlow] = {}

    def begin(self, sq_psn: int) -> None:
        super().begin(sq_psn)
        self._routes, self._flows = {}, {}

    def post(self, wr: SendWR) -> None:
        if not wr.dest_ip:
            raise PostError(errno.EINVAL, "a UD request needs an address handle: dest_ip")
        super().post(wr)

    def next_packet(self, now: int) -> bytes | None:
        qp = self.qp
        wqe = self._begin_oldest(now)
        if wqe is None:
            return None
        if wqe.length > qp.path_mtu:
            self._failed("LOC_LEN_ERR", now)
            return None
        wr = wqe.wr
        where = (wr.dest_ip or "", wr.dest_qpn)
        route = self._routes.get(where)
        if route is None:
            try:
                route = qp.device.route(qp.local_ip, where[0], qp.qpn, wr.dest_qpn, qp.tclass)
            except ValueError:  # not an address, or one of the other IP version
                self._failed("LOC_QP_OP_ERR", now)
                return None
            self._routes[where] = route
        qp.route = route
        fields = {"immediate": wr.imm} if wqe.verb.immediate else {}
        data = build_transport(
            wqe.opcodes[ONLY],
            wqe.data,
            dest_qpn=wr.dest_qpn,
            psn=self.psn & MASK,
            solicited=wr.solicited,
            qkey=qp.qkey if wr.qkey & CONTROLLED_QKEY else wr.qkey,
            src_qpn=qp.qpn,
            **fields,
        )
        recorder = qp.device.recorder
        if recorder is not None and qp.qpn > 1:  # QP1's MADs are not transfers
            flow = self._flows.get(where)
            if flow is None:
                flow = recorder.request_flow(qp.local, FlowEnd(*where), self.psn, qp.path_mtu)
                self._flows[where] = flow
            wqe.record = qp.record_transfer(wqe, flow, FlowEnd(*where))
            flow.sent(wqe.record, self.psn, 1, now, None)
        self.psn += 1
        self._sent(wqe, now)
        return data


class UdReceiver:
    """The receiving half of a UD queue pair."""

    def __init__(self, qp: QueuePair) -> None:
        self.qp = qp

    def begin(self, rq_psn: int) -> None:
        """Datagrams have no expected PSN."""

    def next_packet(self, now: int) -> bytes | None:
        return None

    def receive(self, packet: Packet, now: int) -> None:
        """Write a datagram to the receive buffer, after 40 bytes with its network header (11.4.2.1)."""
        qp = self.qp
        counters = qp.device.counters
        if packet.op.operation == RESERVED:
            counters.count("drop_malformed")
            return
        if packet.qkey != qp.qkey:
            counters.count("drop_qkey")
            return
        if len(packet.payload) > qp.path_mtu:
            counters.count("drop_too_long")
            return
        wr = qp.rq.take()
        if wr is None:
            counters.count("drop_no_receive")
            return
        try:
            scatter = qp.device.keys.scatter(qp.rq.pd, wr.sges, write=True)
        except LocalProtectionError:
            qp.complete_receive(WC(wr.wr_id, qp.qpn, "LOC_PROT_ERR", "RECV"))
            return
        length = GRH_AREA_BYTES + len(packet.payload)
        if length > scatter.length:
            counters.count("drop_too_long")
            qp.rq.queue.appendleft(wr)
            return
        scatter.write(0, grh_area(packet.network))
        if packet.payload:
            scatter.write(GRH_AREA_BYTES, packet.payload)
        counters.count("rdma_recvs")
        qp.complete_receive(
            WC(
                wr.wr_id,
                qp.qpn,
                "SUCCESS",
                "RECV",
                length,
                packet.immediate if IMMDT in packet.op.headers else None,
                src_qpn=packet.src_qpn,
                src_ip=packet.source,
                grh=True,
                solicited=bool(packet.solicited),
            )
        )

    def receive_posted(self) -> None:
        """UD has no credits."""

    def urgent(self) -> bool:
        return False

    def abort(self) -> RecvWR | None:
        return None
